"""Writes longca/dispatch/fastest.json, by which `longca.attention` chooses a kernel, from the committed records of one device.

    python -m tools.fastest

For each kind of mask, heads and length it holds the kernels that were quicker than `band`, the quickest first, with how many times as
quick they were: the geometric mean over all masks of that kind, of which it must have run each. Forward and backward together are one call
each, as in training. Kernels are left out that would copy all tensors into a layout of their own, which records do not time, or that
compile for each new mask.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from longca.core.plugin import Registry
from longca.dispatch.choice import FILE, OWN, TRAINING, head_kind, mask_kind
from longca.masks import build_mask
from longca.masks.traits import Traits
from tools.pages import ROOT

RECORDS = (ROOT / "reports/h100/h100-dense.parquet", ROOT / "reports/h100/h100-sparse.parquet")
COLUMNS = ["study", "kernel", "is_control", "input_values", "sustained", "status", "mask", "mask_params", "corpus", "seed", "seqlen",
           "num_q_heads", "num_kv_heads", "head_dim", "dtype", "direction", "time_ms_median", "noise", "compile_ms", "device"]
CASE = ["mask", "mask_params", "corpus", "seed", "seqlen", "num_q_heads", "num_kv_heads"]
LEAST_LEAD = 1.03  # below this a kernel is no quicker than `band`: samples scatter, and its plan stays the same for backward
MOST_COMPILE_MS = 100  # of a kernel for each new mask, in the middle of all cells: loops with a mask each step must not wait for it
MOST_TOKENS = 4096  # of the masks that are built for their traits


def content() -> dict[str, Any]:
    """The whole table."""
    times = _times()
    capability, device = _device()
    assert times.device.unique().tolist() == [device]
    head_dim, dtype = (times[column].unique().tolist() for column in ("head_dim", "dtype"))
    assert len(head_dim) == len(dtype) == 1
    wide = times.pivot_table(index=[*CASE, "kernel"], columns="direction", values="time_ms_median", aggfunc="median").reset_index()
    wide[TRAINING] = wide.fwd + wide.bwd
    wide["masks"] = [mask_kind(_traits(*key)) for key in zip(wide["mask"], wide.mask_params, wide.seqlen, strict=True)]
    wide["heads"] = [head_kind(*heads) for heads in zip(wide.num_q_heads, wide.num_kv_heads, strict=True)]
    return {"device": device, "compute_capability": capability, "head_dim": head_dim[0], "dtype": dtype[0],
            "records": [path.stem for path in RECORDS], **{direction: _of_direction(wide, direction) for direction in ("fwd", TRAINING)}}


def text() -> str:
    """The file: one line for each length."""
    def lines(value: Any, depth: int) -> str:
        if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
            return json.dumps(value)
        inner = ",\n".join(f'{" " * depth}{json.dumps(key)}: {lines(part, depth + 1)}' for key, part in value.items())
        return f"{{\n{inner}\n{' ' * (depth - 1)}}}"

    return lines(content(), 1) + "\n"


def _times() -> Any:
    """The cells that may be ranked and that nothing delayed, of kernels that may be chosen."""
    import pandas as pd

    from longca.store.table import is_ranked
    from longca.store.view import NOISY

    table = pd.concat([pd.read_parquet(path, columns=COLUMNS) for path in RECORDS], ignore_index=True)
    table = table[is_ranked(table) & (table.status == "ok") & (table.noise <= NOISY) & ~table.mask_params.str.contains("paper_compat=True")]
    compiling = table.groupby("kernel").compile_ms.median()
    transposing = {kernel.name for kernel in Registry("kernel").load_all() if kernel.transposes}
    return table[~table.kernel.isin({*compiling.index[compiling > MOST_COMPILE_MS], *transposing})]


def _device() -> tuple[str, str]:
    """(compute capability, model) of the device that measured."""
    import pyarrow.parquet as pq

    first = next(pq.ParquetFile(RECORDS[0]).iter_batches(1, columns=["record"]))["record"][0].as_py()
    gpu = json.loads(first)["environment"]["nodes"][0]["gpu"]
    return gpu["compute_capability"], gpu["name"]


_seen: dict[tuple[str, str, int], Traits] = {}


def _traits(name: str, params: str, seqlen: int) -> Traits:
    key = name, params, min(seqlen, MOST_TOKENS)
    if key not in _seen:
        given = {part.partition("=")[0]: yaml.safe_load(part.partition("=")[2]) for part in params.split(", ") if part}
        _seen[key] = build_mask(name, seqlen=key[2], **given).traits
    return _seen[key]


def _of_direction(wide: Any, direction: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (masks, heads, seqlen), cases in wide.dropna(subset=direction).groupby(["masks", "heads", "seqlen"]):
        leads = _leads(cases, direction)
        if leads is not None:
            found.setdefault(masks, {}).setdefault(heads, {})[str(seqlen)] = leads
    return found


def _leads(cases: Any, direction: str) -> dict[str, float] | None:
    """Kernel → how many times as quick as `band`, the quickest first; None where nothing was compared with it."""
    import numpy as np

    times = cases.pivot(index=CASE, columns="kernel", values=direction)
    if OWN not in times or times[OWN].isna().all() or len(times.columns) < 2:
        return None
    logs = -np.log(times[times[OWN].notna()].div(times[OWN].dropna(), axis="index"))
    leads = np.exp(logs.groupby(["mask", "mask_params"]).mean().dropna(axis="columns").mean())
    return {str(kernel): round(float(lead), 2) for kernel, lead in leads.sort_values(ascending=False).items() if lead >= LEAST_LEAD}


def main() -> None:
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
