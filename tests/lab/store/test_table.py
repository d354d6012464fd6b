"""The derived table says what the records say, by arithmetic that is done here again by hand."""

import math

import pytest

from longca.lab.store.columns import COLUMNS
from longca.lab.store.table import derived, in_order, is_ranked
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Failed, OutOfMemory, TimedOut, Unsupported
from longca.lab.studies.record import COSTS, Accuracy, Memory
from tests.helpers.records import quick_study, record
from tests.helpers.store.rows import CELL, FACTS, changed, control, one, rows, samples


def test_times_are_quartiles_of_the_samples_in_order():
    row = one(samples=samples((4.0, 1.0, 2.0, 3.0, 5.0)))
    assert row["samples_ms"] == (4.0, 1.0, 2.0, 3.0, 5.0)
    assert (row["time_ms_min"], row["time_ms_q1"], row["time_ms_median"], row["time_ms_q3"]) == (
        1.0,
        2.0,
        3.0,
        4.0,
    )
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
    assert (row["method"], row["strategy"], row["strategy_params"]) == ("ulysses+sdpa", "ulysses", "")
    row = one(
        Cell(**cell.model_dump() | {"strategy": "loongtrain", "strategy_params": {"heads": 2, "windows": 1}})
    )
    assert row["method"] == "loongtrain[heads=2,windows=1]+sdpa"
    assert (row["strategy"], row["strategy_params"]) == ("loongtrain", "heads=2, windows=1")


def test_share_of_peak_where_a_source_gives_one():
    timed = samples(
        (1.0,),
        timer="cuda_event",
        sm_clock_mhz=(1900.0, 1980.0, 1950.0),
        clock_event_reasons=("sw_power_cap",),
    )
    row = one(samples=timed, gpu="NVIDIA H200")
    assert row["device"] == "NVIDIA H200" and row["peak_tflops"] == 989
    assert row["peak_percent"] == pytest.approx(100 * row["tflops"] / 989)
    assert row["sm_clock_mhz_median"] == 1950.0 and row["clock_event_reasons"] == "sw_power_cap"
    for unknown in (
        one(samples=timed, gpu="NVIDIA H2"),
        one(),
        one(CELL.model_copy(update={"dtype": "fp32"}), gpu="NVIDIA H200"),
    ):
        assert unknown["peak_tflops"] is None and unknown["peak_percent"] is None


def test_energy_is_told_where_power_has_settled():
    cell = CELL.model_copy(update={"kind": "cp", "strategy": "ulysses", "world": 2})
    long = samples((200.0,), (190.0,), power_w=(600.0, 700.0, 650.0))
    assert one(cell, samples=long)["joules_per_token"] == pytest.approx(650 * 2 * 0.2 / cell.seqlen)
    short = samples((20.0,), (19.0,), power_w=(650.0,))
    assert one(cell, samples=short)["joules_per_token"] is None, "the reading holds pauses"
    without_pauses = one(
        CELL.model_copy(update={"sustained": True}), samples=samples((20.0,), power_w=(650.0,))
    )
    assert without_pauses["joules_per_token"] == pytest.approx(650 * 0.02 / CELL.seqlen)
    assert one(cell, samples=samples((200.0,), (190.0,)))["joules_per_token"] is None


def test_a_control_does_no_attention():
    row = one(CELL.model_copy(update={"kernel": "control"}))
    assert row["is_control"] and row["nominal_ms"] == 100 / 1024 and row["time_ms_median"] is not None
    assert all(
        row[name] is None
        for name in ("flops", "tflops", "peak_percent", "gb_per_s", "ceiling_percent", "nominal_flops")
    )
    assert not one()["is_control"] and one()["nominal_ms"] is None


def test_a_matrix_product_has_its_own_operations():
    row = one(control("matmul"), samples=samples((4.0,), timer="cuda_event"), gpu="NVIDIA H200")
    assert row["is_control"] and row["flops"] == 2 * 2048**3  # and not 4 · area · heads · head dim
    assert row["tflops"] == pytest.approx(2 * 2048**3 / 4e9) and row["peak_percent"] == pytest.approx(
        100 * row["tflops"] / 989
    )
    assert (
        row["gb_per_s"] is None and row["ceiling_tflops"] == row["tflops"] and row["ceiling_percent"] is None
    )


