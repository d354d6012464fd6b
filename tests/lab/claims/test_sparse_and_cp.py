"""The claims about block-sparse kernels and context parallelism, by either verdict."""

import re

import numpy as np
import pytest

from longca.cp.baselines.paper_style import PaddedDocuments
from longca.kernels.backends.flashinfer import TOO_MANY
from longca.lab.claims.contract import all_claims
from longca.lab.claims.schedules import GATHER, RING
from longca.masks.build import build_mask
from longca.masks.traits import diagonal_segments
from tests.helpers.claims.cases import (
    BLOCKS_64,
    BLOCKS_128,
    BOTH,
    CASES,
    DOCUMENTS,
    LONG,
    SPARSE_LONG,
    WHOLE,
    cp,
    densities,
    rows,
    sparse,
)
from tests.helpers.claims.verdicts import table

CLAIMS = {claim.number: claim for claim in all_claims()}
H100 = {"device": "NVIDIA H100 80GB HBM3"}
FA3 = H100 | {"kernel": "fa3"}
DRAWN = FA3 | {"mask_params": "paper_compat=True", "corpus": "prolong512k_long"}
OURS = H100 | {"mask_params": "paper_compat=False", "corpus": "prolong512k"}
ANY_DENSITY = [f"block=64, density={density}, scores=random" for density in (0.2, 0.5, 0.8)]


@pytest.fixture
def judgements(committed):
    return committed[1]


@pytest.mark.parametrize(
    ("number", "as_study", "repaired"),
    [
        (8, "open", "open"),  # one or two of the study's four lengths have all three kernels
        (10, "holds", "holds"),
        (11, "contradicted", "contradicted"),  # VSA in Triton keeps 0.9 of its forward rate
        (14, "open", "open"),  # nothing ran out of memory; refusals for their counts say nothing of it
        (15, "open", "open"),  # 8 to 96 GPUs
        (16, "open", "open"),
        (17, "open", "open"),
        (18, "open", "open"),
        (19, "holds", "contradicted"),  # the study's ring sends all keys, the repaired one those in need
        (20, "open", "contradicted"),  # as the study has it only its ring is here, and matches
        (21, "open", "open"),
        (22, "open", "contradicted"),  # neither its kernel nor its documents nor its numbers of GPUs
        (23, "holds with exceptions", "contradicted"),  # the repaired ring adds nothing to the result's error
    ],
)
def test_committed_records_give_two_verdicts(judgements, number, as_study, repaired):
    judgement = judgements[number]
    assert (judgement.as_study.status, judgement.repaired.status) == (as_study, repaired)
    for verdict in (judgement.as_study, judgement.repaired, *judgement.repaired.elsewhere):
        shown = (verdict.finding, verdict.note, *(part.finding for part in verdict.parts))
        assert len(verdict.finding) <= 260 and not any("nan" in text or "–×" in text for text in shown)
    assert judgement.as_study.missing or as_study.startswith("holds")
    if CLAIMS[number].gpus == "one GPU":
        assert all("H200" not in text for text in judgement.as_study.exceptions)
        assert all(re.search("longca run as-study -k [a-z]", text) for text in judgement.as_study.missing)


def test_numbers_of_the_committed_records(judgements):
    """Those that decide, from the records by hand."""
    backward = {part.name: part for part in judgements[11].as_study.parts}
    assert backward["VSA"].status == "open" and "0.69–0.74×" in backward["VSA"].finding
    assert "lacks memory at none of 3 points" in judgements[14].as_study.finding
    assert "; 3 fail for another reason; " in judgements[14].as_study.finding
    assert "beside the study's all-gather 1/4 (0.83–0.98×)" in judgements[16].as_study.finding
    assert (
        "the study's ring 8/8 (0.30–0.64×), the study's all-gather 5/8 (0.46–0.81×)"
        in judgements[22].as_study.finding
    )
    assert [judgements[number].as_study.part for number in (16, 22)] == [
        "up to 2 ranks of one host, over band",
        "up to 2 ranks of one host, over band and this project's documents",
    ]
    assert [part.status for part in judgements[20].as_study.parts] == ["holds", "open", "open"]
    errors = {part.name: part.finding for part in judgements[23].as_study.parts}
    assert errors["the result has more error with band"] == "24/24 (1.01–1.24×)"
    assert errors["dQ has more error with fa3"].startswith("7/8 ")


