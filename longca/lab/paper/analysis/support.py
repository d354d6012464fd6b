"""Support as kernels state it: each is asked by the calls of a table, and its refusals are the answers.
Nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from longca.core import AS_RELEASED, CallSpec, Dtype, Registry
from longca.lab.report import WORST_FIRST
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

    from longca.masks import Mask

LENGTH = 2048  # of the block masks that kernels are asked about
HEAD_DIMS = (32, 64, 96, 128, 192, 256)
DTYPES = get_args(Dtype)
BOTH = "both"
FORWARD = "fwd"
BACKWARD = "bwd"
NEITHER = "no"
STUDY_ROWS = {
    "cudnn": "cuDNN",
    "fa2": "FA2",
    "fa2_sparse": "FA2-Sparse",
    "fa3": "FA3",
    "flashinfer": "FlashInfer",
    "flashmask": "FlashMask",
    "flex": "FlexAttention",
    "naive": "Naive",
    "sdpa": "SDPA",
    "vsa": "VSA",
    "vsa_triton": "Triton-VSA",
}
"""kernel → its row in the study's tables; other kernels have none"""
_ANSWERS = {(True, True): BOTH, (True, False): FORWARD, (False, True): BACKWARD, (False, False): NEITHER}


def asked_kernels() -> list[Any]:
    """The attention kernels that there are, those of the study first."""
    kernels = [
        kernel
        for kernel in Registry("kernel").load_all()
        if kernel.family != "control" and not kernel.name.startswith(AS_RELEASED)
    ]
    return sorted(kernels, key=lambda kernel: (kernel.name not in STUDY_ROWS, kernel.name))


def answer(
    kernel: Any, mask: Mask, heads: tuple[int, int], head_dim: int = 128, dtype: Dtype = "bf16"
) -> tuple[str, str]:
    """(passes that the kernel runs on a GPU, why not the others): ("fwd", "its backward has no GQA")."""
    reasons = {
        direction: kernel.supports(CallSpec(*heads, head_dim, dtype, direction), mask.traits, "cuda")
        for direction in (FORWARD, BACKWARD)
    }
    return (
        _ANSWERS[reasons[FORWARD] is None, reasons[BACKWARD] is None],
        "; ".join(dict.fromkeys(reason for reason in reasons.values() if reason is not None)),
    )


def outcomes(table: pd.DataFrame, kernel: str) -> str:
    """Outcomes of the kernel's cells in the records: "176 of 180 with a number; 4 oom". Cells that it refuses
    are left out."""
    of_kernel = table.loc[(table.kernel == kernel) & ~table.status.isin(("unsupported", "unavailable"))]
    if not len(of_kernel):
        return "none"
    counts = of_kernel.status.value_counts()
    bad = [f"{counts[status]} {status}" for status in WORST_FIRST if status != "ok" and status in counts]
    return "; ".join([f"{counts.get('ok', 0)} of {plural(len(of_kernel), 'cell')} with a number", *bad])


def differences(asked: pd.DataFrame) -> str:
    """Answers that are not the study's: "of 9 answers that the study gives, 2 differ: vsa: GQA (fwd, not no),
    masks (no, not fwd)".

    Args:
        asked: columns kernel, question, answer and study, which is "" where the study says nothing.
    """
    other = asked[(asked.study != "") & (asked.study != asked.answer)]
    of_kernels: dict[str, list[str]] = {}
    for kernel, question, answer, said in zip(
        other.kernel, other.question, other.answer, other.study, strict=True
    ):
        of_kernels.setdefault(kernel, []).append(f"{question} ({answer}, not {said})")
    named = "; ".join(f"{kernel}: {', '.join(parts)}" for kernel, parts in of_kernels.items())
    num_asked = plural(int((asked.study != "").sum()), "answer")
    return f"of {num_asked} that the study gives, {len(other)} differ" + (f": {named}" if named else "")
