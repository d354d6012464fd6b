"""The derived table says what the records say, by arithmetic that is done here again by hand."""

import math

import pytest

from longca.core.cell import Cell
from longca.core.errors import UserError
from longca.core.record import Accuracy, Failed, MaskFacts, OutOfMemory, Samples, TimedOut
from longca.store.columns import COLUMNS
from longca.store.hardware import Hardware, load_hardware
from longca.store.table import derived, in_order, rows
from tests.records import quick_study, record

CELL = Cell(kind="kernel", kernel="sdpa", mask="causal", seqlen=100, num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="bf16",
            direction="fwd")
FACTS = MaskFacts(digest="0" * 16, area=5050, num_groups=1, num_bands=1)


def one(cell=CELL, outcome=None, **fields):
    return rows([record(cell, outcome, **{"mask": FACTS, **fields})], load_hardware())[0]


def samples(*ranks, timer="monotonic", **fields):
    return Samples(time_ms=ranks, warmup=1, timer=timer, **fields)


def test_times_are_quartiles_of_the_samples_in_order():
    row = one(samples=samples((4.0, 1.0, 2.0, 3.0, 5.0)))
    assert row["samples_ms"] == (4.0, 1.0, 2.0, 3.0, 5.0)
    assert (row["time_ms_min"], row["time_ms_q1"], row["time_ms_median"], row["time_ms_q3"]) == (1.0, 2.0, 3.0, 4.0)
    assert row["noise"] == pytest.approx(2 / 3) and row["num_samples"] == 5


def test_speed_comes_from_the_exact_area():
    row = one(samples=samples((2.0, 2.0)))
    assert row["flops"] == 4 * 5050 * 4 * 16
    assert row["density"] == pytest.approx(0.505)
    assert row["tflops"] == pytest.approx(row["flops"] / 2e-3 / 1e12)
    backward = one(CELL.model_copy(update={"direction": "bwd"}), samples=samples((2.0,)))
    assert backward["flops"] == 2.5 * row["flops"]


def test_head_groups_share_the_area():
    facts = FACTS.model_copy(update={"area": 10100, "num_groups": 2})
    assert one(mask=facts)["flops"] == one()["flops"] and one(mask=facts)["density"] == one()["density"]


def test_a_step_of_context_parallelism_lasts_as_long_as_its_slowest_rank():
    cell = CELL.model_copy(update={"kind": "cp", "strategy": "ulysses", "world": 2})
    row = one(cell, samples=samples((1.0, 2.0, 3.0), (2.0, 1.0, 5.0)))
    assert row["samples_ms"] == (2.0, 2.0, 5.0) and row["time_ms_median"] == 2.0
    assert row["time_ms_mean_ranks"] == 1.5
    assert row["tflops_per_device"] == pytest.approx(row["tflops"] / 2)
    assert row["tflops_per_device_mean_ranks"] == pytest.approx(row["tflops_per_device"] * 2.0 / 1.5)
    assert row["method"] == "ulysses+sdpa"


def test_share_of_peak_where_a_source_gives_one():
    timed = samples((1.0,), timer="cuda_event", sm_clock_mhz=(1900.0, 1980.0, 1950.0), clock_event_reasons=("sw_power_cap",))
    row = one(samples=timed, gpu="NVIDIA H200")
    assert row["device"] == "NVIDIA H200" and row["peak_tflops"] == 989
    assert row["peak_percent"] == pytest.approx(100 * row["tflops"] / 989)
    assert row["sm_clock_mhz_median"] == 1950.0 and row["clock_event_reasons"] == "sw_power_cap"
    for unknown in (one(samples=timed, gpu="NVIDIA H2"), one(), one(CELL.model_copy(update={"dtype": "fp32"}),
                                                                    gpu="NVIDIA H200")):
        assert unknown["peak_tflops"] is None and unknown["peak_percent"] is None


def test_a_control_does_no_attention():
    row = one(CELL.model_copy(update={"kernel": "control"}))
    assert row["is_control"] and row["flops"] is None and row["tflops"] is None and row["time_ms_median"] is not None


def test_the_worst_tensor_is_the_one_nearest_to_its_budget():
    accuracy = Accuracy(reference="float64", scope="all", relative={"out": 0.002, "dq": 0.003}, budget={"out": 0.004, "dq": 0.03})
    row = one(accuracy=accuracy)
    assert (row["error_tensor"], row["error"], row["budget_ratio"]) == ("out", 0.002, 0.5)
    assert row["error_dq"] == 0.003 and row["error_dk"] is None


def test_a_tensor_without_an_error_is_infinitely_wrong():
    accuracy = Accuracy(reference="float64", scope="all", relative={"out": 0.002}, budget={"out": 0.004, "dq": 0.03})
    row = one(accuracy=accuracy)
    assert row["error_tensor"] == "dq" and math.isinf(row["budget_ratio"])


@pytest.mark.parametrize(("outcome", "reason"), [
    (OutOfMemory(requested_bytes=3 << 30, where="bwd"), "out of memory in bwd, asking for 3.00 GiB"),
    (OutOfMemory(requested_bytes=None, where="fwd"), "out of memory in fwd"),
    (TimedOut(seconds=120), "stopped after 120 s"),
    (Failed(type="ValueError", message="first\n  second"), "ValueError: first second")])
def test_each_outcome_has_a_reason_in_one_line(outcome, reason):
    row = one(outcome=outcome)
    assert row["status"] == outcome.status and row["reason"] == reason
    assert row["time_ms_median"] is None and row["tflops"] is None


def test_a_record_without_environment_has_empty_columns():
    row = one(environment=None, outcome=TimedOut(seconds=1))
    assert row["device"] == "" and row["git_sha"] == "" and row["git_dirty"] is None and row["num_nodes"] is None


def test_every_column_is_defined_once_and_fully():
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.meaning and column.source for column in COLUMNS)
    assert list(derived([record(CELL)]).columns) == names


def test_values_are_of_the_type_that_the_column_says():
    types = {"str": str, "int": (int,), "float": (int, float), "bool": bool, "floats": tuple}
    for row in rows(quick_study()):
        for column in COLUMNS:
            value = row[column.name]
            assert (value is None and column.type != "str") or isinstance(value, types[column.type]), (column.name, value)


def test_order_follows_what_was_measured():
    records = quick_study()
    assert in_order(reversed(records)) == in_order(records)
    kinds = [entry.cell.kind for entry in in_order(records)]
    assert kinds == sorted(kinds, reverse=True)


def test_no_records_make_an_empty_frame():
    assert derived([]).shape == (0, len(COLUMNS))


def test_hardware_is_found_by_its_whole_name(tmp_path):
    hardware = load_hardware()
    assert hardware.find("NVIDIA H20").peak_tflops.value < hardware.find("NVIDIA H200").peak_tflops.value
    assert hardware.find("") is None and Hardware().peak_tflops("NVIDIA H200", "bf16") is None
    twice = tmp_path / "hardware.yaml"
    entry = "- {name: X, gpu_names: [G], peak_tflops: {value: 1, source: 'https://x'}, bandwidth_gb_s: {value: 1, source: 'https://x'}}\n"
    twice.write_text(entry * 2)
    with pytest.raises(UserError, match="'G' stands twice"):
        load_hardware(twice)
    twice.write_text(entry.replace("value: 1", "value: 0", 1))
    with pytest.raises(UserError, match="greater than 0"):
        load_hardware(twice)
