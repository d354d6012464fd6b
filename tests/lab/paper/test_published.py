"""Published rates beside an exhibit's: what is paired, what the columns hold, and what the sentences say."""

import pytest

from longca.core.hardware import Hardware, load_hardware
from longca.lab.paper.analysis.select import parallel, rates
from longca.lab.paper.figures.dense_forward import DenseForward
from longca.lab.paper.published import published_findings, published_pairs, published_rates, with_published
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.record import Record
from tests.helpers.records import record

PEAK = 989.0  # of both H100 SXM and H200 SXM


def _measured(mask: str = "full", tflops: float = 671.0, **asked: object) -> Record:
    cell = Cell.model_validate(
        {
            "kind": "kernel",
            "kernel": "fa3",
            "mask": mask,
            "seqlen": 8192,
            "num_q_heads": 64,
            "num_kv_heads": 8,
            "head_dim": 128,
            "dtype": "bf16",
            "direction": "fwd",
            "seed": 0,
        }
        | asked
    )
    return record(cell, tflops=tflops * cell.world, gpu="NVIDIA H200")


def _pairs(*measured: Record, hardware: Hardware | None = None):
    table = derived(measured)
    data = DenseForward().data(table)
    return data, published_pairs(data, published_rates(table, hardware or load_hardware()))


def test_a_point_stands_beside_each_source_that_tells_its_length():
    data, pairs = _pairs(_measured(), _measured(seqlen=3072))
    actual = with_published(data, pairs).set_index("seqlen")
    row = actual.loc[8192]
    assert row.magiattention_h100_peak_percent == pytest.approx(100 * 671 / PEAK)
    assert row.magiattention_h100_2025_peak_percent == pytest.approx(100 * 662.8 / PEAK)
    assert row.peak_percent == pytest.approx(100 * row.value / PEAK)
    assert "longca_bench_peak_percent" not in actual
    assert actual.loc[3072, ["peak_percent", "magiattention_h100_peak_percent"]].isna().all(), (
        "no source has this length"
    )


def test_the_sentence_has_median_points_and_the_furthest():
    data, pairs = _pairs(_measured(), _measured("causal", tflops=327.0))
    shown = next(text for text in published_findings(pairs) if "MagiAttention on" in text)
    ratio = {
        row["mask"]: row.value / published
        for (_, row), published in zip(data.iterrows(), (671, 654), strict=True)
    }
    assert f"{(ratio['full'] + ratio['causal']) / 2:.3f}× in the median of 2 points" in shown
    assert f"furthest apart for fa3 under causal at 8K, fwd ({ratio['causal']:.3f}×)" in shown
    assert "H100 SXM (digitized from charts, ±3 TFLOP/s)" in shown


def test_documents_of_another_sampler_stand_apart():
    _, pairs = _pairs(_measured(), _measured("full_document", tflops=280.0, corpus="pile"))
    shown = next(text for text in published_findings(pairs) if "MagiAttention on" in text)
    assert "in the median of 1 point; " in shown and "of 1 point with documents of another sampler" in shown


def test_a_rate_without_a_length_is_told_as_a_range():
    data, pairs = _pairs(_measured(tflops=500.0), _measured(tflops=700.0, seqlen=3072))
    shown = next(text for text in published_findings(pairs) if text.startswith("LongCA-bench"))
    low, high = (f"{100 * value / PEAK:.2g} %" for value in sorted(data.value))
    assert "at 61 % of peak and does not tell the length" in shown and shown.endswith(
        f"here it has {low} to {high} at 2 points"
    )


def test_parameters_and_heads_that_a_source_tells_must_agree():
    alike = _measured("causal_sliding_window", mask_params={"window": 1024})
    data, pairs = _pairs(
        alike, _measured("causal_sliding_window", mask_params={"window": 256}), _measured(num_kv_heads=64)
    )
    assert [data.cell_ids[row] for row in pairs.row] == [alike.cell_id]


def test_ranks_are_compared_for_each_gpu():
    table = derived(
        [
            _measured(kind="cp", strategy="ulysses", world=8, seqlen=65536, tflops=604.0),
            _measured(kind="cp", strategy="ulysses", world=4, seqlen=32768, tflops=604.0),
        ]
    )
    data = rates(parallel(table), "mask", "method", "world", "seqlen")
    pairs = published_pairs(data, published_rates(table, load_hardware()))
    assert data.world[pairs.row].tolist() == [8] and pairs.published_tflops.tolist() == [604]
    assert pairs.ratio.iloc[0] == pytest.approx(data.value[pairs.row.iloc[0]] / 604)
    assert "1 point" in published_findings(pairs)[0]


def test_nothing_is_said_where_nothing_was_published():
    data, pairs = _pairs(_measured(seqlen=3072, num_kv_heads=64))
    assert published_findings(pairs) == () and with_published(data, pairs) is data
    data, pairs = _pairs(_measured(), hardware=Hardware())
    assert not len(pairs) and with_published(data, pairs) is data


def test_what_is_no_rate_is_left_alone():
    table = derived([_measured()])
    data = DenseForward().data(table)
    known = published_rates(table, load_hardware())
    assert len(published_pairs(data, known)) and not len(published_pairs(data.assign(unit="bytes"), known))
    assert not len(published_pairs(data.drop(columns="unit"), known))
