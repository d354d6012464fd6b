"""The figure of context parallelism: ranks are compared with as many tokens."""

import pytest

from longca.core.plugin import Registry
from longca.lab.report.figures.cp_throughput import _by_tokens
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw
from longca.lab.store.table import derived
from tests.helpers.records import quick_study, record


@pytest.mark.parametrize(
    ("lengths", "details"),
    [
        ({(2, 2048), (4, 4096)}, {""}),  # each rank as many tokens
        ({(2, 2048), (4, 4096), (2, 8192)}, {"1K a rank", "4K a rank"}),
        ({(2, 2048), (4, 2048), (2, 16384), (4, 16384)}, {"2K in all", "16K in all"}),
    ],
)
def test_ranks_are_compared_with_as_many_tokens(lengths, details):
    own = quick_study()[0].cell.model_copy(
        update={"kind": "cp", "strategy": "ulysses", "kernel": "sdpa", "mask": "causal"}
    )
    cells = [own.model_copy(update={"world": world, "seqlen": seqlen}) for world, seqlen in sorted(lengths)]
    figure = Registry("figure").load("cp_throughput")
    data = figure.data(derived([record(cell) for cell in cells]))
    assert set(_by_tokens(data).detail) == details and len(_by_tokens(data)) == len(lengths)
    text = draw(figure, data, Style(("ulysses+sdpa",)))
    assert all(detail in text for detail in details)
