"""Attention by its definition, over chunks of query rows: exact, and as a kernel of a narrow dtype would compute it.

Shapes: G KV heads, R query heads per KV head, n rows of a chunk, C keys that it sees, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from longca.bench.check.inputs import Inputs
from longca.bench.check.raster import DenseMaskRows
from longca.bench.check.scope import CheckedSubset
from longca.kernels.contract import Problem

CHUNK_PAIRS = {"cpu": 1 << 20, "cuda": 1 << 26}  # (query, key) pairs over heads at a time: bounds the oracle's memory


@dataclass(frozen=True)
class Arithmetic:
    """`wide` is what sums are kept in; operands of the second matmuls and results are rounded to `narrow`, if given."""

    wide: torch.dtype
    narrow: torch.dtype | None = None

    def round(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.narrow is None else x.to(self.narrow).to(self.wide)


@dataclass(frozen=True)
class Chunk:
    """Operands of one chunk, in the wide dtype; q comes with the scale multiplied in."""

    q_GRnD: torch.Tensor
    k_GCD: torch.Tensor
    v_GCD: torch.Tensor
    dout_GRnD: torch.Tensor | None
    visible_nC: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Rows:
    """Results that belong to the chunk's rows; `dq` only with a backward."""

    out_GRnD: torch.Tensor
    lse_GRn: torch.Tensor
    weight_GRn: torch.Tensor  # ‖P‖ of each row
    dq_GRnD: torch.Tensor | None = None


@dataclass(frozen=True)
class Keys:
    """What the chunk adds to the gradients of the keys it sees, and the size of what was subtracted to get it."""

    dk_GCD: torch.Tensor
    dv_GCD: torch.Tensor
    weight_GC: torch.Tensor  # ‖P‖ of each key
    dscores_norm: torch.Tensor  # ‖P∘dP‖, before Σ P∘dP is taken off it


def attend(chunk: Chunk, arithmetic: Arithmetic) -> tuple[Rows, Keys | None]:
    """out, LSE and, given dout, the gradients. Rows that see no key: out 0, LSE −∞, dq 0."""
    rounded = arithmetic.round
    num_groups, ratio, num_rows, _ = chunk.q_GRnD.shape
    shape = (num_groups, ratio, num_rows, chunk.k_GCD.shape[1])

    q = chunk.q_GRnD.flatten(1, 2)
    p = (q @ chunk.k_GCD.mT).view(shape)  # scores, then in place exp(score − max), then probabilities
    p.masked_fill_(~chunk.visible_nC, float("-inf"))
    top = p.amax(-1, keepdim=True) if shape[-1] else p.new_full((*shape[:-1], 1), float("-inf"))
    top = top.masked_fill(top == float("-inf"), 0)
    p.sub_(top).exp_()
    total = p.sum(-1, keepdim=True)
    lse = (top + total.log()).squeeze(-1)
    p.div_(total.masked_fill(total == 0, 1))
    p = p.view(num_groups, ratio * num_rows, shape[-1])
    out = rounded(rounded(p) @ chunk.v_GCD)
    weight = torch.linalg.vector_norm(p, dim=-1).view(shape[:-1])
    if chunk.dout_GRnD is None:
        return Rows(out.view(chunk.q_GRnD.shape), lse, weight), None

    dout = chunk.dout_GRnD.flatten(1, 2)
    dscores = (dout @ chunk.v_GCD.mT).mul_(p)
    norm = torch.linalg.vector_norm(dscores)
    delta = (dout * out).sum(-1, keepdim=True)
    dscores = rounded(dscores.addcmul_(p, delta, value=-1))
    dq = rounded(dscores @ chunk.k_GCD * chunk.scale)
    rows = Rows(out.view(chunk.q_GRnD.shape), lse, weight, dq.view(chunk.q_GRnD.shape))
    return rows, Keys(dscores.mT @ q, rounded(p).mT @ dout, torch.linalg.vector_norm(p, dim=1), norm)


@dataclass(frozen=True)
class RowsReference:
    """What the results of query rows start..end must be."""

    start: int
    end: int
    exact: Rows
    emulated: Rows
    dscores_norm: torch.Tensor | None  # see `Keys`; only with a backward


@dataclass(frozen=True)
class KeysReference:
    """What dk and dv must be: (G, Sk, D) each."""

    exact: tuple[torch.Tensor, torch.Tensor]
    emulated: tuple[torch.Tensor, torch.Tensor]
    weight_GC: torch.Tensor  # ‖P‖ of each key


