"""Arrays of tables under construction: NumPy's on the host, tensors on a GPU, by the same code.

On the host NumPy takes a half to a fifth of torch's time for arrays of some thousand numbers, as tables have.
Operators, indices and methods that both have are used directly; the rest is here, in torch's terms. All
functions return arrays of the kind that they are given.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

# np.ndarray or Tensor: a union of both would have none of their operators
Array: TypeAlias = Any


def host_view(x: Tensor) -> Array:
    """A tensor of the host as a NumPy array of the same memory; a tensor of a GPU as it is."""
    return x.numpy() if x.device.type == "cpu" else x


def as_tensor(x: Array) -> Tensor:
    """An array as a tensor of the same memory."""
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def moved(table: np.ndarray, device: torch.device | None) -> Array:
    """(n, fields) int64 to (fields, n) on the device; None: as an array of the host."""
    turned = np.ascontiguousarray(table.T, dtype=np.int64)
    return turned if device is None else torch.from_numpy(turned).to(device)


def numbers(count: int, like: Array) -> Array:
    """0, 1, … int64."""
    return np.arange(count) if isinstance(like, np.ndarray) else torch.arange(count, device=like.device)


def zeros(shape: Sequence[int], like: Array, *, short: bool = False) -> Array:
    """int64, or int32 if `short`."""
    if isinstance(like, np.ndarray):
        return np.zeros(shape, dtype=np.int32 if short else np.int64)
    return torch.zeros(tuple(shape), dtype=torch.int32 if short else torch.int64, device=like.device)


def short(x: Array) -> Array:
    """int32."""
    return x.astype(np.int32) if isinstance(x, np.ndarray) else x.to(torch.int32)


def long(x: Array) -> Array:
    """int64; floats are cut."""
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def stack(parts: Sequence[Array], axis: int = 0) -> Array:
    if isinstance(parts[0], Tensor):
        return torch.stack(list(parts), axis)
    return np.array(parts) if axis == 0 else np.stack(parts, axis)  # `np.stack` takes several times as long


def concat(parts: Sequence[Array], axis: int = 0) -> Array:
    return np.concatenate(parts, axis) if isinstance(parts[0], np.ndarray) else torch.cat(list(parts), axis)


def columns(table: Array, index: Array) -> Array:
    """Those columns of a matrix."""
    if isinstance(table, Tensor):
        return table.index_select(1, index)
    # `take` would copy a part of a matrix before
    return table.take(index, axis=1) if table.flags.c_contiguous else table[:, index]


def maximum(a: Array, b: Array) -> Array:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else torch.maximum(a, b)


def minimum(a: Array, b: Array) -> Array:
    return np.minimum(a, b) if isinstance(a, np.ndarray) else torch.minimum(a, b)


def at_least(x: Array, least: int) -> Array:
    return np.maximum(x, least) if isinstance(x, np.ndarray) else torch.clamp(x, min=least)


def at_most(x: Array, most: int) -> Array:
    return np.minimum(x, most) if isinstance(x, np.ndarray) else torch.clamp(x, max=most)


def where(condition: Array, a: Array | int, b: Array | int) -> Array:
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else torch.where(condition, a, b)


def cumulative(x: Array, axis: int = -1) -> Array:
    """Sums up to each entry."""
    return x.cumsum(axis) if isinstance(x, np.ndarray) else torch.cumsum(x, axis)


def prefix_sums(x: Array) -> Array:
    """Sums of the first 0, 1, … entries along the last axis."""
    if isinstance(x, np.ndarray):
        sums = np.zeros((*x.shape[:-1], x.shape[-1] + 1), dtype=np.int64)
        x.cumsum(-1, out=sums[..., 1:])
        return sums
    return functional.pad(torch.cumsum(x, -1), (1, 0))


def largest_so_far(x: Array, axis: int = 0) -> Array:
    return np.maximum.accumulate(x, axis) if isinstance(x, np.ndarray) else torch.cummax(x, axis).values


def least_so_far(x: Array, axis: int = 0) -> Array:
    return np.minimum.accumulate(x, axis) if isinstance(x, np.ndarray) else torch.cummin(x, axis).values


def flipped(x: Array, axis: int) -> Array:
    return np.flip(x, axis) if isinstance(x, np.ndarray) else x.flip(axis)


def positions_in(sorted_values: Array, values: Array, *, right: bool = False) -> Array:
    """The position before (or, with `right`, after) equal ones at which each value keeps the order."""
    if isinstance(sorted_values, np.ndarray):
        return sorted_values.searchsorted(values, side="right" if right else "left")
    return torch.searchsorted(sorted_values, values, right=right)


def starts_of(sorted_numbers: Array, count: int) -> Array:
    """The number of entries below each of 0, 1, … `count`; entries are at least 0, and less than `count`."""
    if isinstance(sorted_numbers, np.ndarray):
        return prefix_sums(np.bincount(sorted_numbers, minlength=count))
    return torch.searchsorted(sorted_numbers, numbers(count + 1, sorted_numbers))


def stable_order(x: Array) -> Array:
    """The stable permutation that sorts an array."""
    if isinstance(x, np.ndarray):
        return x.argsort(kind="stable")
    return torch.argsort(x, stable=True)


def sort(x: Array, *, stable: bool = True) -> tuple[Array, Array]:
    """(sorted values, permutation)."""
    order = stable_order(x) if stable or isinstance(x, Tensor) else x.argsort()
    return x[order], order


def distinct(x: Array) -> tuple[Array, Array]:
    """(distinct values, ascending; the place of each entry among them, in the shape of x)."""
    if isinstance(x, np.ndarray):
        # half of the time of `np.unique`
        values, order = sort(x.ravel(), stable=False)
        is_new = np.append(True, values[1:] != values[:-1])[: len(values)]
        places = np.empty(len(values), dtype=np.int64)
        places[order] = is_new.cumsum() - 1
        return values[is_new], places.reshape(x.shape)
    return torch.unique(x, return_inverse=True)


def inverse_of(order: Array) -> Array:
    """The inverse of a permutation."""
    inverse = zeros(order.shape, order)
    inverse[order] = numbers(len(order), order)
    return inverse


def sums_of(owner: Array, values: Array, count: int) -> Array:
    """The sum of the values of each of `count` owners, (count,)."""
    sums = zeros((count,), values)
    if isinstance(sums, np.ndarray):
        np.add.at(sums, owner, values)
        return sums
    return sums.scatter_add_(0, owner, values)


def counts_of(owner: Array, count: int) -> Array:
    """The number of entries of each of `count` owners, (count,)."""
    if isinstance(owner, np.ndarray):
        return np.bincount(owner, minlength=count)
    return sums_of(owner, torch.ones_like(owner), count)


def largest_of(owner: Array, values: Array, count: int) -> Array:
    """The largest value of each of `count` owners, (count,); 0 for those without a larger one."""
    largest = zeros((count,), values)
    if isinstance(largest, np.ndarray):
        np.maximum.at(largest, owner, values)
        return largest
    return largest.scatter_reduce_(0, owner, values, "amax")


def true_positions(mask: Array) -> Array:
    """Indices of true entries of (n,)."""
    return mask.nonzero()[0] if isinstance(mask, np.ndarray) else torch.nonzero(mask).squeeze(1)


def repeated(count: Array, total: int, values: Array | None = None) -> Array:
    """Each value count[n] times, by default n itself. `total` is the sum of counts; with it, no
    synchronisation with the device is needed."""
    if isinstance(count, np.ndarray):
        return (np.arange(len(count)) if values is None else values).repeat(count)
    owner = torch.repeat_interleave(count, output_size=total)
    return owner if values is None else values[owner]


def read(*arrays: Array) -> list[list[int]]:
    """The numbers of all (n,) arrays, read at once, since each synchronisation with the device is slow."""
    if isinstance(arrays[0], np.ndarray):
        return [x.tolist() for x in arrays]
    found = iter(torch.cat(arrays).tolist())
    return [[next(found) for _ in range(len(x))] for x in arrays]


def padded_groups(rows: Array, sizes: Sequence[int]) -> Tensor:
    """Rows sorted by group as an int32 tensor (groups, most of a group, columns), padded with zeros; in
    memory of its own, so that it is aligned."""
    rows = short(rows)
    if min(sizes) == max(sizes):
        return as_tensor(rows.reshape(len(sizes), sizes[0], rows.shape[1]))
    if isinstance(rows, np.ndarray):
        table = np.zeros((len(sizes), max(sizes), rows.shape[1]), dtype=np.int32)
        start = 0
        for group, size in zip(table, sizes, strict=True):
            group[:size] = rows[start : start + size]
            start += size
        return torch.from_numpy(table)
    return pad_sequence(list(rows.split(list(sizes))), batch_first=True)
