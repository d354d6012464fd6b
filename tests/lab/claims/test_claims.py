"""The study's claims: each is complete, is flipped by records that say otherwise, and judges the records of
the project."""

import re

import pandas as pd
import pytest

from longca.lab.claims.by_gpu import judged
from longca.lab.claims.contract import (
    STATUSES,
    Claim,
    Gaps,
    Observation,
    Part,
    Verdict,
    Verdicts,
    all_claims,
    decided,
    decided_in_parts,
    summary,
)
from longca.lab.claims.evidence import gpu_note, missing, of_one_protocol, points
from longca.lab.claims.pairs import Pair, pairs, rivals
from longca.lab.store.columns import COLUMNS
from longca.lab.store.load import committed as committed_files
from longca.lab.store.load import load, load_columns
from longca.lab.store.table import derived, of_grid
from longca.lab.store.text import short_device
from tests.helpers.claims.cases import CASES, REGULAR
from tests.helpers.claims.verdicts import FRAME_TYPES, GIB, grid, table
from tests.helpers.support import ROOT

CLAIMS = {claim.number: claim for claim in all_claims()}


@pytest.mark.slow
def test_the_committed_table_is_derived_from_its_records():
    again = derived(load(*committed_files()).records)
    records = load_columns(committed_files(), [column.name for column in COLUMNS])[0]
    records = records.astype({column.name: FRAME_TYPES[column.type] for column in COLUMNS})
    own = of_grid(records).reset_index(drop=True)
    samples = [None if times is None else tuple(times) for times in own.samples_ms]
    pd.testing.assert_frame_equal(again, own.assign(samples_ms=samples))


def test_the_study_has_23_claims():
    assert [claim.number for claim in all_claims()] == list(range(1, 24))


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_a_claim_is_complete_and_open_without_records(claim):
    for text in (claim.label, claim.sentence, claim.source, claim.overturned_by):
        assert len(text) > 15 and not text.endswith(" ")
    assert claim.sentence.endswith(".") and len(claim.label) <= 60
    assert claim.gpus in ("one GPU", "2–4 GPUs", "several nodes") and claim.trust in (
        "paper",
        "second-hand",
        "reading of its code",
    )
    for verdict, needed in ((claim.judge(table()), claim.gpus), (claim.judge_as_study(table()), "(needs ")):
        assert verdict.status == "open" and not verdict.cell_ids and not verdict.exceptions
        assert verdict.missing and all(needed in text for text in verdict.missing)


@pytest.mark.parametrize("number", CASES)
def test_records_flip_a_claim(number):
    actual = [CLAIMS[number].judge(table(rows)) for _, rows in CASES[number]]
    assert [verdict.status for verdict in actual] == [status for status, _ in CASES[number]]
    assert len({verdict.status for verdict in actual}) > 1
    for verdict in actual:
        assert (
            bool(verdict.exceptions) == (verdict.status in ("contradicted", "holds with exceptions"))
            or verdict.status == "open"
        )


def test_every_claim_has_records_that_flip_it():
    assert CASES.keys() == CLAIMS.keys()


@pytest.mark.long
def test_the_records_of_the_project_are_judged(committed):
    records = committed[0]
    verdicts = {number: judgement.repaired for number, judgement in committed[1].items()}
    for number, verdict in verdicts.items():
        for entry in (verdict, *verdict.elsewhere):
            known = set(records.cell_id[records.device.map(short_device) == entry.gpu])
            assert entry.status in STATUSES and entry.finding.startswith(f"On {entry.gpu}: ")
            assert (
                re.search(r"\d", entry.finding) and "nan" not in entry.finding and "–×" not in entry.finding
            ), number
            assert not re.search(r"\b1 [a-z]+s\b|points needs", entry.finding), number
            assert len(entry.finding) <= 260 and entry.cell_ids and set(entry.cell_ids) <= known
            assert ("H200" in entry.note) == (entry.gpu == "H200") and len(set(entry.exceptions)) == len(
                entry.exceptions
            )
            assert all(
                re.search(rf"\b{entry.gpu}\b", text) and not ("H100" in text and "H200" in text)
                for text in entry.exceptions
            )
        assert len({entry.gpu for entry in (verdict, *verdict.elsewhere)}) == 1 + len(verdict.elsewhere)
    assert sum(verdict.status == "open" for verdict in verdicts.values()) < len(verdicts) / 2


