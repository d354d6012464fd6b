"""Conversion of user input to arrays, and errors for invalid masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from longca.core import MOST_TOKENS, UserError


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turns a ValueError about user input into a UserError.

    Args:
        what: the input with its article: "This window".
    """
    try:
        yield
    except ValueError as error:
        verb = "are" if what.startswith("These") else "is"
        raise UserError(f"{what} {verb} no mask", why=str(error)) from None


def host_array(values: Any, what: str, ragged: str = "its rows are of different lengths") -> np.ndarray:
    """A tensor on any device, an array or a list as a numpy array.

    Args:
        what: the rule for the input, for errors: "a raster must be bool".
        ragged: how lists of different lengths break the rule.

    Raises:
        ValueError: the input is not an array.
    """
    if hasattr(values, "detach"):
        try:
            return np.asarray(values.detach().cpu())
        except (TypeError, NotImplementedError, RuntimeError):  # bfloat16, which numpy lacks; meta tensors
            raise ValueError(
                f"{what}, and this is a tensor of {values.dtype} on {values.device}, which cannot be read"
            ) from None
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{what}, and {ragged}") from None


def whole_numbers(values: Any, what: str) -> np.ndarray:
    """The values as an int64 array. Raises ValueError for values that are not integers, or too large."""
    array = host_array(values, f"{what} must be whole numbers", "they are lists of different lengths")
    if array.dtype == object and array.size and all(type(number) is int for number in array.flat):
        # too large for numpy
        raise ValueError(
            f"{what} must be whole numbers below 2^63, and {max(array.flat, key=abs)} is among them"
        )
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, and they are {kind(array, values)}")
    if array.size and array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what} must be whole numbers below 2^63, and {array.max()} is among them")
    return array.astype(np.int64)


def check_sizes(sizes: np.ndarray, what: str, least: int) -> None:
    """Raise ValueError unless all sizes, in tokens, are at least `least`, and their sums over the last axis
    at most the tokens of a mask: a larger sum could wrap around."""
    if sizes.size and sizes.min() < least:
        raise ValueError(f"{what} must be whole numbers of at least {least}, and {sizes.min()} is among them")
    total = float(sizes.sum(axis=-1, dtype=np.float64).max(initial=0))  # may be larger than any int64
    if total > MOST_TOKENS:
        raise ValueError(f"a mask has at most {MOST_TOKENS} tokens, and {what} sum to {total:.3g}")


def rows_of(values: Any) -> list[Any] | None:
    """The rows of a table or of a list of rows, which may have different lengths; None for a single row."""
    if isinstance(values, (list, tuple)):
        several = len(values) > 0 and all(
            isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) > 0 for row in values
        )
        return list(values) if several else None
    return list(values) if getattr(values, "ndim", 1) > 1 else None


def kind(array: np.ndarray, values: Any) -> str:
    """Short description of the dtype of a user's array, for error messages."""
    return {"U": "text", "S": "text", "b": "bool", "O": type(values).__name__}.get(
        array.dtype.kind, str(array.dtype)
    )


def runs(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, start, end) of each run of True in the rows of a raster, in order."""
    step = np.diff(np.pad(visible, ((0, 0), (1, 1))).view(np.int8), axis=1)
    row, start = np.nonzero(step == 1)
    return row, start, np.nonzero(step == -1)[1]
