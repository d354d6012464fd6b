"""Data types of other libraries' mask formats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# (left, right): -left <= j - i <= right; -1 for no bound (FlashAttention's convention)
Window = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Varlen:
    """Segments whose tokens see only tokens of their own segment.

    Query i and key j of a segment of lq queries and lk keys, counted from its first ones, see each other
    where j - i - (lk - lq) is in [-left, right]: the window is aligned at the last query and the last key, as
    FlashAttention aligns it.
    """

    cu_seqlens: np.ndarray  # int32 (segments + 1,), from 0 to the number of queries
    max_seqlen: int
    window: Window
    # int32, from 0 to the number of keys; None if equal to those of the queries
    cu_seqlens_k: np.ndarray | None = None
    max_seqlen_k: int | None = None


@dataclass(frozen=True, eq=False)
class FlashMaskColumns:
    """Ranges of queries i that do not see key j; the number of columns decides the form. `causal` hides rows
    i < j in addition.

    causal, 1: i >= LTS. causal, 2: LTS <= i < LTE. Not causal, 2 (LTS, UTE): i >= LTS or i < UTE.
    Not causal, 4 (LTS, LTE, UTS, UTE): LTS <= i < LTE or UTS <= i < UTE.
    """

    causal: bool
    columns: np.ndarray  # int32 (G, Sk, 1 | 2 | 4)

    @property
    def startend_row_indices(self) -> np.ndarray:
        """The columns in the format of `flashmask_attention`: int32 (1, G, Sk, 1 | 2 | 4)."""
        return self.columns[None]


class SliceType(IntEnum):
    """The visible pairs of a rectangle of lq × lk, with i and j counted from its corner."""

    FULL = 0
    CAUSAL = 1  # j <= i + lk - lq: the diagonal ends in the bottom right corner
    INVCAUSAL = 2  # j >= i: the diagonal starts in the top left corner
    BICAUSAL = 3  # both


@dataclass(frozen=True, eq=False)
class AttnSlices:
    """Disjoint rectangles with their types."""

    q_ranges: np.ndarray  # int32 (n, 2), half-open
    k_ranges: np.ndarray  # int32 (n, 2), half-open
    types: np.ndarray  # int32 (n,) of SliceType


@dataclass(frozen=True, eq=False)
class BlockMap:
    """Blocks, each visible or hidden, in the format of FlashInfer's and VSA's block-sparse calls."""

    sizes_q: np.ndarray  # int32 (G, M): tokens of each q-block
    sizes_k: np.ndarray  # int32 (G, N)
    visible: np.ndarray  # bool (G, M, N)
