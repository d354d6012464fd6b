"""The subset of a result that the oracle checks: all of it if that is cheap, otherwise as much as a budget of operations allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.kernels.contract import Problem

BUDGET_FLOPS = {"cpu": 8e9, "cuda": 2e12}  # of float64: below a second on two CPU cores, a quarter of one on an H200
ROWS_PER_PIECE = 64
MIN_PIECES, MAX_PIECES = 4, 32  # a piece costs some milliseconds on a GPU, however small
GROUPS = 4  # KV heads that are checked where each has a mask of its own


@dataclass(frozen=True)
class CheckedSubset:
    """KV heads, with the query heads that share them, and ranges of query rows: the part of a result that is checked."""

    kv_heads: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]  # half-open, ascending, disjoint
    text: str  # for the record

    @property
    def num_rows(self) -> int:
        return sum(end - start for start, end in self.rows)


def whole(problem: Problem, kv_heads: tuple[int, ...] | None = None) -> CheckedSubset:
    """All rows of all KV heads, or of the given ones."""
    kv_heads = tuple(range(problem.num_kv_heads)) if kv_heads is None else tuple(kv_heads)
    return CheckedSubset(kv_heads, ((0, problem.mask.seqlen_q),), _heads_text(problem, kv_heads) or "all")


def affordable(problem: Problem, seed: int, budget_flops: float | None = None) -> CheckedSubset:
    """The subset that a budget of operations allows.

    First it takes fewer KV heads, at least one, or `GROUPS` of them where they have masks of their own. Then it takes fewer rows. Both are
    drawn by `seed`. Rows are taken in pieces, always with the first and the last, since mistakes are often at edges. The gradients of
    the keys stay exact with fewer rows: backward is linear in dout, and dout is zero outside the pieces during the check
    (`Oracle.dout_THD`).
    """
    budget = BUDGET_FLOPS["cuda" if problem.device.type == "cuda" else "cpu"] if budget_flops is None else budget_flops
    mask, rng = problem.mask, np.random.default_rng(seed)
    # where blocks are chosen for each row, the rows of a chunk together see nearly all keys
    area = mask.area / mask.num_groups if mask.grid is None else mask.seqlen_q * mask.seqlen_k
    matmul_flops = 2 * area * problem.head_dim * problem.num_q_heads / problem.num_kv_heads
    flops_per_head = matmul_flops * (7 if problem.needs_backward else 2)
    least = min(GROUPS, mask.num_groups)
    num_heads = min(max(int(budget // max(flops_per_head, 1)), least), problem.num_kv_heads)
    kv_heads = tuple(sorted(rng.choice(problem.num_kv_heads, num_heads, replace=False).tolist()))
    num_pieces = -(-mask.seqlen_q // ROWS_PER_PIECE)
    chosen = max(int(num_pieces * budget / max(num_heads * flops_per_head, 1)), MIN_PIECES)
    if chosen < num_pieces:
        chosen = min(chosen, MAX_PIECES // least)
    if chosen >= num_pieces:
        return whole(problem, kv_heads)
    pieces = np.concatenate([[0, num_pieces - 1], 1 + rng.choice(num_pieces - 2, chosen - 2, replace=False)])
    rows = tuple((piece * ROWS_PER_PIECE, min((piece + 1) * ROWS_PER_PIECE, mask.seqlen_q)) for piece in sorted(pieces.tolist()))
    num_rows = sum(end - start for start, end in rows)
    heads = _heads_text(problem, kv_heads) or "all heads"
    return CheckedSubset(kv_heads, rows, f"{heads}; {num_rows} of {mask.seqlen_q} query rows")


def _heads_text(problem: Problem, kv_heads: tuple[int, ...]) -> str:
    if len(kv_heads) == problem.num_kv_heads:
        return ""
    return f"KV head{'s' if len(kv_heads) > 1 else ''} {', '.join(map(str, kv_heads))} of {problem.num_kv_heads}"
