"""Judgements by records of several GPUs, and by records of two protocols."""

from longca.lab.claims.by_gpu import judged
from longca.lab.claims.contract import all_claims
from longca.lab.store.text import short_device
from tests.helpers.claims.cases import SPARSE_LONG
from tests.helpers.claims.numbered import CLAIMS
from tests.helpers.claims.verdicts import grid, table


def test_each_gpu_is_judged_by_itself():
    """No point of one GPU is beside one of another, and the study's decides where it can."""
    h100, h200 = ({"device": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    setting = {"mask": "block_sparse_uniform", "seqlen": SPARSE_LONG, "heads": "64:64"}
    blocks = {"kernel": "flashinfer"} | setting
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
        and "2 of 4 cells were measured by the protocol with rests; the two are never compared."
        in verdict.note
    )
