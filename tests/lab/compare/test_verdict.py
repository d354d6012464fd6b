"""Each outcome of a pair, and what does not depend on the records' order or on which side is which."""

import json
import math
import random
from typing import Any

import pytest

from longca.core.errors import UserError
from longca.lab.compare.comparison import Comparison, compare_published, compare_records
from longca.lab.compare.fail_on import matched, parse_fail_on
from longca.lab.compare.tables import Described, lines
from longca.lab.compare.verdict import Rule
from longca.lab.published.load import load_published
from longca.lab.ranking import RELATIONS, Resolutions
from longca.lab.store.text import number
from longca.lab.studies.outcome import Incorrect, OutOfMemory, Unavailable
from longca.lab.studies.record import Record
from tests.helpers.committed import committed
from tests.helpers.compare import H100, H200, cell, failed, timed
from tests.helpers.records import gpu_study, record

OOM = OutOfMemory(requested_bytes=1 << 30, where="fwd")
MISSING = Unavailable(reason="module 'fa3' is not installed")
KERNELS = ("cudnn_graph", "fa3", "flashmask", "flex", "band")  # four with rates of others, and one without


def outcome(a: Record, b: Record, **rule: Any) -> tuple[str, str]:
    [change] = compare_records([a], [b], rule=Rule(**rule)).changes
    return change.verdict.outcome, change.verdict.why