def test_the_committed_page_says_what_the_command_says(committed):
    """Both judge the same records, those of play-offs included."""
    of_page = pd.read_csv(ROOT / "reports/paper/data/claims.csv", keep_default_na=False)
    findings = {
        (number, reading, verdict.gpu): [verdict.status, verdict.finding]
        for number, judgement in committed[1].items()
        for reading, first in judgement.named
        for verdict in (first, *first.elsewhere)
    }
    shown = zip(of_page.number, of_page.reading, of_page.gpu, of_page.status, of_page.finding, strict=True)
    assert {(number, reading, gpu): verdict for number, reading, gpu, *verdict in shown} == findings


def test_claims_of_several_nodes_say_what_they_judged(committed):
    for number, judgement in committed[1].items():
        verdict = judgement.repaired
        if CLAIMS[number].gpus == "several nodes":
            parts = {entry.gpu: entry.part for entry in (verdict, *verdict.elsewhere)}
            # ranks are compared by one protocol: on 4 GPUs they rest, on 2 and 3 they do not
            assert re.search("[34] ranks of one host", parts["H200"]) and "2 ranks of one host" in parts.get(
                "H100", "2 ranks of one host"
            )
            assert (
                all("96 ranks (needs several nodes)" in text for text in verdict.missing) and verdict.missing
            )


