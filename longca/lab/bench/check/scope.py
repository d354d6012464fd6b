"""The checked part of a result: all of it if that is cheap, otherwise as many rows as a budget of operations
allows.

Rows are sampled by a seed. They are spread over the sequence and over the KV heads: every KV head has some,
and every tile of `ROWS_PER_TILE` rows has one of some KV head, where the budget allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longca.kernels import Problem

BUDGET_FLOPS = {"cpu": 8e9, "cuda": 2e12}
"""of float64: below a second on two CPU cores, a quarter of one on an H200"""
ROWS_PER_TILE = 64
MIN_ROWS = 256  # total over KV heads, at any cost
MIN_ROWS_PER_HEAD = 4
MAX_ROWS = 1 << 14  # of a sample: more rows cost launches on a GPU and detect little more


@dataclass(frozen=True)
class CheckedPart:
    """Rows of KV heads that share a mask, with their query heads."""

    kv_heads: tuple[int, ...]
    rows: Sequence[int]
    """ascending, a range or a tuple"""

    def q_heads(self, ratio: int) -> list[int]:
        """The query heads of these KV heads, `ratio` of each."""
        return [head * ratio + query for head in self.kv_heads for query in range(ratio)]


@dataclass(frozen=True)
class CheckedSubset:
    """The part of a result that is checked."""

    parts: tuple[CheckedPart, ...]
    text: str  # for the record
    is_sample: bool = False
    """True if some rows of a KV head are not checked"""

    @property
    def kv_heads(self) -> tuple[int, ...]:
        return tuple(sorted({head for part in self.parts for head in part.kv_heads}))

    @property
    def num_rows(self) -> int:
        """Rows, summed over KV heads."""
        return sum(len(part.rows) * len(part.kv_heads) for part in self.parts)


def whole(problem: Problem, kv_heads: tuple[int, ...] | None = None) -> CheckedSubset:
    """All rows of all KV heads, or of the given ones."""
    kv_heads = tuple(range(problem.num_kv_heads)) if kv_heads is None else tuple(kv_heads)
    heads_per_group = problem.num_kv_heads // problem.mask.num_groups
    groups: dict[int, list[int]] = {}
    for head in kv_heads:
        groups.setdefault(head // heads_per_group, []).append(head)
    rows = range(problem.mask.seqlen_q)
    return CheckedSubset(
        tuple(CheckedPart(tuple(heads), rows) for heads in groups.values()), _heads_text(problem, kv_heads)
    )


def affordable(problem: Problem, seed: int, budget_flops: float | None = None) -> CheckedSubset:
    """The rows that a budget of operations allows, or `MIN_ROWS` where it allows fewer.

    The first and the last tile are whole for one KV head each, since mistakes are often at edges. The
    gradients of the keys stay exact with fewer rows: backward is linear in dout, and dout is zero in all
    other rows during the check (`Oracle.dout_THD`).
    """
    budget = (
        BUDGET_FLOPS["cuda" if problem.device.type == "cuda" else "cpu"]
        if budget_flops is None
        else budget_flops
    )
    mask = problem.mask
    num_heads = problem.num_kv_heads
    # where blocks are chosen for each row, the rows of a chunk together see nearly all keys
    area = mask.area / mask.num_groups if mask.grid is None else mask.seqlen_q * mask.seqlen_k
    flops_per_head = (
        2 * area * problem.head_dim * problem.num_q_heads / num_heads * (7 if problem.needs_backward else 2)
    )
    num_rows = int(mask.seqlen_q * budget / max(flops_per_head, 1))
    least = max(MIN_ROWS, MIN_ROWS_PER_HEAD * num_heads)
    if max(num_rows, least) >= mask.seqlen_q * num_heads:
        return whole(problem)
    return _sample(problem, np.random.default_rng(seed), max(min(num_rows, MAX_ROWS), least))


def _sample(problem: Problem, rng: np.random.Generator, num_rows: int) -> CheckedSubset:
    """About `num_rows` rows of single KV heads: in each stretch of rows equally many, the KV heads taking
    turns."""
    seqlen = problem.mask.seqlen_q
    num_heads = problem.num_kv_heads
    num_tiles = -(-seqlen // ROWS_PER_TILE)
    per_tile = num_rows // num_tiles
    edges = (
        np.arange(num_tiles + 1) * ROWS_PER_TILE
        if per_tile
        else np.linspace(0, seqlen, num_rows + 1).astype(np.int64)
    )
    edges[-1] = seqlen
    starts = np.repeat(edges[:-1], max(per_tile, 1))
    lengths = np.repeat(np.diff(edges), max(per_tile, 1))
    rows = starts + (rng.random(len(starts)) * lengths).astype(np.int64)
    heads = (np.arange(len(rows)) + rng.integers(num_heads)) % num_heads
    heads = rng.permuted(
        heads.reshape(-1, 1) if len(heads) % num_heads else heads.reshape(-1, num_heads), axis=1
    ).reshape(-1)
    tile = min(ROWS_PER_TILE, seqlen)
    first, last = rng.integers(num_heads, size=2)
    rows = np.concatenate([rows, np.arange(tile), np.arange(seqlen - tile, seqlen)])
    heads = np.concatenate([heads, np.full(tile, first), np.full(tile, last)])
    parts = tuple(
        CheckedPart((head,), tuple(np.unique(rows[heads == head]).tolist())) for head in range(num_heads)
    )
    parts = tuple(part for part in parts if part.rows)
    return CheckedSubset(parts, _sample_text(problem, parts), is_sample=True)


def _sample_text(problem: Problem, parts: tuple[CheckedPart, ...]) -> str:
    """A description of the checked share: "12 % of all rows: all 8 KV heads, all 64 tiles of 64 rows"."""
    seqlen = problem.mask.seqlen_q
    num_heads = problem.num_kv_heads
    num_tiles = -(-seqlen // ROWS_PER_TILE)
    tiles = len({row // ROWS_PER_TILE for part in parts for row in part.rows})
    checked = sum(len(part.rows) for part in parts)
    share = 100 * checked / (seqlen * num_heads)
    return (
        f"{share:.2g} % of the rows of all heads: {_of('KV heads', len(parts), num_heads)}, "
        f"{_of(f'tiles of {ROWS_PER_TILE} rows', tiles, num_tiles)}"
    )


def _of(things: str, number: int, total: int) -> str:
    return f"all {total:,} {things}" if number == total else f"{number:,} of {total:,} {things}"


def _heads_text(problem: Problem, kv_heads: tuple[int, ...]) -> str:
    if len(kv_heads) == problem.num_kv_heads:
        return "all"
    return (
        f"KV head{'s' if len(kv_heads) > 1 else ''} {', '.join(map(str, kv_heads))} of {problem.num_kv_heads}"
    )