@pytest.mark.parametrize(
    ("a", "b", "expected", "why"),
    [
        (timed(1.0), timed(0.9), "faster", ""),
        (timed(1.0), timed(1.1), "slower", ""),
        (timed(1.0), timed(1.02), "same", ""),
        (timed(1.0, spread=0.06), timed(1.08, spread=0.06), "ambiguous", ""),
        (timed(), failed(OOM), "broke", "oom: out of memory in fwd"),
        (timed(), failed(Incorrect(reason="out is off")), "broke", "incorrect: out is off"),
        (failed(MISSING), timed(), "fixed", "was unavailable"),
        (failed(MISSING), failed(OOM), "untimed", "unavailable → oom"),
        (failed(OOM), failed(OOM), "untimed", "oom"),
        (timed(), timed(asked=cell(dtype="fp16")), "incomparable", "another dtype: bf16, fp16"),
        (timed(), timed(asked=cell(head_dim=64)), "incomparable", "another head dim: 128, 64"),
        (timed(digest="1" * 16), timed(digest="2" * 16), "incomparable", "another mask was sampled"),
        (
            timed(),
            timed(gpu="NVIDIA Nameless"),
            "incomparable",
            "no peak is known of NVIDIA Nameless: add it to config/hardware.yaml",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outcomes(a: Record, b: Record, expected: str, why: str):
    actual = outcome(a, b)
    assert actual[0] == expected and why in actual[1]


def test_speeds_differ_by_more_than_repeats_do():
    """The relation of the two sides sets the limit; a tolerance makes more of them the same, and never
    fewer."""
    known = Resolutions.known().of(H100, "model")
    small, large = (timed(1 + factor * math.expm1(known.log_ratio), gpu=H100) for factor in (0.9, 1.3))
    assert outcome(timed(gpu=H100), small)[0] == "same" and outcome(timed(gpu=H100), large)[0] == "slower"
    assert (
        outcome(timed(gpu=H100), small, tolerance=0.001)[0] == "same"
        and outcome(timed(gpu=H100), large, tolerance=0.2)[0] == "same"
    )
    comparison = compare_records([timed(gpu=H100)], [large])
    (line,) = comparison.resolutions
    assert line.startswith("1 pair of ") and f"the same within {known.percent}" in line and "repeats" in line
    (pair,) = comparison.as_dict()["pairs"]
    assert pair["ratio_low"] < pair["ratio"] < pair["ratio_high"] < 1 and pair["relation"] in RELATIONS
    assert comparison.methods[0].mean_text == f"{number(pair['ratio'])}×"
    assert compare_records([timed(gpu=H100)], [small]).methods[0].mean_text.endswith("×, the same")


def on_cpu(
    ms: float, *, run: str = "r1", number: int = 0, started_at: str = "2026-11-20T10:00:00Z"
) -> Record:
    """A record of a CPU, of which the package knows no repeats. Cells differ in their seeds."""
    asked = cell(seqlen=8192 + 128 * number)
    made = timed(ms, asked=asked)
    assert made.samples is not None
    samples = made.samples.model_copy(update={"timer": "monotonic"})
    return record(asked, mask=made.mask, samples=samples, run_id=run, started_at=started_at)


def test_a_device_is_never_judged_by_repeats_of_another_model():
    """A CPU by those of GPUs, say: nothing is told apart, a line says what to do, and no number pretends."""
    a, b = [on_cpu(1.0)], [on_cpu(2.0, run="r2")]
    comparison = compare_records(a, b)
    assert comparison.counts == {"ambiguous": 1} and comparison.resolutions == []
    assert comparison.methods[0].mean_text == "0.500×, not told apart"
    (line,) = comparison.unknown
    assert line.startswith(
        "not told apart, 1 pair: fewer than 20 repeats are known of one device in two runs"
    )
    assert "Example CPU" in line and "`longca compare A1,A2 B1,B2`" in line and "`--tolerance 10%`" in line
    sides = (Described("A", "old"), Described("B", "new"))
    text = "\n".join(lines(comparison, sides))
    assert line in text and "H100" not in text and "H200" not in text and "the same within" not in text
    (pair,) = comparison.as_dict()["pairs"]
    assert pair["ratio"] == 0.5 and pair["resolution"] is pair["ratio_low"] is pair["ratio_high"] is None
    assert matched(comparison, parse_fail_on("slower", Rule())) == []
    json.dumps(comparison.as_dict(), allow_nan=False)
    assert compare_records(a, a).counts == {"same": 1}
    assert (
        outcome(a[0], b[0], tolerance=0.5)[0] == "slower" and outcome(a[0], b[0], tolerance=2.0)[0] == "same"
    )


def test_repeats_of_the_two_sides_judge_a_device_that_nothing_is_known_of():
    """Twenty cells measured twice on each side, in two runs; the last record of each counts."""
    late = "2026-11-21T10:00:00Z"

    def side(ms: float, *runs: str) -> list[Record]:
        return [
            on_cpu(ms * (1 + 0.001 * number * index), run=run, number=number, started_at=day)
            for index, (run, day) in enumerate(zip(runs, ("2026-11-20T10:00:00Z", late), strict=True))
            for number in range(20)
        ]

    a, b, c = side(1.0, "r1", "r2"), side(1.2, "r3", "r4"), side(1.001, "r5", "r6")
    assert compare_records(a, b).counts == {"slower": 20}
    assert compare_records(a, c).counts == {"same": 20}
    comparison = compare_records(a, b)
    assert comparison.unknown == [] and "40 repeats on one device in two runs" in comparison.resolutions[0]


def test_new_and_gone():
    comparison = compare_records([timed()], [timed(asked=cell(seqlen=4096))])
    assert comparison.counts == {"new": 1, "gone": 1}
    assert comparison.conclusion == "No cell ran on both sides; 1 new, 1 gone."


def test_gpus_are_compared_by_share_of_peak_unless_rates_are_asked():
    a100 = "NVIDIA A100-SXM4-80GB"  # 312 TFLOP/s of peak to 989
    slow = timed(2.0, gpu=a100)
    fast = timed(1.0)
    assert outcome(slow, fast) == ("slower", "")
    assert outcome(slow, fast, by_rate=True) == ("faster", "")
    comparison = compare_records([slow], [fast])
    assert comparison.conclusion.startswith("By share of peak, B is slower in 1 cell")
    assert comparison.bases == [f"1 pair by share of peak: {a100} (312 TFLOP/s) → {H200} (989 TFLOP/s)"]
    assert comparison.changes[0].verdict.ratio == pytest.approx(2 * 312 / 989)


def test_a_gpu_model_meets_its_own_first():
    comparison = compare_records([timed(1.0, gpu=H100), timed(1.0)], [timed(2.0), timed(1.0, gpu=H100)])
    assert comparison.counts == {"slower": 1, "same": 1}
    assert {change.verdict.basis for change in comparison.changes} == {"time"}


def test_the_last_record_of_a_cell_counts():
    old = timed(5.0, started_at="2026-11-20T10:00:00Z")
    new = timed(1.0, started_at="2026-11-21T10:00:00Z")
    assert compare_records([new, old], [timed(1.0)]).counts == {"same": 1}


def test_strategies_are_compared_with_the_same_number_of_ranks():
    ring = {"kind": "cp", "strategy": "ring_p2p"}
    two, four = (timed(asked=cell(world=world, **ring)) for world in (2, 4))
    assert compare_records([two], [four]).counts == {"new": 1, "gone": 1}
    assert compare_records([two], [two]).counts == {"same": 1}


def test_a_set_is_the_same_as_itself_in_any_order_and_mirrors():
    a = [*gpu_study(H100), timed(1.0, spread=0.06)]
    b = [
        entry
        if entry.samples is None
        else entry.model_copy(
            update={
                "samples": entry.samples.model_copy(
                    update={
                        "time_ms": tuple(
                            tuple(time * (1 + 0.4 * random.Random(entry.cell_id).random()) for time in rank)
                            for rank in entry.samples.time_ms
                        )
                    }
                )
            }
        )
        for entry in a[:-1]
    ]
    b.append(timed(1.08, spread=0.06))
    alone = compare_records(a, a)
    assert set(alone.counts) == {"same", "untimed"} and alone.counts["untimed"] == sum(
        entry.outcome.status != "ok" for entry in a
    )
    assert (
        all(change.verdict.ratio == 1 for change in alone.of("same"))
        and "the same in all" in alone.conclusion
    )
    first = compare_records(a, b)
    shuffled = random.Random(1).sample(a, len(a)), random.Random(2).sample(b, len(b))
    other = compare_records(*shuffled)
    assert first == other and first.as_dict() == other.as_dict()
    assert {"slower", "same", "ambiguous"} <= first.counts.keys()
    mirrored = compare_records(b, a)
    swapped = {
        "faster": "slower",
        "slower": "faster",
        "broke": "fixed",
        "fixed": "broke",
        "new": "gone",
        "gone": "new",
    }
    assert mirrored.counts == {name: first.counts[swapped.get(name, name)] for name in mirrored.counts}


def test_methods_and_extremes():
    masks = ("causal", "full", "shared_question", "prefix_lm")
    a = [timed(1.0, asked=cell(mask=mask)) for mask in masks]
    b = [timed(ms, asked=cell(mask=mask)) for mask, ms in zip(masks, (0.5, 2.0, 4.0, 1.0), strict=True)]
    comparison = compare_records(a, b)
    assert comparison.conclusion == (
        "B is faster in 1 cell (best 2.00×: fa3 causal 8K fwd), slower in 2 "
        "(worst 0.250×: fa3 shared_question 8K fwd), the same in 1."
    )
    [row] = comparison.methods
    assert row.mean_ratio == pytest.approx((2 * 0.5 * 0.25 * 1) ** 0.25) and row.counts == {
        "slower": 2,
        "faster": 1,
        "same": 1,
    }
    assert [change.pair.cell.mask for change in comparison.largest(2)] == ["shared_question", "causal"]


def test_it_is_said_where_one_side_rested_and_the_other_did_not():
    old = timed(1.0)
    new = timed(0.95)
    assert new.samples is not None
    rested = new.model_copy(update={"samples": new.samples.model_copy(update={"duty": 0.5})})
    numbers = [
        compare_records([a], [b]).num_rested_on_one_side
        for a, b in ((old, rested), (rested, old), (old, new), (rested, rested))
    ]
    assert numbers == [1, 1, 0, 0]
    (change,) = compare_records([old], [rested]).changes
    assert (change.verdict.outcome, change.verdict.why) == (
        "incomparable",
        "calls of B alone had rests of the GPU",
    )
    sides = (Described("A", "old"), Described("B", "new"))
    both = compare_records(
        [old, timed(1.0, asked=cell(mask="full"))], [new, timed(1.0, asked=cell(mask="full"))]
    )
    assert both.protocols == ""
    other = [
        record.model_copy(update={"samples": record.samples.model_copy(update={"duty": 0.5})})
        for record in (timed(1.0, asked=cell(mask="full")), timed(2.0, asked=cell(mask="full")))
    ]
    mixed = "\n".join(lines(compare_records([old, other[0]], [new, other[1]]), sides))
    assert "1 of 2 pairs was measured by the protocol with rests, on both sides" in mixed
    shown, silent = ("\n".join(lines(compare_records([old], [b]), sides)) for b in (rested, new))
    assert "in 1 pair, calls of one side alone had rests" in shown and "rests" not in silent


def test_controls_tell_of_the_machine_and_are_no_finding():
    matmul = cell(kernel="matmul", mask="full")
    fast, slow = (record(matmul, gpu=H200, samples=timed(ms, asked=matmul).samples) for ms in (1.0, 2.0))
    comparison = compare_records([timed(), fast], [timed(), slow])
    assert comparison.counts == {"same": 1} and comparison.controls == [("matmul", 0.5)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("slower", ["slower: 2 cells"]),
        ("slower:50%", ["slower:50%: 1 cell"]),
        ("slower: 10 %, broke", ["slower:10%: 2 cells", "broke: 1 cell"]),
        ("incorrect", ["incorrect: 1 cell"]),
        ("oom,gone,faster:5", []),
    ],
)
def test_fail_on(text: str, expected: list[str]):
    masks = ("causal", "full", "prefix_lm")
    a = [timed(1.0, asked=cell(mask=mask)) for mask in masks]
    b = [
        timed(1.2, asked=cell(mask="causal")),
        timed(1.6, asked=cell(mask="full")),
        failed(Incorrect(reason="off"), cell(mask="prefix_lm")),
    ]
    assert matched(compare_records(a, b), parse_fail_on(text, Rule())) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slowr", "'slower'"),
        ("slower:x", "not a percentage"),
        ("broke:3%", "has no limit"),
        ("slower:1%", "--tolerance 1%"),
        ("same", "Unknown condition"),
    ],
)
def test_conditions_that_cannot_be(text: str, expected: str):
    with pytest.raises(UserError) as error:
        parse_fail_on(text, Rule(tolerance=0.03))
    assert expected in str(error.value)