class HeadsReference:
    """The reference of KV heads that share a mask.

    Args:
        kv_heads: these heads; their query heads come with them.
        rows: ranges of query rows.
        keep: whether later calls find what the first one has computed. Else no more than one chunk of rows is held at a time.
    """

    def __init__(self, problem: Problem, inputs: Inputs, kv_heads: list[int], raster: DenseMaskRows,
                 rows: tuple[tuple[int, int], ...], *, keep: bool) -> None:
        self.kv_heads, self.ratio = kv_heads, problem.num_q_heads // problem.num_kv_heads
        self.q_heads = [head * self.ratio + query for head in kv_heads for query in range(self.ratio)]
        self._problem, self._inputs, self._raster, self._ranges, self._keep = problem, inputs, raster, rows, keep
        self._kept: list[RowsReference] | None = None
        self._keys: KeysReference | None = None

    def chunks(self, *, backward: bool) -> Iterator[RowsReference]:
        """All rows, chunk by chunk; `keys` is there after the last one.

        Args:
            backward: with gradients.
        """
        if self._kept is None or (backward and self._keys is None):
            found = []
            for chunk in self._compute(backward):
                if self._keep:
                    found.append(chunk)
                yield chunk
            self._kept = found if self._keep else None
        else:
            yield from self._kept

    @property
    def keys(self) -> KeysReference:
        assert self._keys is not None, "the gradients of keys are complete after all chunks of a backward"
        return self._keys

    def rows(self, x_THD: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Rows of these query heads as (G, R, n, …)."""
        part = x_THD[start:end, self.q_heads].transpose(0, 1)
        return part.reshape(len(self.kv_heads), self.ratio, *part.shape[1:])

    def _compute(self, backward: bool) -> Iterator[RowsReference]:
        exact, emulated = Arithmetic(torch.float64), Arithmetic(torch.float32, self._problem.dtype)
        k, v = (x_TGD[:, self.kv_heads].transpose(0, 1) for x_TGD in (self._inputs.k_TGD, self._inputs.v_TGD))
        sums = {arithmetic: (torch.zeros_like(k, dtype=arithmetic.wide), torch.zeros_like(v, dtype=arithmetic.wide))
                for arithmetic in (exact, emulated)} if backward else {}
        weight_squared = torch.zeros_like(k[..., 0], dtype=torch.float64)
        for start, end in self._chunk_ranges():
            visible = self._raster.rows(start, end)
            seen = visible.any(0).nonzero().squeeze(1)
            results, dscores_norm = {}, None
            for arithmetic in (exact, emulated):
                chunk = self._chunk(arithmetic.wide, start, end, k[:, seen], v[:, seen], visible[:, seen], backward)
                results[arithmetic], keys = attend(chunk, arithmetic)
                if keys is not None:
                    sums[arithmetic][0][:, seen] += keys.dk_GCD
                    sums[arithmetic][1][:, seen] += keys.dv_GCD
                    if arithmetic is exact:
                        weight_squared[:, seen] += keys.weight_GC.square()
                        dscores_norm = keys.dscores_norm
            yield RowsReference(start, end, results[exact], results[emulated], dscores_norm)
        if backward:
            dk, dv = (emulated.round(part) for part in sums[emulated])
            self._keys = KeysReference(sums[exact], (dk, dv), weight_squared.sqrt())

    def _chunk_ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows whose scores fit into the memory that is meant for them."""
        pairs = CHUNK_PAIRS["cuda" if self._inputs.q_THD.device.type == "cuda" else "cpu"] // len(self.q_heads)
        step = self._problem.mask.seqlen_k
        for start, end in self._ranges:
            while start < end:
                step = min(2 * step, end - start)
                while step > 1 and step * self._raster.most_keys(start, start + step) > pairs:
                    step = (step + 1) // 2
                yield start, start + step
                start += step

    def _chunk(self, wide: torch.dtype, start: int, end: int, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor,
               backward: bool) -> Chunk:
        dout = self.rows(self._inputs.dout_THD, start, end).to(wide) if backward else None
        scale = self._problem.scale
        return Chunk(self.rows(self._inputs.q_THD, start, end).to(wide) * scale, k.to(wide), v.to(wide), dout, visible, scale)


class Reference:
    """The reference of one problem on given inputs: of the KV heads and rows in scope.

    Args:
        keep: whether it is computed once and kept, for all results that are compared with it.
    """

    def __init__(self, problem: Problem, inputs: Inputs, scope: CheckedSubset, *, keep: bool = False) -> None:
        self._problem, self._inputs, self._scope, self._keep = problem, inputs, scope, keep
        self._groups: list[HeadsReference] = []

    def groups(self) -> Iterator[HeadsReference]:
        """One for each mask that the heads in scope have."""
        if self._groups:
            yield from self._groups
            return
        mask, found = self._problem.mask, []
        heads_per_group = self._problem.num_kv_heads // mask.num_groups
        for group in sorted({head // heads_per_group for head in self._scope.kv_heads}):
            heads = [head for head in self._scope.kv_heads if head // heads_per_group == group]
            raster = DenseMaskRows(mask, group, self._inputs.q_THD.device)
            one = HeadsReference(self._problem, self._inputs, heads, raster, self._scope.rows, keep=self._keep)
            if self._keep:
                found.append(one)
            yield one
        self._groups = found


def kept_bytes(problem: Problem, scope: CheckedSubset) -> int:
    """Memory of a reference that is kept, with its gradients: each value in float64 and in float32."""
    num_kv_heads = len(scope.kv_heads)
    num_q_heads = num_kv_heads * problem.num_q_heads // problem.num_kv_heads
    values = 2 * (scope.num_rows * num_q_heads + problem.mask.seqlen_k * num_kv_heads) * problem.head_dim  # out, dq; dk, dv
    return values * (8 + 4)
