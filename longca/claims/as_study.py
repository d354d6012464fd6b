"""The rows that are the study's own: its GPU, its kernels in the form that it used, its masks and its documents.

A claim as the study has it is judged by these alone. A kernel of another's that its code called with a defect counts
in that form (`as_released_*`), and in the form of this project where the two make the same call. What stands in for
a kernel that cannot be had here judges nothing of the study's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.claims.contract import Part
from longca.claims.rows import NO_ROLE, OWN, RELEASED, ROLE, STUDY_GPU, prepared
from longca.core.cell import AS_RELEASED
from longca.ranking.table import CASE

if TYPE_CHECKING:
    import pandas as pd

STAND_INS = {
    "flashmask": "FlashMask here is this project's Triton operator, not Paddle's kernel",
    "fa2_sparse": "FA2-Sparse here is this project's own operator, since no package has the study's",
}
"""kernels that share no code with the study's of the same name"""
FORMS = ("naive", "sdpa", "fa2", "fa3", "cudnn_graph", "flex", "vsa", "vsa_triton", "flashinfer")
"""the study's other kernels on one GPU; its cuDNN, by TransformerEngine, is nearest to `cudnn_graph`"""
DEFECTIVE = ("naive", "sdpa", "flex", "fa3")  # those that the study called with a defect
LAST_OF_PILE = 12288  # tokens: kernels got documents of Pile up to here, of ProLong64K above
DEFAULTS = {"window": "1024", "block": "1024", "scores": "random"}  # of its masks, where one has the parameter
BLOCKS = ("64", "128")  # of uniform block-sparse masks
MEAN_BLOCK = "512"  # of variable ones: its least block was 128, here a quarter of the mean, so that the two meet here


def stand_in(kernel: str, name: str) -> Part:
    """The part of a claim that is about a kernel which only a stand-in is here for: it stays open."""
    return Part(name, f"{name} is not judged: {STAND_INS[kernel]}")


def of_study(table: pd.DataFrame, *, any_gpu: bool = False, any_draw: bool = False) -> pd.DataFrame:
    """The rows that are the study's own, prepared for `points`; `as_released_` is taken off the names of kernels.

    Rows of context parallelism are chosen by their GPU and mask alone: a claim names its strategies and kernels.

    Args:
        any_gpu: GPUs of any model, for claims about what depends on none: bytes, errors, the masks that a kernel
            takes.
        any_draw: masks with any documents and counts, for claims about what does not depend on them.
    """
    rows = prepared(table)
    rows = rows[rows[ROLE] != NO_ROLE]
    if not any_gpu:
        rows = rows[rows.device.str.contains(STUDY_GPU)]
    if not any_draw:
        rows = rows[is_drawn(rows)]
    return _named(rows[has_form(rows)])


def has_form(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose call is the study's: not repaired, and no stand-in.

    Repaired are `naive`, whose bias the study made on the host; `sdpa` with a mask and shared KV heads, which are
    copied here; and `flex` under block-sparse masks, whose block mask the study made from S² values. Its refusals
    to be called "as released" where the plain call is the study's say nothing.
    """
    kernel = rows.kernel.astype(str)
    masked = ~rows["mask"].isin(("full", "causal"))
    repaired = (
        (kernel == "naive")
        | ((kernel == "sdpa") & masked & (rows.num_kv_heads < rows.num_q_heads))
        | ((kernel == "flex") & rows["mask"].str.startswith("block_sparse"))
    )
    released = (rows[ROLE] == RELEASED) & (rows.status != "unsupported")
    return (rows.kind == "cp") | released | (kernel.isin(FORMS) & ~repaired)


def is_drawn(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose mask is as the study's code draws it: `paper_compat` where a pattern has it, its corpora
    and sizes."""
    import pandas as pd

    asked = list(zip(rows.kind, rows["mask"], rows.mask_params, rows.corpus, rows.seqlen, strict=True))
    known = {key: _is_drawn(*key) for key in set(asked)}
    return pd.Series([known[key] for key in asked], index=rows.index, dtype=bool)


def _is_drawn(kind: str, mask: str, mask_params: str, corpus: str, seqlen: int) -> bool:
    params = dict(part.split("=", 1) for part in mask_params.split(", ") if part)
    if params.get("paper_compat") == "False":
        return False
    if mask == "block_sparse_uniform" and params.get("block") not in BLOCKS:
        return False
    if mask == "block_sparse_variable" and params.get("mean_block") != MEAN_BLOCK:
        return False
    sparse = mask.startswith("block_sparse")
    if any(params.get(name, value) != value for name, value in DEFAULTS.items() if not (sparse and name == "block")):
        return False
    if not corpus:
        return True
    own = "prolong512k_long" if kind == "cp" else "pile" if seqlen <= LAST_OF_PILE else "prolong64k"
    return corpus == own


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the study's names of kernels; a cell that was measured as released counts in that form alone."""
    released = rows[ROLE] == RELEASED
    named = rows.assign(
        kernel=rows.kernel.astype(str).str.removeprefix(AS_RELEASED), **{ROLE: rows[ROLE].mask(released, OWN)}
    )
    case = named[[name for name in (*CASE, "kernel", "seed") if name in named]]
    keys = case.astype(str).agg("\x1f".join, axis=1) if len(case) else case.get("kernel")
    return named[released | ~keys.isin(keys[released])]