def test_float32_sums_add_no_error(judgements):
    """The bound of claim 23: without bf16 sums, errors of results and dQ are not above those of Ulysses."""
    against = [
        text
        for text in judgements[23].repaired.exceptions
        if re.match("(the result|dQ): ring_p2p.band", text)
    ]
    assert len(against) == 78 and judgements[23].repaired.gpu == "H100"


def as_study(number, *groups):
    return CLAIMS[number].judge_as_study(table(*groups))


def repaired(number, *groups):
    return CLAIMS[number].judge(table(*groups))


def test_only_the_study_s_lengths_heads_and_gpu_count_of_block_sparse_kernels():
    both = [
        sparse("flashinfer", rate, params, seqlen=SPARSE_LONG, **H100)
        for rate, params in ((500, BLOCKS_128), (400, BLOCKS_64))
    ]
    assert as_study(10, *both).status == "contradicted"
    for other in ({"seqlen": 16384}, {"num_q_heads": 4, "num_kv_heads": 4}, {"device": "NVIDIA H200"}):
        assert as_study(10, *([row | other for row in group] for group in both)).status == "open"


def test_backward_of_vsa_is_judged_by_enough_settings_either_way():
    """Neither verdict asks for more than the other, by either reading."""

    def both(share, settings, params=ANY_DENSITY[0], kernels=("vsa", "vsa_triton")):
        setting = {"seqlen": SPARSE_LONG[:settings], **H100}
        return rows(
            sparse(list(kernels), 500, params, **setting),
            sparse(list(kernels), 500 * share, params, direction="bwd", **setting),
        )

    def statuses(*groups):
        return as_study(11, *groups).status, repaired(11, *groups).status

    assert statuses(both(0.5, 4)) == ("holds", "holds") and statuses(both(0.5, 3)) == ("open", "open")
    assert statuses(both(0.9, 4)) == ("contradicted",) * 2 and statuses(both(0.9, 3)) == ("open", "open")
    assert statuses(both(0.5, 3), both(0.9, 1, ANY_DENSITY[1])) == ("holds with exceptions",) * 2
    assert statuses(both(0.5, 2), both(0.9, 2, ANY_DENSITY[1])) == ("contradicted",) * 2
    assert as_study(11, both(0.5, 4, BLOCKS_128)).status == "open", "these are two blocks of 64 each"
    triton = both(0.9, 4, kernels=["vsa_triton"])
    assert as_study(11, triton, both(0.5, 4, kernels=["vsa"])).status == "contradicted"
    assert as_study(11, both(0.5, 4, kernels=["vsa"])).status == "open", "one of the two kernels"


def test_lack_of_memory_alone_is_evidence_of_flashinfer_s_memory():
    def verdicts(status, reason="", **fields):
        records = densities(status, densest=reason, **H100, **fields)
        return [verdict.status for verdict in (as_study(14, records), repaired(14, records))]

    few_heads = {"of": ("32:4", "64:8")}  # their q-blocks fit the wrapper's own buffer
    assert verdicts("oom") == ["open", "holds"], "the study's buffer does not hold 64 KV heads' q-blocks"
    for reason, status in (
        (TOO_MANY.format(3435134976), "unsupported"),
        (f"ValueError: FlashInfer: {TOO_MANY.format(1)}", "error"),
        ("this build has head dim 128 in bf16 only", "unsupported"),
        ("a fault", "error"),
    ):
        assert verdicts(status, reason) == ["open", "open"], reason
    assert verdicts("ok", **few_heads)[1] == "contradicted" and verdicts("oom", **few_heads)[1] == "holds"
    refused = repaired(14, densities("unsupported", densest=TOO_MANY.format(1), **H100))
    assert "lacks memory at none of 12 points" in refused.finding and "; 6 fail for" in refused.finding
    assert "no lack of memory" in refused.note and "6 undecided" in refused.finding


@pytest.mark.parametrize("number", range(15, 24))
def test_own_strategies_judge_nothing_of_the_study_s(number):
    """A claim that is decided with repaired code is open as the study has it, on its GPU."""
    for status, records in CASES[number]:
        if status == "open":
            continue
        own = [row | H100 for row in records]
        assert repaired(number, own).status == status
        verdict = as_study(number, own)
        assert verdict.status == "open" and not verdict.exceptions and verdict.missing


def of_parts(verdict):
    return [part.status for part in verdict.parts]


