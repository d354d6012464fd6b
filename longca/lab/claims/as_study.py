"""The rows that are the study's own: its GPU, its kernels in the form that it used, its masks and documents.

A claim as the study has it is judged by these alone. A kernel that its code called with a defect counts in
that form (`as_released_*`), and in the form of this project where the two make the same call. A stand-in for
a kernel that cannot be had here judges nothing of the study's.

Its sliding window is a case of its own: naive and SDPA ran one side of the window, all other kernels both,
and FLOPs were those of one side. So rows of both sides count for the others, with the FLOPs of one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core import AS_RELEASED, load_hardware
from longca.lab.claims.parts import Part
from longca.lab.claims.rows import MEASURED, NO_ROLE, OWN, RELEASED, ROLE, STUDY_DEVICE, prepared
from longca.lab.ranking.table import CASE, RATE

if TYPE_CHECKING:
    import pandas as pd

STAND_INS = {
    "flashmask": "this project's Triton operator, not Paddle's kernel",
    "fa2_sparse": "this project's own operator, since no package has the study's",
}
"""kernels that share no code with the study's of the same name"""
FORMS = ("naive", "sdpa", "fa2", "fa3", "cudnn_graph", "flex", "vsa", "vsa_triton", "flashinfer")
"""the study's other kernels on one GPU; its cuDNN, by TransformerEngine, is nearest to `cudnn_graph`"""
STUDY_DENSE = FORMS[:6]
"""the dense ones, of any mask or of the regular ones"""
DEFECTIVE = ("naive", "sdpa", "flex", "fa3")  # those that the study called with a defect
STUDY_GB = 80  # 10^9 bytes of its GPU's memory, as `config/hardware.yaml` has it
LAST_OF_PILE = 12288  # tokens: kernels got documents of Pile up to here, of ProLong64K above
# of uniform block-sparse masks
BLOCKS = ("64", "128")
SCORES = "random"
WINDOW = 1024  # tokens on each side
# these ran the window that was counted
ONE_SIDED = "naive", "sdpa", "as_released_naive", "as_released_sdpa"
# of variable ones: its least block was 128, here a quarter of the mean, so that the two meet here
MEAN_BLOCK = "512"


def shown(kernel: str) -> str:
    """The kernel as texts name it; this project's stand-ins are named as such."""
    return f"{kernel} (ours)" if kernel in STAND_INS else kernel


def stand_in(kernel: str, name: str) -> Part:
    """The part of a claim that is about a kernel which only a stand-in is here for: it stays open."""
    assert kernel in STAND_INS
    return Part(name, f"{name} (here is only this project's stand-in)")


def of_study(table: pd.DataFrame, *, any_gpu: bool = False, any_draw: bool = False) -> pd.DataFrame:
    """The rows that are the study's own, prepared for `points`; kernels lose `as_released_` of their names.

    Rows of context parallelism are chosen by GPU and mask alone: a claim names its strategies and kernels.

    Args:
        any_gpu: GPUs of any model, for claims about what depends on none: bytes, errors, the masks that a
            kernel takes. A cell that ran out of memory counts if its GPU has no less memory than the
            study's.
        any_draw: masks with any documents and counts, for claims about what does not depend on them.
    """
    rows = prepared(table)
    rows = rows.loc[rows[ROLE] != NO_ROLE]
    rows = rows.loc[_has_memory(rows) if any_gpu else rows.device == STUDY_DEVICE]
    if not any_draw:
        rows = rows.loc[is_drawn(rows)]
    return _as_counted(_named(rows.loc[has_form(rows)]))


def without_compat(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that count with repaired code: their masks and documents are not as the study drew them."""
    return table.loc[~table.mask_params.astype(str).str.contains("paper_compat=True")]


def has_form(rows: pd.DataFrame) -> pd.Series:
    """True for rows whose call is the study's: not repaired, and no stand-in.

    Repaired are `naive`, whose bias the study made on the host; `sdpa` with a mask and shared KV heads, which
    are copied here; and `flex` under block-sparse masks, whose block mask the study made from S² values. A
    kernel as released that refuses, since the plain call is the study's, says nothing.
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
    """True for rows whose mask is as the study's code draws it: `paper_compat` where a pattern has it, its
    corpora and sizes; a sliding window as its kernels ran it."""
    import pandas as pd

    one_sided = rows.kernel.isin(ONE_SIDED)
    asked = list(
        zip(rows.kind, rows["mask"], rows.mask_params, rows.corpus, rows.seqlen, one_sided, strict=True)
    )
    known = {key: _is_drawn(*key) for key in set(asked)}
    return pd.Series([known[key] for key in asked], index=rows.index, dtype=bool)


def _is_drawn(kind: str, mask: str, mask_params: str, corpus: str, seqlen: int, one_sided: bool) -> bool:
    params = dict(part.split("=", 1) for part in mask_params.split(", ") if part)
    compat = params.get("paper_compat", "True") == "True"
    if compat != (one_sided if mask == "sliding_window" else True):
        return False
    if mask == "block_sparse_uniform":
        return params.get("block") in BLOCKS and params.get("scores", SCORES) == SCORES
    if mask == "block_sparse_variable":
        return params.get("mean_block") == MEAN_BLOCK
    if any(
        params.get(name, str(WINDOW)) != str(WINDOW) for name in ("window", "block")
    ):  # its blocks are as long
        return False
    own = "prolong512k_long" if kind == "cp" else "pile" if seqlen <= LAST_OF_PILE else "prolong64k"
    return corpus in ("", own)


def _has_memory(rows: pd.DataFrame) -> pd.Series:
    """False for rows that ran out of memory on a GPU with less than the study's, or of unknown size."""
    hardware = load_hardware()
    known = {str(device): hardware.find(str(device)) for device in set(rows.device[rows.status == "oom"])}
    enough = [
        device for device, gpu in known.items() if gpu and gpu.memory_gb and gpu.memory_gb.value >= STUDY_GB
    ]
    return (rows.status != "oom") | rows.device.isin(enough)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the study's names of kernels; a cell measured as released counts in that form alone."""
    import pandas as pd

    released = rows[ROLE] == RELEASED
    named = rows.assign(
        kernel=rows.kernel.astype(str).str.removeprefix(AS_RELEASED), **{ROLE: rows[ROLE].mask(released, OWN)}
    )
    if not bool(released.any()):
        return named
    keys = list(zip(*(named[name] for name in (*CASE, "kernel", "seed") if name in named), strict=True))
    of_released = {key for key, is_released in zip(keys, released, strict=True) if is_released}
    beside = pd.Series([key in of_released for key in keys], index=named.index)
    return named.loc[released | ~beside]


def _as_counted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the rates of sliding windows of both sides by the FLOPs of one."""
    both = (rows["mask"] == "sliding_window") & rows.mask_params.str.contains("paper_compat=False")
    if not bool(both.any()):
        return rows
    counted = rows.copy()
    for index in rows.index[both]:
        share = _counted_share(int(rows.at[index, "seqlen"]), float(rows.at[index, "density"]))
        counted.at[index, RATE] = share * rows.at[index, RATE]
        record = rows.at[index, MEASURED]
        if record is not None:
            rates = {name: share * getattr(record, name) for name in ("rate", "low", "high")}
            counted.at[index, MEASURED] = replace(record, **rates)
    return counted


def _counted_share(seqlen: int, density: float) -> float:
    """The share of one side of the study's window in the pairs that run; 1 where the window hides nothing."""
    one_side = seqlen * (WINDOW + 1) - WINDOW * (WINDOW + 1) / 2
    return one_side / (density * seqlen * seqlen) if seqlen > WINDOW else 1.0