def test_committed_records_against_published_rates():
    """Every pair asks for the same; NVIDIA's own table is near ours, and what has no partner is counted."""
    records = committed(
        "h200-dense", mask=("full", "causal", "causal_document", "full_document"), kernel=KERNELS
    )
    rates = load_published()
    comparison = compare_published(records, rates)
    assert comparison == compare_published(records[::-1], rates[::-1]) and comparison.num_alone is not None
    paired = {change.pair.cell for change in comparison.changes}
    shown = {entry.cell for entry in records if entry.work is None}
    assert comparison.num_alone[0] == len(shown - paired) and len(paired) > 300
    nvidia = [change for change in comparison.changes if change.method == "cudnn_graph · cuDNN 9.19.1"]
    assert len(nvidia) == 20 and {change.verdict.basis for change in nvidia} == {"rate"}
    assert all(0.9 < (change.verdict.ratio or 0) < 1.25 for change in nvidia)
    rest = [change for change in comparison.changes if change not in nvidia]
    assert {change.verdict.basis for change in rest} == {"share of peak"}
    assert any("sampler" in note for _, note in comparison.notes)
    [fa3] = [
        change
        for change in rest
        if change.method == "fa3 · MagiAttention" and change.pair.cell == cell(mask="causal", seqlen=32768)
    ]
    assert fa3.pair.b and fa3.pair.b.tflops and fa3.pair.b.tflops.middle == 676


def test_what_was_not_timed_here_has_no_verdict():
    comparison = compare_published([failed(OOM)], load_published())
    assert set(comparison.counts) == {"untimed"} and isinstance(comparison, Comparison)
    assert (
        comparison.conclusion
        == f"No cell ran on both sides; {comparison.counts['untimed']} ran on neither side."
    )
    assert (
        compare_published([timed(asked=cell(seqlen=96))], load_published()).conclusion
        == "No cell has a published rate."
    )


def test_each_mesh_of_a_strategy_is_held_against_its_published_rate():
    rate = next(entry for entry in load_published() if entry.strategy == "usp" and entry.world)
    fields = {
        name: getattr(rate, name)
        for name in (
            "kind",
            "kernel",
            "strategy",
            "world",
            "mask",
            "seqlen",
            "num_q_heads",
            "num_kv_heads",
            "head_dim",
            "dtype",
            "direction",
        )
    }
    records = [timed(asked=cell(**fields, strategy_params=params)) for params in ({}, {"heads": 8})]
    methods = {change.pair.cell.method for change in compare_published(records, [rate]).changes}
    assert methods == {"usp+fa3", "usp[heads=8]+fa3"}
