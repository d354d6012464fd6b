"""Points of throughput figures: results that count, their spread and their order."""

import pandas as pd
import pytest

from longca.lab.report.look.style import Style
from longca.lab.report.matrix import matrices
from longca.lab.report.rates import draw_rates
from longca.lab.report.winners import rankings
from longca.lab.store.table import derived
from longca.lab.studies.outcome import Incorrect
from tests.helpers.records import record
from tests.helpers.report.cases import cell, rates, told


def test_an_incorrect_result_never_wins():
    records = [record(cell("naive"), Incorrect(reason="wrong")), record(cell("sdpa"), tflops=1.0)]
    data = rates(records)
    assert data.value[data.method == "naive"].isna().all() and list(data.status[data.method == "naive"]) == [
        "incorrect"
    ]
    assert told(records) == "Only sdpa ran"


def test_rows_as_released_are_never_ranked():
    records = [
        record(cell("sdpa"), tflops=1.0),
        record(cell("naive"), tflops=0.5),
        record(cell("as_released_naive"), tflops=9.0),
    ]
    assert set(rates(records).method) == {"sdpa", "naive"}
    [ranking] = rankings(derived(records))
    assert "as_released" not in str(ranking)
    assert any("as_released_naive" in str(matrix) for matrix in matrices(derived(records))), (
        "the page has them all the same"
    )


def test_seeds_are_one_point_with_a_wider_spread():
    records = [
        record(cell(mask="causal_document", corpus="pile", seed=seed), tflops=speed)
        for seed, speed in enumerate((1.0, 2.0, 4.0))
    ]
    (point,) = rates(records).itertuples()
    assert (
        point.num_cells == 3
        and point.value == pytest.approx(2.0, rel=0.1)
        and point.low < 1.05
        and point.high > 3.8
    )


def test_settings_stand_in_the_order_of_their_numbers():
    records = [
        record(cell(kernel, num_q_heads=64, num_kv_heads=heads), tflops=speed)
        for heads in (64, 8)
        for kernel, speed in (("sdpa", 2.0), ("naive", 1.0))
    ]
    assert [ranking.setting for ranking in rankings(derived(records))] == ["64:8 heads", "64:64 heads"]
    data = rates(records)
    assert list(dict.fromkeys(data.detail)) == ["64:8 heads", "64:64 heads"]


def test_a_noisy_point_stands_off_its_line():
    """A line through it would show a dip that the next run does not have."""
    lengths = (1024, 2048, 4096, 8192)
    data = pd.DataFrame(
        [
            {"mask": "full", "detail": "", "method": "sdpa", "seqlen": seqlen, "value": 100.0, "low": 99.0,
             "high": 101.0, "noise": 0.5 if seqlen == 4096 else 0.02, "status": "ok", "cell_ids": str(seqlen)}
            for seqlen in lengths
        ]
    )  # fmt: skip
    data.loc[data.seqlen == 4096, ["value", "low", "high"]] = (20.0, 15.0, 95.0)
    canvas = draw_rates(data, Style(["sdpa"]))
    (ax,) = [ax for ax in canvas.axes if ax.lines]
    drawn = {tuple(line.get_xdata()): line.get_linestyle() for line in ax.lines}
    assert drawn == {(1024, 2048, 8192): "-", (4096,): "None"}
    few = data[data.seqlen > 1024]
    (ax,) = [ax for ax in draw_rates(few, Style(["sdpa"])).axes if ax.lines]
    assert [tuple(line.get_xdata()) for line in ax.lines] == [(2048, 4096, 8192)], (
        "two steady ones make no line"
    )
