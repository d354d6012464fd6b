"""The reference: attention by its definition, over chunks of query rows, in float64 and as a kernel of a
narrow dtype computes it.

The mask is expanded to dense rows from its bands or its block grid. No kernel shares this code.

Shapes: G KV heads, R query heads per KV head, n rows of a chunk, C keys that it sees, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longca.kernels import Problem
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.scope import CheckedPart, CheckedSubset
from longca.masks import Mask, band

# (query, key) pairs over heads at a time: bounds the oracle's memory
CHUNK_PAIRS = {"cpu": 1 << 20, "cuda": 1 << 26}
# rows that do not follow each other see other keys each, all of which a chunk has: a chunk may cost so many
# pairs, or `WASTE` times those that its rows see; smaller chunks would cost more in launches
FREE_PAIRS = {"cpu": 1 << 16, "cuda": 1 << 23}
WASTE = 3.0


class DenseMaskRows:
    """The mask of one head group as dense rows, a range of rows at a time."""

    def __init__(self, mask: Mask, group: int, device: torch.device) -> None:
        self._seqlen_k = mask.seqlen_k
        self._device = device
        self._grid: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if mask.grid is None:
            self._bands = mask.groups[group]
            return
        visible, q_bounds, k_bounds = (torch.from_numpy(part).to(device) for part in mask.grid.solid(group))
        row_of, col_of = (
            torch.bucketize(torch.arange(int(bounds[-1]), device=device), bounds[1:], right=True)
            for bounds in (q_bounds, k_bounds)
        )
        self._grid = visible, row_of, col_of

    def rows(self, rows: Sequence[int]) -> torch.Tensor:
        """Visible pairs of some rows, which ascend: bool (rows, Sk)."""
        if self._grid is not None:
            visible, row_of, col_of = self._grid
            return visible[row_of[index_of(rows, self._device)]][:, col_of]
        return self._banded_rows(np.asarray(rows, dtype=np.int64))

    def most_keys(self, start: int, end: int) -> int:
        """An upper bound on the number of distinct keys that rows [start, end) see."""
        if self._grid is not None:
            return self._seqlen_k
        part = band.cut(self._bands, (start, end), (0, self._seqlen_k))
        return min(int((part[:, band.K1] - part[:, band.K0]).sum()), self._seqlen_k)

    def _banded_rows(self, rows: np.ndarray) -> torch.Tensor:
        """Rows of a mask of bands.

        In each row a band has one range of keys. A +1 at its start and a −1 at its end are summed along the
        row. Bands are disjoint, so no two ranges of a row have the same start or the same end.
        """
        start = int(rows[0])
        end = int(rows[-1]) + 1
        # documents can be thousands
        near = self._bands[(self._bands[:, band.Q0] < end) & (self._bands[:, band.Q1] > start)]
        part = band.cut(near, (start, end), (0, self._seqlen_k))
        row = rows[:, None]
        key_start = np.maximum(part[:, band.K0], row + part[:, band.LO])
        key_end = np.minimum(part[:, band.K1], row + part[:, band.HI] + 1)
        number, index = np.nonzero(
            (part[:, band.Q0] <= row) & (row < part[:, band.Q1]) & (key_start < key_end)
        )
        step = torch.zeros(len(rows), self._seqlen_k + 1, dtype=torch.int8, device=self._device)
        on_device = torch.from_numpy(np.stack([number, key_start[number, index], key_end[number, index]])).to(
            self._device
        )
        step[on_device[0], on_device[1]] += 1
        step[on_device[0], on_device[2]] -= 1
        return step.cumsum(1, dtype=torch.int8)[:, :-1] > 0


@dataclass(frozen=True)
class Arithmetic:
    """Dtypes of a computation: sums are kept in `wide`; operands of the second matmuls and results are
    rounded to `narrow`, if given."""

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
    """The reference of some query rows."""

    start: int
    """number of the first of them among the rows of the part"""
    rows: Sequence[int]
    exact: Rows
    emulated: Rows
    dscores_norm: torch.Tensor | None  # see `Keys`; only with a backward


@dataclass(frozen=True)
class KeysReference:
    """The reference of (dk, dv): (G, Sk, D) each."""

    exact: tuple[torch.Tensor, torch.Tensor]
    emulated: tuple[torch.Tensor, torch.Tensor]
    weight_GC: torch.Tensor  # ‖P‖ of each key

    def of_head(self, number: int) -> HeadKeys:
        """The reference of one of these KV heads, by its place among them."""
        return HeadKeys(
            (self.exact[0][number], self.exact[1][number]),
            (self.emulated[0][number].double(), self.emulated[1][number].double()),
            self.weight_GC[number],
        )


@dataclass(frozen=True)
class HeadKeys:
    """The reference of (dk, dv) of one KV head: (Sk, D) each."""

    exact: tuple[torch.Tensor, torch.Tensor]
    emulated: tuple[torch.Tensor, torch.Tensor]
    weight_C: torch.Tensor


class HeadsReference:
    """The reference of KV heads that share a mask.

    Args:
        part: the KV heads, with their query heads, and the rows.
        keep: if True, later calls get the results of the first one; otherwise only one chunk of rows is held
            at a time.
    """

    def __init__(
        self, problem: Problem, inputs: Inputs, part: CheckedPart, dense_mask: DenseMaskRows, *, keep: bool
    ) -> None:
        self.kv_heads = list(part.kv_heads)
        self.ratio = problem.num_q_heads // problem.num_kv_heads
        self.q_heads = part.q_heads(self.ratio)
        self._problem = problem
        self._inputs = inputs
        self._dense_mask = dense_mask
        self._rows = part.rows
        self._keep = keep
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

    def grouped(self, x_nHD: torch.Tensor) -> torch.Tensor:
        """Rows of these query heads as (G, R, n, …)."""
        return x_nHD.transpose(0, 1).reshape(len(self.kv_heads), self.ratio, len(x_nHD), *x_nHD.shape[2:])

    def rows_of(self, x_THD: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """These rows of these query heads as (G, R, n, …)."""
        return self.grouped(x_THD[index_of(rows, x_THD.device)][:, self.q_heads])

    def _compute(self, backward: bool) -> Iterator[RowsReference]:
        exact = Arithmetic(torch.float64)
        emulated = Arithmetic(torch.float32, self._problem.dtype)
        k, v = (x_TGD[:, self.kv_heads].transpose(0, 1) for x_TGD in (self._inputs.k_TGD, self._inputs.v_TGD))
        sums = (
            {
                arithmetic: (
                    torch.zeros_like(k, dtype=arithmetic.wide),
                    torch.zeros_like(v, dtype=arithmetic.wide),
                )
                for arithmetic in (exact, emulated)
            }
            if backward
            else {}
        )
        weight_squared = torch.zeros_like(k[..., 0], dtype=torch.float64)
        for start, rows in self._chunk_rows():
            visible = self._dense_mask.rows(rows)
            seen = visible.any(0).nonzero().squeeze(1)
            results = {}
            dscores_norm = None
            for arithmetic in (exact, emulated):
                chunk = self._chunk(arithmetic.wide, rows, k[:, seen], v[:, seen], visible[:, seen], backward)
                with torch.autocast(k.device.type, enabled=False):  # a kernel may have left it on
                    results[arithmetic], keys = attend(chunk, arithmetic)
                if keys is not None:
                    sums[arithmetic][0][:, seen] += keys.dk_GCD
                    sums[arithmetic][1][:, seen] += keys.dv_GCD
                    if arithmetic is exact:
                        weight_squared[:, seen] += keys.weight_GC.square()
                        dscores_norm = keys.dscores_norm
            yield RowsReference(start, rows, results[exact], results[emulated], dscores_norm)
        if backward:
            dk, dv = (emulated.round(part) for part in sums[emulated])
            self._keys = KeysReference(sums[exact], (dk, dv), weight_squared.sqrt())

    def _chunk_rows(self) -> Iterator[tuple[int, Sequence[int]]]:
        """(number of the first row, rows) of chunks whose scores fit into CHUNK_PAIRS."""
        device = "cuda" if self._inputs.q_THD.device.type == "cuda" else "cpu"
        pairs, free = (limit[device] // len(self.q_heads) for limit in (CHUNK_PAIRS, FREE_PAIRS))
        mask = self._problem.mask
        allowed = WASTE * mask.area / mask.num_groups / max(mask.seqlen_q, 1)  # keys a row
        rows = self._rows
        start = 0
        step = mask.seqlen_k
        while start < len(rows):
            step = min(2 * step, len(rows) - start)
            while step > 1:
                first = rows[start]
                last = rows[start + step - 1]
                num_keys = self._dense_mask.most_keys(first, last + 1)
                is_run = last - first == step - 1
                if step * num_keys <= (pairs if is_run or num_keys <= allowed else min(pairs, free)):
                    break
                step = (step + 1) // 2
            yield start, rows[start : start + step]
            start += step

    def _chunk(
        self,
        wide: torch.dtype,
        rows: Sequence[int],
        k: torch.Tensor,
        v: torch.Tensor,
        visible: torch.Tensor,
        backward: bool,
    ) -> Chunk:
        dout = self.rows_of(self._inputs.dout_THD, rows).to(wide) if backward else None
        scale = self._problem.scale
        return Chunk(
            self.rows_of(self._inputs.q_THD, rows).to(wide) * scale,
            k.to(wide),
            v.to(wide),
            dout,
            visible,
            scale,
        )


class Reference:
    """The reference of one problem on given inputs, for the KV heads and rows of a checked subset.

    Args:
        keep: if True, it is computed once and kept for all results that are compared with it.
    """

    def __init__(self, problem: Problem, inputs: Inputs, scope: CheckedSubset, *, keep: bool = False) -> None:
        self.inputs = inputs
        self._problem = problem
        self._scope = scope
        self._keep = keep
        self._groups: list[HeadsReference] = []

    def groups(self) -> Iterator[HeadsReference]:
        """The references of the parts of the checked subset, in their order."""
        if self._groups:
            yield from self._groups
            return
        mask = self._problem.mask
        groups = list[HeadsReference]()
        masks = dict[int, DenseMaskRows]()
        heads_per_group = self._problem.num_kv_heads // mask.num_groups
        for part in self._scope.parts:
            group = part.kv_heads[0] // heads_per_group
            if group not in masks:
                masks = {group: DenseMaskRows(mask, group, self.inputs.q_THD.device)}
            reference = HeadsReference(self._problem, self.inputs, part, masks[group], keep=self._keep)
            if self._keep:
                groups.append(reference)
            yield reference
        self._groups = groups


def kept_bytes(problem: Problem, scope: CheckedSubset) -> int:
    """Bytes of a kept reference with its gradients: each value in float64 and in float32."""
    num_row_vectors = scope.num_rows * problem.num_q_heads // problem.num_kv_heads
    num_key_vectors = problem.mask.seqlen_k * len(scope.kv_heads)
    return 2 * (num_row_vectors + num_key_vectors) * problem.head_dim * (8 + 4)  # out, dq; dk, dv


def index_of(rows: Sequence[int], device: torch.device) -> torch.Tensor | slice:
    """An index of these rows: a slice, which copies nothing, where they follow each other."""
    if isinstance(rows, range) and rows.step == 1:
        return slice(rows.start, rows.stop)
    return torch.tensor(rows, device=device)