def test_a_copy_moves_bytes_and_computes_nothing():
    row = one(control("device_copy"), samples=samples((0.5,), timer="cuda_event"), gpu="NVIDIA H200")
    assert row["traffic_bytes"] == 4 * 2048 * 4 * 16 and row["flops"] is None and row["tflops"] is None
    assert row["gb_per_s"] == pytest.approx(row["traffic_bytes"] / 0.5e-3 / 1e9) == row["ceiling_gb_per_s"]
    assert row["peak_percent"] == pytest.approx(100 * row["gb_per_s"] / 4800)
    assert one(control("device_copy"))["peak_percent"] is None  # no source gives this CPU's bandwidth


def test_nominal_operations_are_those_of_the_density_asked():
    cell = CELL.model_copy(
        update={
            "mask": "block_sparse_uniform",
            "mask_params": {"block": 10, "density": 0.25},
            "direction": "bwd",
        }
    )
    facts = FACTS.model_copy(update={"area": 2 * 3000, "num_groups": 2})  # 0.3 was drawn
    row = one(cell, mask=facts, samples=samples((2.0,)))
    assert (
        row["nominal_flops"] == 2.5 * 4 * 0.25 * 100**2 * 4 * 16 and row["flops"] == 2.5 * 4 * 3000 * 4 * 16
    )
    assert row["nominal_tflops"] == pytest.approx(row["nominal_flops"] / 2e9)
    assert one()["nominal_flops"] is None and one()["nominal_tflops"] is None
    said = {column.name: column.meaning for column in COLUMNS}
    assert "exact area" in said["flops"] and "requested density" in said["nominal_flops"]


def test_the_worst_tensor_is_the_one_nearest_to_its_budget():
    accuracy = Accuracy(
        reference="float64",
        scope="all",
        relative={"out": 0.002, "dq": 0.003},
        budget={"out": 0.004, "dq": 0.03},
    )
    row = one(accuracy=accuracy)
    assert (row["error_tensor"], row["error"], row["budget_ratio"]) == ("out", 0.002, 0.5)
    assert row["error_dq"] == 0.003 and row["error_dk"] is None


def test_a_wrong_row_is_beyond_the_budget_however_small_beside_the_whole():
    accuracy = Accuracy(
        reference="float64",
        scope="all",
        relative={"out": 0.001, "dq": 0.003},
        budget={"out": 0.004, "dq": 0.004},
        worst_row={"out": 40.0, "dq": 0.1},
    )
    row = one(accuracy=accuracy)
    assert (row["error_tensor"], row["budget_ratio"], row["error"]) == ("out", 40.0, 0.001)


def test_a_tensor_without_an_error_is_infinitely_wrong():
    accuracy = Accuracy(
        reference="float64", scope="all", relative={"out": 0.002}, budget={"out": 0.004, "dq": 0.03}
    )
    row = one(accuracy=accuracy)
    assert row["error_tensor"] == "dq" and math.isinf(row["budget_ratio"])


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (OutOfMemory(requested_bytes=3 << 30, where="bwd"), "out of memory in bwd, asking for 3.00 GiB"),
        (OutOfMemory(requested_bytes=None, where="fwd"), "out of memory in fwd"),
        (TimedOut(seconds=120), "stopped after 120 s"),
        (Failed(type="ValueError", message="first\n  second"), "ValueError: first second"),
    ],
)
def test_each_outcome_has_a_reason_in_one_line(outcome, reason):
    row = one(outcome=outcome)
    assert row["status"] == outcome.status and row["reason"] == reason
    assert row["time_ms_median"] is None and row["tflops"] is None


def test_a_record_without_environment_has_empty_columns():
    row = one(environment=None, outcome=TimedOut(seconds=1))
    assert (
        row["device"] == "" and row["git_sha"] == "" and row["git_dirty"] is None and row["num_nodes"] is None
    )


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
            assert (value is None and column.type != "str") or isinstance(value, types[column.type]), (
                column.name,
                value,
            )


