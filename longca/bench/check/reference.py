"""The reference: attention by its definition, over chunks of query rows, in float64 and as a kernel of a narrow dtype computes it.

The mask comes as dense rows from its bands or its block grid. No kernel shares this code.

Shapes: G KV heads, R query heads per KV head, n rows of a chunk, C keys that it sees, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from longca.bench.check.inputs import Inputs
from longca.bench.check.scope import CheckedSubset
from longca.kernels.contract import Problem
from longca.masks import band
from longca.masks.mask import Mask

CHUNK_PAIRS = {"cpu": 1 << 20, "cuda": 1 << 26}  # (query, key) pairs over heads at a time: bounds the oracle's memory


class DenseMaskRows:
    """The mask of one head group as dense rows, a range of rows at a time."""

    def __init__(self, mask: Mask, group: int, device: torch.device) -> None:
        self._seqlen_k, self._device = mask.seqlen_k, device
        self._grid: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if mask.grid is None:
            self._bands = mask.groups[group]
            return
        visible, q_bounds, k_bounds = (torch.from_numpy(part).to(device) for part in mask.grid.solid(group))
        row_of, col_of = (torch.bucketize(torch.arange(int(bounds[-1]), device=device), bounds[1:], right=True)
                          for bounds in (q_bounds, k_bounds))
        self._grid = visible, row_of, col_of

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Visible pairs of rows [start, end): bool (end - start, Sk)."""
        if self._grid is not None:
            visible, row_of, col_of = self._grid
            return visible[row_of[start:end]][:, col_of]
        return self._banded_rows(start, end)

    def most_keys(self, start: int, end: int) -> int:
        """An upper bound on the number of keys that rows [start, end) see together."""
        if self._grid is not None:
            return self._seqlen_k
        part = band.cut(self._bands, (start, end), (0, self._seqlen_k))
        return min(int((part[:, band.K1] - part[:, band.K0]).sum()), self._seqlen_k)

    def _banded_rows(self, start: int, end: int) -> torch.Tensor:
        """Rows of a mask of bands.

        In each row a band has one range of keys. A +1 at its start and a −1 at its end are summed along the row. Bands are disjoint, so
        no two ranges of a row have the same start or the same end.
        """
        near = self._bands[(self._bands[:, band.Q0] < end) & (self._bands[:, band.Q1] > start)]  # documents can be thousands
        part = band.cut(near, (start, end), (0, self._seqlen_k))
        row = np.arange(start, end)[:, None]
        key_start = np.maximum(part[:, band.K0], row + part[:, band.LO])
        key_end = np.minimum(part[:, band.K1], row + part[:, band.HI] + 1)
        rows, index = np.nonzero((part[:, band.Q0] <= row) & (row < part[:, band.Q1]) & (key_start < key_end))
        step = torch.zeros(end - start, self._seqlen_k + 1, dtype=torch.int8, device=self._device)
        on_device = torch.from_numpy(np.stack([rows, key_start[rows, index], key_end[rows, index]])).to(self._device)
        step[on_device[0], on_device[1]] += 1
        step[on_device[0], on_device[2]] -= 1
        return step.cumsum(1, dtype=torch.int8)[:, :-1] > 0


