"""Figures of rates over length: their sentences, and the records they leave out."""

import pandas as pd
import pytest

from longca.lab.paper.analysis.curves import most_often_fastest
from longca.lab.paper.analysis.select import earlier_strategies, kernels
from longca.lab.paper.build import exhibits
from longca.lab.report.content.earlier import is_earlier
from longca.lab.store.table import derived
from longca.lab.store.text import number
from longca.lab.studies.cell import Cell
from longca.predict.earlier import EARLIER_RECORDS
from tests.helpers.records import record

GPU = "NVIDIA H200"


def points(rates: dict[str, list[float]], **noise: list[float]) -> pd.DataFrame:
    """One mask over some lengths; a rate of 0 was not measured."""
    rows = [
        {
            "mask": "full",
            "detail": "",
            "device": GPU,
            "method": method,
            "seqlen": 1024 * index,
            "value": value,
            "noise": noise.get(method, [0.01] * len(values))[index],
        }
        for method, values in rates.items()
        for index, value in enumerate(values)
        if value
    ]
    return pd.DataFrame(rows)


def test_the_least_loss_is_told_of_kernels_with_nearly_all_points():
    rates = {"fa3": [700.0] * 10, "band": [630.0] * 9 + [0.0], "flex": [500.0] * 8 + [0.0] * 2}
    sentence = most_often_fastest(points(rates))
    assert sentence == (
        "fa3 leads alone at 9 of 9 points of mask and length, against 1 to 2 others; of the 2 kernels with "
        "nine tenths of these points or more, fa3 loses least: at its worst it reaches 100 % of the best"
    )
    halves = {"fa3": [700.0] * 10, "band": [690.0] * 5 + [0.0] * 5, "flex": [0.0] * 5 + [500.0] * 5}
    assert "fa3 alone has nine tenths of these points or more" in most_often_fastest(points(halves))


def test_masks_of_the_released_code_do_not_count_where_the_others_do():
    both = points({"fa3": [700.0] * 3, "band": [600.0] * 3})
    again = both.loc[both.method == "fa3"].assign(detail="paper compat", value=100.0)
    more = pd.concat([both, again, again.assign(method="band", value=900.0)])
    assert most_often_fastest(more) == most_often_fastest(both)
    assert most_often_fastest(again.assign(device=GPU)) == "no two kernels ran the same cells"
    alone = more.loc[more.detail != ""]
    assert most_often_fastest(alone).startswith("band leads alone at 3 of 3 points"), "they count alone"


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        (
            {"usp": 642.0, "ulysses": 641.0, "ring_p2p": 271.0},
            "usp+band reaches {rate} TFLOP/s a GPU, tied with ulysses+band, {ratio} times ring_p2p+band",
        ),
        (
            {"usp": 642.0, "ring_p2p": 271.0},
            "usp+band reaches {rate} TFLOP/s a GPU, {ratio} times ring_p2p+band",
        ),
        ({"usp": 642.0, "ulysses": 641.0}, "usp+band reaches {rate} TFLOP/s a GPU, tied with ulysses+band"),
    ],
)
def test_a_rate_is_told_of_the_strategy_that_has_it(rates, told):
    """And with its mask: those that tie have other rates."""
    call = {"kind": "cp", "kernel": "band", "mask": "full_document", "direction": "fwd", "head_dim": 128}
    heads = {"num_q_heads": 64, "num_kv_heads": 8, "dtype": "bf16", "world": 2, "seqlen": 16384}
    records = [
        record(Cell(**call, **heads, corpus="pile", strategy=strategy), tflops=2 * rate, gpu=GPU)
        for strategy, rate in rates.items()
    ]
    (figure,) = (exhibit for exhibit in exhibits() if exhibit.name == "cp_documents")
    data = figure.data(derived(records))
    numbers = {"rate": number(data.value.max()), "ratio": number(data.value.max() / data.value.min())}
    assert (
        figure.title(data)
        == f"Strategies under full_document, forward: 2 ranks × 8K: {told.format(**numbers)}"
    )


def test_a_point_that_something_delayed_is_no_kernels_worst():
    rates = {"fa3": [700.0, 700.0], "band": [665.0, 140.0]}
    assert "flex" not in most_often_fastest(points(rates))
    without_fa3 = {"band": rates["band"], "flex": [300.0, 700.0]}
    sentence = most_often_fastest(points(without_fa3, band=[0.01, 0.8]))
    assert "band loses least: at its worst it reaches 100 % (20 % with 1 noisy) of the best" in sentence
    told = most_often_fastest(points(without_fa3))
    assert "flex loses least: at its worst it reaches 45 % of the best" in told


@pytest.fixture
def table():
    """`band` alone and in a strategy, at an earlier commit and at a present one."""
    records = []
    for tflops in (500.0, 600.0):
        for call in (
            {"kind": "kernel", "mask": "full", "seqlen": 8192},
            {"kind": "cp", "strategy": "ring_p2p", "world": 4, "mask": "full", "seqlen": 32768},
        ):
            cell = Cell(
                **call,
                kernel="band",
                num_q_heads=64,
                num_kv_heads=8,
                head_dim=128,
                dtype="bf16",
                direction="fwd",
            )
            records.append(record(cell, tflops=tflops, gpu=GPU))
    rows = derived(records)
    rows["git_sha"] = [
        EARLIER_RECORDS[0] + "0" * 33 if rate < 550 else "f" * 40
        for rate in rows.tflops_per_device * rows.world
    ]
    return rows


def test_an_earlier_band_gives_way_to_the_present_one_of_the_same_gpu(table):
    assert is_earlier(table).sum() == 2
    shown = kernels(table, sparse=False)
    assert len(shown) == 1 and not is_earlier(shown).any()
    old = table.loc[is_earlier(table)]
    assert len(kernels(old, sparse=False)) == 1, "alone it is shown"
    assert (
        len(
            kernels(
                pd.concat([old, table.loc[~is_earlier(table)].assign(device="NVIDIA H100 80GB HBM3")]),
                sparse=False,
            )
        )
        == 2
    )
    assert earlier_strategies(table) == f"on {GPU} band in strategies is of its earlier kernels (1 cell)"
    assert earlier_strategies(table.loc[~is_earlier(table)]) == ""


def test_other_findings_of_tables_are_sentences() -> None:
    named = {exhibit.name: exhibit for exhibit in exhibits()}
    heads = pd.DataFrame({"device": [GPU, GPU], "ratio": [0.98, 0.98]})
    assert named["dense_heads"].title(heads) == (
        "With as many KV heads as query heads throughput changes: it is 0.980× that with 8, in the mean of 2 "
        "pairs, 100 % of which are within 5 %"
    )
    costs = {"strategy": ["usp"], "kernel": ["band"], "cost": ["mask"], "value": [35.9], "high": [190.0]}
    assert named["cp_planning"].title(pd.DataFrame(costs)) == (
        "The slowest step of planning is mask of usp over band: its median is 35.9 ms; the slowest single "
        "step of all takes 190 ms"
    )
