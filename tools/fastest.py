"""Writes longca/dispatch/fastest.json, by which `longca.attention` chooses, from the records of one device.

    python -m tools.fastest

For each kind of mask, heads and length it holds the kernels that were quicker than `band`, the quickest
first, with how many times as quick they were: the geometric mean over all masks of that kind, of which it
must have run each. A kernel that `longca.lab.ranking` does not tell apart from `band` is not in it. Forward
and backward together are one call each, as in training. Kernels are left out that would copy all tensors into
a layout of their own, which records do not time, or that compile for each new mask.

Where there are records of the study `deterministic`, a further table has forward and backward among kernels
whose gradients were found to have the same bits in every run. A kernel in a fixed order has the forward of
the same kernel in any order.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from longca.core import FIXED_ORDER, Registry
from longca.dispatch.choice import FILE, OWN, TRAINING, TRAINING_SAME_BITS, head_kind, mask_kind
from longca.lab.ranking import MeasuredPoint, Measurement, compare, competing, mean_lead
from longca.lab.ranking.table import COLUMNS as OF_RANKING
from longca.lab.ranking.table import points
from longca.lab.ranking.tally import reason_to_leave_out
from longca.lab.store.table import RANKED_BY, is_deterministic, is_ranked, is_square
from longca.masks import Traits, build_mask
from tools.committed import with_playoffs
from tools.pages import ROOT

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[Any, ...]
RECORDS = (ROOT / "reports/h100/h100-dense.parquet", ROOT / "reports/h100/h100-sparse.parquet")
SAME_BITS = ROOT / "reports/h100/deterministic.parquet"  # of the same device; perhaps not there
COLUMNS = tuple(dict.fromkeys((*OF_RANKING, *RANKED_BY, "compile_ms", "deterministic")))
CASE = ("mask", "mask_params", "corpus", "seqlen", "num_q_heads", "num_kv_heads")
MOST_COMPILE_MS = 100  # for each new mask, the median: loops with a mask each step must not wait
MOST_TOKENS = 4096  # of the masks that are built for their traits


def content(records: Sequence[Path] = RECORDS, same_bits: Path = SAME_BITS) -> dict[str, Any]:
    """The whole table, of these files of records and the play-offs of their cells that lie beside them.

    Args:
        same_bits: file of records whose gradients had the same bits in every run; left out if there is none.
    """
    rows = _rows(records)
    capability, device = _device(records)
    assert rows.device.unique().tolist() == [device]
    head_dim, dtype = (rows[column].unique().tolist() for column in ("head_dim", "dtype"))
    assert len(head_dim) == len(dtype) == 1
    of_direction = {
        way: _undelayed(competing_points(points(rows.loc[rows.direction == way], CASE)))
        for way in ("fwd", "bwd")
    }
    of_direction[TRAINING] = {
        key: point
        for key, forward in of_direction["fwd"].items()
        if (point := together(forward, of_direction["bwd"].get(key)))
    }
    names = ["fwd", TRAINING]
    if same_bits.is_file():
        names.append(TRAINING_SAME_BITS)
        of_direction[TRAINING_SAME_BITS] = in_fixed_order(
            of_direction["fwd"],
            _undelayed(competing_points(points(_rows([same_bits], deterministic=True), CASE))),
        )
    return {
        "device": device,
        "compute_capability": capability,
        "head_dim": head_dim[0],
        "dtype": dtype[0],
        "records": [path.stem for path in records],
        **{way: of_points(of_direction[way]) for way in names},
    }


def text() -> str:
    """The file: one line for each length."""

    def lines(value: Any, depth: int) -> str:
        if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
            return json.dumps(value)
        inner = ",\n".join(
            f"{' ' * depth}{json.dumps(key)}: {lines(part, depth + 1)}" for key, part in value.items()
        )
        return f"{{\n{inner}\n{' ' * (depth - 1)}}}"

    return lines(content(), 1) + "\n"


def in_fixed_order(
    forward: Mapping[Key, MeasuredPoint], backward: Mapping[Key, MeasuredPoint]
) -> dict[Key, MeasuredPoint]:
    """Forward and backward as one call, of kernels whose backward is in a fixed order."""
    both = {
        (*case, kernel): together(forward[usual], point)
        for (*case, kernel), point in backward.items()
        if (usual := (*case, kernel.removesuffix(FIXED_ORDER))) in forward
    }
    return {key: replace(point, method=key[-1]) for key, point in both.items() if point}


def _rows(records: Sequence[Path], deterministic: bool = False) -> pd.DataFrame:
    """The cells that may be ranked and their play-offs, of kernels that may be chosen.

    Args:
        deterministic: those whose gradients were found to have the same bits in every run.
    """
    table = with_playoffs(records, COLUMNS)
    table = table.loc[is_deterministic(table)] if deterministic else table
    table = table.loc[is_ranked(table) & is_square(table) & (table.status == "ok")]
    table = table.loc[~table.mask_params.str.contains("paper_compat=True")]
    compiling = table.groupby("method").compile_ms.median()
    transposing = {kernel.name for kernel in Registry("kernel").load_all() if kernel.transposes}
    return table.loc[~table.method.isin({*compiling.index[compiling > MOST_COMPILE_MS], *transposing})]


def _device(records: Sequence[Path]) -> tuple[str, str]:
    """(compute capability, model) of the device that measured."""
    import pyarrow.parquet as pq

    first = next(pq.ParquetFile(records[0]).iter_batches(1, columns=["record"]))["record"][0].as_py()
    gpu = json.loads(first)["environment"]["nodes"][0]["gpu"]
    return gpu["compute_capability"], gpu["name"]


_seen: dict[tuple[str, str, int], Traits] = {}


def _traits(name: str, params: str, seqlen: int) -> Traits:
    key = name, params, min(seqlen, MOST_TOKENS)
    if key not in _seen:
        given = {
            part.partition("=")[0]: yaml.safe_load(part.partition("=")[2])
            for part in params.split(", ")
            if part
        }
        _seen[key] = build_mask(name, seqlen=key[2], **given).traits
    return _seen[key]


def _undelayed(points: Mapping[Key, MeasuredPoint]) -> dict[Key, MeasuredPoint]:
    """The points that tell of their kernel: one slow record would else decide for a whole kind of masks."""
    return {key: point for key, point in points.items() if not reason_to_leave_out(point)}


def competing_points(found: Mapping[Key, MeasuredPoint]) -> dict[Key, MeasuredPoint]:
    """The points that rank in their cases: measured with rests of the GPU or without are never compared."""
    cases: dict[Key, list[MeasuredPoint]] = defaultdict(list)
    for (*case, _), point in found.items():
        cases[tuple(case)].append(point)
    return {(*case, point.method): point for case, of in cases.items() for point in competing(of).points}


def of_points(found: Mapping[Key, MeasuredPoint]) -> dict[str, Any]:
    """Kind of mask → heads → length → the kernels that are ahead of `band`, as `leads` has them.

    Args:
        found: by the values of `CASE`, and the kernel.
    """
    groups: dict[tuple[str, str, int], dict[str, dict[Key, MeasuredPoint]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for (*case, kernel), point in found.items():
        mask, params, _, seqlen, num_q_heads, num_kv_heads = case
        kind = mask_kind(_traits(mask, params, seqlen)), head_kind(num_q_heads, num_kv_heads), seqlen
        groups[kind][kernel][tuple(case)] = point
    table: dict[str, Any] = {}
    for (masks, heads, seqlen), by_kernel in sorted(groups.items()):
        if OWN in by_kernel and len(by_kernel) > 1:
            table.setdefault(masks, {}).setdefault(heads, {})[str(seqlen)] = leads(by_kernel)
    return table


def leads(by_kernel: Mapping[str, Mapping[Key, MeasuredPoint]]) -> dict[str, float]:
    """Kernel → how many times as quick as `band`, the quickest first.

    Those that ran all its cases and are told apart from it.

    Args:
        by_kernel: kernel → case → its point.
    """
    own = by_kernel[OWN]
    ratios = {}
    for kernel, of_kernel in by_kernel.items():
        if kernel != OWN and of_kernel.keys() >= own.keys():
            lead = mean_lead([compare(of_kernel[case], own[case]) for case in own])
            if lead.order == "more":
                ratios[kernel] = lead.ratio
    return {
        kernel: round(ratios[kernel], 2)
        for kernel in sorted(ratios, key=lambda kernel: (-ratios[kernel], kernel))
    }


def together(forward: MeasuredPoint, backward: MeasuredPoint | None) -> MeasuredPoint | None:
    """Forward and backward as one call, in calls a second; None if one is missing or they share no seed."""
    if backward is None:
        return None
    own = _summed(forward.measurements, backward.measurements)
    played = _summed(forward.playoffs, backward.playoffs)
    return MeasuredPoint(forward.method, own, played, forward.resolutions) if own or played else None


def _summed(forward: Sequence[Measurement], backward: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """For each seed that both have, the sum of both times. Their intervals add as independent errors do."""
    of_seed = {record.seed: record for record in backward}
    return tuple(_sum(record, of_seed[record.seed]) for record in forward if record.seed in of_seed)


def _sum(forward: Measurement, backward: Measurement) -> Measurement:
    times = [median(record.times_ms) for record in (forward, backward)]
    shorter = math.hypot(
        *(
            time * (1 - record.rate / record.high)
            for time, record in zip(times, (forward, backward), strict=True)
        )
    )
    longer = math.hypot(
        *(
            time * (record.rate / record.low - 1)
            for time, record in zip(times, (forward, backward), strict=True)
        )
    )
    unit, run, playoff = (
        " ".join(filter(None, (getattr(forward, name), getattr(backward, name))))
        for name in ("unit", "run", "playoff")
    )
    of_rounds = [
        dict(zip(record.rounds or range(len(record.times_ms)), record.times_ms, strict=False))
        for record in (forward, backward)
    ]
    shared = [number for number in of_rounds[0] if number in of_rounds[1]]
    total = sum(times)
    return replace(
        forward,
        rate=1e3 / total,
        low=1e3 / (total + longer),
        high=1e3 / (total - shorter),
        unit=unit,
        run=run,
        playoff=playoff,
        rounds=tuple(shared),
        rests=forward.rests and backward.rests,
        times_ms=tuple(of_rounds[0][number] + of_rounds[1][number] for number in shared),
    )


def main() -> None:
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
