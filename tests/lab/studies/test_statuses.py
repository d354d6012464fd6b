"""Every place that lists outcomes knows all of them."""

from typing import get_args

import pytest

from longca.core.plugin import PACKAGE_ROOT
from longca.lab.bench.run import overview, own_file, progress, scores
from longca.lab.report import matrix, series
from longca.lab.studies.outcome import STATUSES, Outcome

STATIC = PACKAGE_ROOT / "lab" / "report" / "static"
TEMPLATES = PACKAGE_ROOT / "lab" / "report" / "templates"


def test_the_list_is_that_of_the_outcomes() -> None:
    assert tuple(kind.model_fields["status"].default for kind in get_args(get_args(Outcome)[0])) == STATUSES


def test_groups_of_outcomes_hold_each_once() -> None:
    assert sorted(matrix.WORST_FIRST) == sorted(matrix.SHORT) == sorted(STATUSES)
    assert sorted(status for group in progress.GROUPS.values() for status in group) == sorted(STATUSES)
    tried = {*STATUSES} - {"ok", "unsupported", "unavailable"}
    assert {*series.FAILURES} == {*own_file.ENDED_BADLY} == {*scores.FAILED, "oom"} == tried
    assert overview.SHORT.keys() <= {*STATUSES}


@pytest.mark.parametrize("status", STATUSES)
def test_the_page_has_a_sign_and_a_colour_for_each(status: str) -> None:
    assert f'id="i-{status}"' in (TEMPLATES / "symbols.html.j2").read_text()
    assert f".s-{status}" in (STATIC / "report.css").read_text()
    assert status in (PACKAGE_ROOT / "lab" / "store" / "columns.py").read_text()