@dataclass(frozen=True)
class Arithmetic:
    """Dtypes of a computation: sums are kept in `wide`; operands of the second matmuls and results are rounded to `narrow`, if given."""

    wide: torch.dtype
    narrow: torch.dtype | None = None

    def round(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.narrow is None else x.to(self.narrow).to(self.wide)


@dataclass(frozen=True)
class Chunk:
    """Operands of one chunk in the wide dtype; q is already multiplied by the scale."""

    q_GRnD: torch.Tensor
    k_GCD: torch.Tensor
    v_GCD: torch.Tensor
    dout_GRnD: torch.Tensor | None
    visible_nC: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Rows:
    """Results for the rows of a chunk; `dq` only with a backward."""

    out_GRnD: torch.Tensor
    lse_GRn: torch.Tensor
    weight_GRn: torch.Tensor  # ‖P‖ of each row
    dq_GRnD: torch.Tensor | None = None


@dataclass(frozen=True)
class Keys:
    """Contributions of a chunk to the gradients of its keys, and the size of dS before its subtraction."""

    dk_GCD: torch.Tensor
    dv_GCD: torch.Tensor
    weight_GC: torch.Tensor  # ‖P‖ of each key
    dscores_norm: torch.Tensor  # ‖P∘dP‖, before Σ P∘dP is subtracted


def attend(chunk: Chunk, arithmetic: Arithmetic) -> tuple[Rows, Keys | None]:
    """Compute out, LSE and, given dout, the gradients. Rows that see no key get out 0, LSE −∞, dq 0."""
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
    """The reference of query rows [start, end)."""

    start: int
    end: int
    exact: Rows
    emulated: Rows
    dscores_norm: torch.Tensor | None  # see `Keys`; only with a backward


@dataclass(frozen=True)
class KeysReference:
    """The reference of (dk, dv): (G, Sk, D) each."""

    exact: tuple[torch.Tensor, torch.Tensor]
    emulated: tuple[torch.Tensor, torch.Tensor]
    weight_GC: torch.Tensor  # ‖P‖ of each key


class HeadsReference:
    """The reference of KV heads that share a mask.

    Args:
        kv_heads: the KV heads; their query heads are included.
        rows: ranges of query rows.
        keep: if True, later calls get the results of the first one; otherwise only one chunk of rows is held at a time.
    """

    def __init__(self, problem: Problem, inputs: Inputs, kv_heads: list[int], dense_mask: DenseMaskRows,
                 rows: tuple[tuple[int, int], ...], *, keep: bool) -> None:
        self.kv_heads, self.ratio = kv_heads, problem.num_q_heads // problem.num_kv_heads
        self.q_heads = [head * self.ratio + query for head in kv_heads for query in range(self.ratio)]
        self._problem, self._inputs, self._dense_mask, self._ranges, self._keep = problem, inputs, dense_mask, rows, keep
        self._kept: list[RowsReference] | None = None
        self._keys: KeysReference | None = None

    def chunks(self, *, backward: bool) -> Iterator[RowsReference]:
        """The reference of all rows, chunk by chunk. `keys` is complete after the last chunk of a backward.

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
        """Rows [start, end) of these query heads as (G, R, n, …)."""
        part = x_THD[start:end, self.q_heads].transpose(0, 1)
        return part.reshape(len(self.kv_heads), self.ratio, *part.shape[1:])

    def _compute(self, backward: bool) -> Iterator[RowsReference]:
        exact, emulated = Arithmetic(torch.float64), Arithmetic(torch.float32, self._problem.dtype)
        k, v = (x_TGD[:, self.kv_heads].transpose(0, 1) for x_TGD in (self._inputs.k_TGD, self._inputs.v_TGD))
        sums = {arithmetic: (torch.zeros_like(k, dtype=arithmetic.wide), torch.zeros_like(v, dtype=arithmetic.wide))
                for arithmetic in (exact, emulated)} if backward else {}
        weight_squared = torch.zeros_like(k[..., 0], dtype=torch.float64)
        for start, end in self._chunk_ranges():
            visible = self._dense_mask.rows(start, end)
            seen = visible.any(0).nonzero().squeeze(1)
            results, dscores_norm = {}, None
            for arithmetic in (exact, emulated):
                chunk = self._chunk(arithmetic.wide, start, end, k[:, seen], v[:, seen], visible[:, seen], backward)
                with torch.autocast(k.device.type, enabled=False):  # a kernel may have left it on
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
        """Ranges of rows whose scores fit into CHUNK_PAIRS."""
        pairs = CHUNK_PAIRS["cuda" if self._inputs.q_THD.device.type == "cuda" else "cpu"] // len(self.q_heads)
        step = self._problem.mask.seqlen_k
        for start, end in self._ranges:
            while start < end:
                step = min(2 * step, end - start)
                while step > 1 and step * self._dense_mask.most_keys(start, start + step) > pairs:
                    step = (step + 1) // 2
                yield start, start + step
                start += step

    def _chunk(self, wide: torch.dtype, start: int, end: int, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor,
               backward: bool) -> Chunk:
        dout = self.rows(self._inputs.dout_THD, start, end).to(wide) if backward else None
        scale = self._problem.scale
        return Chunk(self.rows(self._inputs.q_THD, start, end).to(wide) * scale, k.to(wide), v.to(wide), dout, visible, scale)


class Reference:
    """The reference of one problem on given inputs, for the KV heads and rows of a checked subset.

    Args:
        keep: if True, it is computed once and kept for all results that are compared with it.
    """

    def __init__(self, problem: Problem, inputs: Inputs, scope: CheckedSubset, *, keep: bool = False) -> None:
        self._problem, self._inputs, self._scope, self._keep = problem, inputs, scope, keep
        self._groups: list[HeadsReference] = []

    def groups(self) -> Iterator[HeadsReference]:
        """The references of the KV heads, one for each mask that they have."""
        if self._groups:
            yield from self._groups
            return
        mask, found = self._problem.mask, []
        heads_per_group = self._problem.num_kv_heads // mask.num_groups
        for group in sorted({head // heads_per_group for head in self._scope.kv_heads}):
            heads = [head for head in self._scope.kv_heads if head // heads_per_group == group]
            dense_mask = DenseMaskRows(mask, group, self._inputs.q_THD.device)
            one = HeadsReference(self._problem, self._inputs, heads, dense_mask, self._scope.rows, keep=self._keep)
            if self._keep:
                found.append(one)
            yield one
        self._groups = found


def kept_bytes(problem: Problem, scope: CheckedSubset) -> int:
    """Bytes of a kept reference with its gradients: each value in float64 and in float32."""
    num_kv_heads = len(scope.kv_heads)
    num_q_heads = num_kv_heads * problem.num_q_heads // problem.num_kv_heads
    values = 2 * (scope.num_rows * num_q_heads + problem.mask.seqlen_k * num_kv_heads) * problem.head_dim  # out, dq; dk, dv
    return values * (8 + 4)