def test_each_gpu_is_judged_by_itself():
    """No point of one GPU is beside one of another, and the study's decides where it can."""
    h100, h200 = ({"device": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    blocks = {"kernel": "flashinfer", "mask": "block_sparse_uniform", "seqlen": 32768, "heads": "64:64"}
    large = "block=128, density=0.5"
    small = "block=64, density=0.5"
    both = table(
        *(
            grid(rate, **blocks, **gpu, mask_params=params)
            for rate, params, gpu in (
                (500, large, h100),
                (400, small, h100),
                (500, large, h200),
                (250, small, h200),
            )
        )
    )
    verdict = judged([CLAIMS[10]], both)[0].repaired
    (other,) = verdict.elsewhere
    assert (verdict.gpu, verdict.status, other.gpu, other.status) == ("H100", "contradicted", "H200", "holds")
    assert "1.25× the rate" in verdict.finding and other.finding.startswith(
        "On H200: Blocks of 128 reach 2.00×"
    )
    assert verdict.told_elsewhere == (other.finding.replace("On H200:", "On H200, holds:"),)
    crossed = table(
        grid(500, **blocks, **h100, mask_params=large), grid(250, **blocks, **h200, mask_params=small)
    )
    alone = judged([CLAIMS[10]], crossed)[0].repaired
    assert alone.status == "open" and not alone.cell_ids
    assert [
        short_device(name)
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")
    ] == ["H100", "H100 NVL", "A100-SXM4-80GB", "H200"]


def test_a_summary_counts_the_study_first_and_repaired_verdicts_by_gpu():
    held, contradicted, unknown = (Verdict(status, "") for status in ("holds", "contradicted", "open"))
    first = [Verdicts(held, held), Verdicts(held, contradicted), Verdicts(unknown, contradicted)]
    assert summary(first) == (
        "3 claims, as the study has it: 2 hold, 1 is open. "
        "With repaired code and today's kernels: 1 holds, 2 are contradicted"
    )
    assert decided("unused").status == "open" and summary([]) == "No claim"
    both = Verdict(
        "holds",
        "",
        cell_ids=("a",),
        gpu="H100",
        elsewhere=(Verdict("contradicted", "", cell_ids=("a",), gpu="H200"),),
    )
    alone = Verdict("holds with exceptions", "", cell_ids=("b",), gpu="H200")
    of_gpus = [Verdicts(unknown, verdict) for verdict in (both, alone, Verdict("open", "", gpu="H100"))]
    assert summary(of_gpus).endswith(
        "today's kernels, on H100: 1 holds, 2 are open; "
        "on H200: 1 holds with exceptions, 1 is contradicted, 1 is open"
    )


def test_parts_have_verdicts_and_those_that_are_open_do_not_decide():
    good, bad = ([Observation("", holds, (str(holds),))] * 4 for holds in (True, False))
    verdict = decided_in_parts(
        Part("first", "one", good), Part("second", "two", bad), Part("third", "not measured")
    )
    assert (
        verdict.status == "contradicted" and verdict.finding == "Fails: two; holds: one; open: not measured"
    )
    assert [(part.name, part.status) for part in verdict.parts] == [
        ("first", "holds"),
        ("second", "contradicted"),
        ("third", "open"),
    ]
    assert verdict.part == "first, second" and verdict.cell_ids == ("True", "False")
    beyond = decided_in_parts(Part("first", "one", good), Part("second", "two", bad, is_open=True))
    assert (beyond.status, beyond.finding, beyond.part) == ("holds", "One; open: two", "first")
    assert decided_in_parts(Part("first", "one is not measured")).status == "open"
    assert (
        decided_in_parts(Part("only", "all hold", good), missing=Gaps(("x",), 1, 2)).part
        == "1 of 2 points asked for"
    )


def test_a_claim_of_a_user_has_one_verdict():
    class Mine(type(CLAIMS[10])):
        number = 24
        judge_as_study = Claim.judge_as_study

    (judgement,) = judged([Mine()], table(CASES[10][0][1]))
    assert judgement.as_study == judgement.repaired and judgement.as_study.status == "holds"


def test_a_claim_that_fails_in_one_part_says_so_first():
    def finding(number, index):
        return CLAIMS[number].judge(table(CASES[number][index][1])).finding

    assert finding(5, 1).startswith(
        "Fails: documents widen the gap at none of 3 points; holds: backward is slower at all 6 points"
    )
    assert finding(5, 2).startswith("Fails: backward is slower") and finding(5, 0).startswith(
        "Backward is slower"
    )
    assert finding(17, 2).startswith(
        "Fails: more ranks than heads are refused at 0 of 1 point, since ranks without heads"
    )
    assert finding(12, 2).startswith("Fails: memory is less at none of 3 points; holds: rates")
    memory = CLAIMS[4].judge(
        table(
            grid(50, kernel="sdpa", mask="causal_document", seqlen=32768, absolute_peak_bytes=GIB),
            grid(None, kernel="naive", mask="causal_document", seqlen=32768, status="oom"),
        )
    )
    assert (
        memory.finding
        == "Fails: SDPA is beyond 80 GB from 32K on at 0 of 1 point and needs 1.00 GiB at 32K; "
        "holds: naive is beyond 80 GB from 32K on at the one point"
    )


def test_points_name_their_gpu():
    h100, h200, other = (
        {"device": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H100 NVL")
    )

    def told(*groups, **where):
        return [point.where for point in points(table(*groups), **where)]

    fa3 = {"kernel": "fa3"}
    assert told(grid(500, **fa3, **h200)) == ["full 8K fwd 64:8 on H200"]
    assert told(grid(500, **fa3, **h100), grid(500, **fa3, **h200)) == [
        "full 8K fwd 64:8 on H100",
        "full 8K fwd 64:8 on H200",
    ]
    assert told(grid(500, **fa3, **h100), grid(500, kernel="fa2", **h200), kernel="fa2") == [
        "full 8K fwd 64:8 on H200"
    ]
    assert told(grid(500, **fa3, **h100), grid(500, **fa3, **other))[1] == "full 8K fwd 64:8 on H100 NVL"
    ring = {"strategy": "ring_p2p", "kernel": "band", "world": 2}
    assert told(grid(500, **ring, **h200), grid(500, **fa3, **h100), kind="cp") == [
        "full 8K fwd 64:8 on 2 ranks of H200"
    ]
    assert (
        "on H100: 500 on causal_sliding_window, 300 on full"
        in CLAIMS[6]
        .judge(
            table(
                *(
                    grid(rate, kernel="flex", mask=masks, **h100)
                    for rate, masks in ((500, REGULAR[1:]), (300, REGULAR[0]))
                ),
                grid(500, **fa3, **h200),
            )
        )
        .exceptions[0]
    )


def test_points_are_medians_over_seeds_that_are_right():
    records = table(
        *(grid(rate, kernel="fa3", seed=seed) for seed, rate in enumerate((400, 500, 900))),
        grid(None, kernel="fa3", seed=3, status="incorrect"),
        grid(990, kernel="matmul", is_control=True),
        grid(700, kernel="fa2", device_type="cpu"),
        grid(None, kernel="fa2", status="unavailable"),
    )
    (point,) = points(records, ok=False)
    assert (point.rate, len(point.cell_ids), point.where) == (500, 4, "full 8K fwd 64:8 on H200")
    assert not points(records, kernel="fa2") and not points(records, seqlen=lambda length: length > 8192)


def test_pairs_are_of_the_seeds_that_both_have():
    records = table(
        grid(400, kernel="fa3", seed=[0, 1]), grid(800, kernel="fa3", seed=2), grid(400, kernel="fa2", seed=2)
    )
    (pair,) = pairs(points(records, kernel="fa3"), points(records, kernel="fa2"), "kernel")
    assert (
        pair.ratio == 2
        and pair.order == "more"
        and set(pair.observed(True).cell_ids) == set(records.cell_id[2:])
    )
    assert not pairs(points(records, kernel="fa3"), points(records, kernel="fa2"), "direction")


@pytest.mark.parametrize(
    ("rate", "half", "order"),
    [
        (510, 0.005, "same"),
        (490, 0.005, "same"),
        (600, 0.005, "more"),
        (420, 0.005, "less"),
        (600, 0.3, "same"),
    ],
)
def test_rates_within_the_resolution_or_their_own_samples_are_the_same(rate, half, order):
    samples = [1e3 / rate * (1 + half * step) for step in (-1, -0.5, 0, 0.5, 1)]
    records = table(grid(rate, kernel="fa3", samples_ms=tuple(samples)), grid(500, kernel="fa2"))
    first, second = (points(records, kernel=name)[0] for name in ("fa3", "fa2"))
    assert Pair(first, second).order == order and Pair(first, second).ratio == pytest.approx(rate / 500)
    assert Pair(second, first).order == {"more": "less", "less": "more"}.get(order, "same")


def test_a_play_off_decides_between_its_kernels():
    own = [*grid(500, kernel="fa3"), *grid(560, kernel="fa2"), *grid(400, kernel="flex")]
    played = [*grid(600, kernel="fa3"), *grid(540, kernel="fa2")]
    records = table(own, played).assign(playoff=["", "", "", "p", "p"])
    fa3, fa2, flex = (points(records, kernel=name)[0] for name in ("fa3", "fa2", "flex"))
    assert (fa3.rate, fa2.rate, flex.rate) == (600, 540, 400) and len(fa3.cell_ids) == 1
    assert Pair(fa3, fa2).order == "more" and Pair(fa3, fa2).ratio == pytest.approx(600 / 540)
    assert Pair(fa3, flex).ratio == pytest.approx(500 / 400), "flex did not play: both by themselves"


def test_of_several_studies_one_counts():
    """That which measured the most methods of the case: a cell that two studies measured is one point of one
    number."""
    few = grid(300, kernel="fa3", study="few", started_at="2026-11-24T00:00:00Z")
    records = table(few, grid(500, kernel=["fa3", "fa2"], study="dense", started_at="2026-11-23T00:00:00Z"))
    (fa3,) = points(records, kernel="fa3")
    assert fa3.rate == 500 and len(fa3.cells) == 1


def test_rates_with_rests_and_without_make_no_pair():
    """Two kernels were measured anew under 64:8 heads, one of them under 64:64."""
    heads = ["64:8", "64:64"]
    observed = points(
        table(
            grid(600, kernel="fa3", method="fa3", heads=heads, duty=0.5),
            grid(500, kernel="fa2", method="fa2", heads="64:8", duty=0.5),
            grid(500, kernel="fa2", method="fa2", heads="64:64"),
            grid(700, kernel="sdpa", method="sdpa", heads=heads),
        ),
        kernel=("fa3", "fa2", "sdpa"),
    )
    by_name = {(point.kernel, point.heads): point for point in observed}
    left_out = {name for name, point in by_name.items() if point.ranked is None}
    assert left_out == {("sdpa", "64:8"), ("fa3", "64:64")} and all(point.ok for point in observed)
    assert [(pair.second.kernel, pair.ratio) for _, pair in rivals(observed, "fa3")] == [
        ("fa2", pytest.approx(1.2))
    ]
    fa2 = [by_name["fa2", name] for name in heads]
    assert pairs(fa2[:1], fa2[1:], "heads") == [], "their cases are of two protocols"
    assert of_one_protocol([*fa2, by_name["sdpa", "64:64"]]) == [fa2[1], by_name["sdpa", "64:64"]]


def test_a_verdict_over_both_protocols_says_so():
    rows = [
        row
        for length, duty in ((8192, 0.5), (16384, None))
        for kernel, rate in (("flashmask", 600), ("flex", 500))
        for row in grid(rate, kernel=kernel, method=kernel, mask="causal_blockwise", seqlen=length, duty=duty)
    ]
    claim = next(claim for claim in all_claims() if claim.name == "flashmask_over_flex")
    (verdicts,) = judged([claim], table(rows))
    verdict = verdicts.repaired
    assert (
        len(verdict.cell_ids) == 4
        and "2 of 4 cells by the protocol with rests; the two are never compared." in verdict.note
    )


def test_several_masks_are_compared_by_all_seeds():
    records = table(
        grid(500, kernel="fa3", mask="full", seed=0),
        *(
            grid(rate, kernel="fa3", mask="full_document", seed=seed)
            for seed, rate in enumerate((100, 250, 300))
        ),
    )
    (pair,) = pairs(points(records, mask="full_document"), points(records, mask="full"), "mask")
    assert pair.ratio == pytest.approx(0.5) and pair.order == "less"


def test_a_ratio_is_above_another_only_if_repeats_tell_them_apart():
    def pair(backward):
        both = points(table(grid(backward, kernel="fa3", direction="bwd"), grid(500, kernel="fa3")))
        return pairs(both[:1], both[1:], "direction")[0]

    assert pair(400).is_above(pair(300)) and not pair(300).is_above(pair(400))
    assert not pair(400).is_above(pair(398)) and not pair(398).is_above(pair(400))


def test_the_best_rival_is_the_fastest():
    records = table(
        grid(500, kernel="fa3", seqlen=[8192, 16384]), grid(300, kernel="fa2"), grid(600, kernel="cudnn")
    )
    ((point, pair),) = rivals(points(records), "fa3")
    assert point.seqlen == 8192 and pair.second.kernel == "cudnn"


def test_missing_points_are_told_together():
    records = table(grid(500, kernel="fa3", seqlen=[8192, 16384]), grid(None, kernel="fa2", status="oom"))
    gaps = missing(points(records, ok=False), "one GPU", kernel=("fa3", "fa2"), seqlen=(8192, 16384, 32768))
    assert gaps.judged == "3 of 6 points asked for"
    assert sorted(gaps.texts) == ["fa2; 16K (needs one GPU)", "fa3, fa2; 32K (needs one GPU)"]


def test_the_note_says_what_another_gpu_means():
    notes = [
        gpu_note(points(table(grid(500, device=device, peak_tflops=peak))))
        for device, peak in (
            ("NVIDIA H100 80GB HBM3", 989.0),
            ("NVIDIA H200", 989.0),
            ("NVIDIA A100-SXM4-80GB", 312.0),
        )
    ]
    assert notes[0] == "" and "so that rates compare" in notes[1] and "312 and 989" in notes[2]
    assert notes[1].startswith("Measured on NVIDIA H200, the study on H100 80 GB")
    both = [
        *grid(500, device="NVIDIA H100 80GB HBM3", peak_tflops=989.0),
        *grid(500, device="NVIDIA H200", peak_tflops=989.0),
    ]
    assert gpu_note(points(table(both))).startswith(
        "Measured on an H100 as in the study, and on NVIDIA H200: "
    )


EXPECTED = {  # claim → (as the study has it, with repaired code on the study's GPU, the reason)
    1: (
        "holds with exceptions",
        "holds with exceptions",
        "cuDNN is ahead on documents: the study's of 4K, true ones of 2K and 4K",
    ),
    2: ("holds", "holds", "only FlashMask, a stand-in here, is not judged as the study has it"),
    3: ("holds", "holds", "masks that equal a regular one at 1K and 2K are no exceptions"),
    4: (
        "contradicted",
        "contradicted",
        "SDPA with a mask and KV heads of its own fits, in the very call of the study",
    ),
    5: (
        "holds with exceptions",
        "contradicted",
        "the study's documents widen the gap at three points in four, true ones at fewer than half",
    ),
    6: ("holds", "contradicted", "the study counts half of a sliding window, and its documents are short"),
    7: ("open", "holds with exceptions", "FlashMask here is ours"),
    9: ("open", "contradicted", "FA2-Sparse here is ours"),
    12: (
        "holds with exceptions",
        "holds with exceptions",
        "FlexAttention gains from 64 KV heads in short backward calls",
    ),
    13: ("holds", "contradicted", "an eager block mask has no memory; one made of blocks needs none"),
}


@pytest.mark.parametrize("number", EXPECTED)
def test_the_committed_records_give_the_expected_verdicts(committed, number):
    as_study, repaired, reason = EXPECTED[number]
    verdicts = committed[1][number]
    assert (verdicts.as_study.status, verdicts.repaired.status) == (as_study, repaired), reason
    assert verdicts.repaired.gpu == "H100" and len(verdicts.as_study.finding) <= 400
    assert not any("H200" in text for text in verdicts.as_study.exceptions) or number in (4, 13), (
        "of the study's GPU alone"
    )


def test_a_case_that_lacks_masks_does_not_fail():
    masks = ["full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window"]
    wide = [*grid(600, mask=masks, seqlen=8192), *grid(200, mask="prefix_lm", seqlen=8192)]
    narrow = grid(600, mask=masks, seqlen=16384)
    judged = CLAIMS[6].judge(table([*wide, *narrow]))
    assert "3.00× (1 of 1)" in judged.finding and not judged.exceptions
    judged = CLAIMS[6].judge(table([*wide, *narrow, *grid(590, mask="prefix_lm", seqlen=16384)]))
    assert "1.02–3.00× (1 of 2)" in judged.finding and judged.exceptions