def test_the_study_s_ring_is_judged_over_its_kernel_and_numbers_of_gpus():
    def beside(ring, **fields):
        fields |= {"direction": BOTH}
        return as_study(
            16,
            *(
                rows(
                    cp(RING, ring, world, world // 8, **fields), cp(GATHER, 500, world, world // 8, **fields)
                )
                for world in (16, 32)
            ),
        )

    assert beside(400, **FA3).status == "contradicted"
    level = beside(500, **FA3)
    assert level.status == "open" and of_parts(level) == ["holds", *["open"] * 4], (
        "three of its others are not here"
    )
    assert level.part.startswith("1 of 5 parts")
    assert beside(400, **H100).status == "open", "`band` is this project's"
    small = as_study(16, cp(RING, 400, **FA3), cp(GATHER, 500, **FA3))
    assert small.status == "open" and "the study's all-gather 0/1 (0.80×)" in small.finding
    assert small.part == "up to 4 ranks of one host, over fa3"


def test_the_study_s_schedules_lose_to_documents_as_the_study_drew_them():
    def kept(rate, **fields):
        whole = FA3 | {"seqlen": SPARSE_LONG}
        documents = fields | {"seqlen": SPARSE_LONG}
        return as_study(
            22,
            cp([RING, GATHER], 600, 8, **whole),
            cp([RING, GATHER], rate, 8, mask="full_document", **documents),
        )

    assert of_parts(kept(300, **DRAWN)) == [*["holds"] * 2, *["open"] * 3]
    assert kept(300, **DRAWN).status == "open" and kept(500, **DRAWN).status == "contradicted"
    other = DRAWN | {"device": "NVIDIA H200"}
    assert not {"holds", "contradicted"} & {*of_parts(kept(300, **OURS)), *of_parts(kept(300, **other))}


def test_rates_of_the_study_s_schedules_over_its_numbers_of_gpus():
    def rates(few, many, **fields):
        cases = fields | {"mask": WHOLE, "direction": BOTH}
        return as_study(21, cp(RING, few, 8, 1, **cases), cp(RING, many, 32, 4, **cases))

    assert of_parts(rates(500, 480, **FA3))[0] == "holds"
    assert rates(500, 480, **FA3).status == "open" and rates(500, 400, **FA3).status == "contradicted"
    assert rates(500, 400, **H100).status == "open"


def test_bytes_and_errors_of_the_study_s_ring_count_on_any_gpu():
    masks = WHOLE + DOCUMENTS
    moved = rows(
        cp(RING, 500, moved_bytes=1000, formula_bytes=1000.0, mask=masks, direction="fwd", seqlen=LONG),
        cp("ring_p2p", 500, moved_bytes=1000, seqlen=LONG),
        cp("ring_p2p", 500, moved_bytes=400, mask="causal", seqlen=LONG),
    )
    assert (as_study(19, moved).status, repaired(19, moved).status) == ("holds", "contradicted")
    formulas = as_study(20, moved)
    assert formulas.status == "open" and of_parts(formulas) == ["holds", "open", "open"]
    assert formulas.part == "Ring P2P, up to 4 ranks of one host"
    more = cp(RING, 500, moved_bytes=1100, formula_bytes=1000.0, seqlen=LONG)
    assert as_study(20, more).status == "contradicted"


def test_what_travels_decides_on_errors_too():
    """A ring that adds to dV alone."""

    def errors(dv):
        same = {"error_dq": 0.002, "error_dk": 0.002, "direction": "bwd", "seqlen": LONG}
        return rows(cp(RING, 500, error_dv=dv, **same), cp("ulysses", 500, error_dv=0.002, **same))

    higher = as_study(23, errors(0.003))
    assert {part.name: part.status for part in higher.parts} == {
        "the result": "open",
        "dQ has more error with band": "contradicted",
        "dK has more error with band": "contradicted",
        "dV has more error with band": "holds",
    }
    assert "dV has more error with band 4/4 (1.50×)" in higher.finding
    assert {part.status for part in as_study(23, errors(0.002)).parts[1:]} == {"contradicted"}


def test_padding_of_documents_on_96_ranks_is_as_claim_19_says():
    def padding(seed):
        mask = build_mask(
            "full_document", seqlen=8192 * 96, corpus="prolong512k_long", seed=seed, paper_compat=True
        )
        segments = diagonal_segments(mask)
        assert segments is not None
        return PaddedDocuments(segments.bounds, 96).num_padding / mask.seqlen_q

    shares = np.array([padding(seed) for seed in range(5)])
    assert 0.04 < shares.max() < 0.05