def test_order_follows_what_was_measured():
    records = quick_study()
    assert in_order(reversed(records)) == in_order(records)
    kinds = [entry.cell.kind for entry in in_order(records)]
    assert kinds == sorted(kinds, reverse=True)


def test_no_records_make_an_empty_frame():
    assert derived([]).shape == (0, len(COLUMNS))


def test_a_straggler_is_seen_and_named():
    cell = changed(kind="cp", strategy="ulysses", world=3)
    row = one(cell, samples=samples((1.0, 2.0, 9.0), (2.0, 2.0, 2.0), (3.0, 4.0, 3.0)))
    assert row["slowest_rank"] == 2 and row["straggler_percent"] == pytest.approx(50.0)
    pair = one(changed(kind="cp", strategy="ulysses", world=2), samples=samples((1.0,), (3.0,)))
    assert pair["slowest_rank"] == 1 and pair["straggler_percent"] == pytest.approx(
        50.0
    )  # above the middle of the two
    assert one()["straggler_percent"] is one()["slowest_rank"] is None


def test_costs_have_columns_of_their_names():
    row = one(costs={cost.name: float(number) for number, cost in enumerate(COSTS)})
    assert [row[cost.name] for cost in COSTS] == list(range(len(COSTS)))


def test_memory_above_the_shards_is_that_of_the_largest_rank():
    memory = Memory(
        peak_bytes=(9, 8), absolute_peak_bytes=(90, 80), above_shards_bytes=(3, 5), source="cuda_allocator"
    )
    assert one(memory=memory)["above_shards_bytes"] == 5 and one()["above_shards_bytes"] is None


def test_a_study_that_stands_aside_is_ranked_by_itself_alone():
    def of(kernel, study, **changes):
        return record(Cell(**CELL.model_dump() | {"kernel": kernel, **changes}), study=study)

    pairs = [of("flex", "pairs"), of("as_released_flex", "pairs")]
    values = [
        of("flex", "power"),
        of("flex", "power", input_values="small"),
        of("flex", "power", sustained=True),
    ]
    dense = of("flex", "dense")
    assert is_ranked(derived(pairs)).tolist() == [True, False]
    assert is_ranked(derived(values)).tolist() == [True, False, False]
    assert is_ranked(derived([*pairs, dense, *values])).tolist() == [False, False, True, False, False, False]
    mixed = [dense, of("as_released_flex", "dense"), of("naive", "dense")]
    assert is_ranked(derived([*mixed, of("naive", "other")])).tolist() == [True, False, True, True], (
        "most of it is as usual"
    )


def test_cycles_stand_beside_times():
    """A clock that falls makes calls longer, and leaves their cycles as they are; of several ranks rank 0
    counts."""
    row = one(samples=samples((1.0, 1.25, 2.0), timer="cuda_event", sm_clock_mhz=(2000.0, 1600.0, 1000.0)))
    assert row["mega_cycles_median"] == 2.0 and row["time_ms_median"] == 1.25
    assert one(samples=samples((1.0,)))["mega_cycles_median"] is None
    assert (
        one(samples=samples((1.0,), (9.0,), timer="cuda_event", sm_clock_mhz=(1500.0,)))["mega_cycles_median"]
        == 1.5
    )


def test_drift_and_precision_follow_from_samples_of_any_schema():
    rising = tuple(1.0 + 0.01 * number for number in range(20))
    row = one(samples=samples(rising))
    assert row["drift"] == "rising" and row["drift_percent"] == pytest.approx(100 * 0.14 / 1.095)
    assert (row["time_ms_low"], row["time_ms_high"]) == (rising[5], rising[14])
    assert row["precision_percent"] == pytest.approx(100 * 0.045 / 1.095)
    few = one(samples=samples((1.0, 1.1, 1.2, 1.3, 1.4)))
    assert few["drift"] == "unknown" and few["time_ms_low"] is None and few["precision_percent"] is None
    assert one(outcome=Unsupported(reason="no"))["drift"] == ""
