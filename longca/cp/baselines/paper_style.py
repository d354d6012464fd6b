"""Common part of the two strategies in the style of the study (arXiv 2510.17896): masks, sharding and
padding.

The two are `strategies/paper_style_ring.py` and `strategies/paper_style_allgather.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.core import Answer, CallSpec
from longca.cp.contract import PreparedStrategy, Strategy, TokenShard
from longca.cp.runtime.accumulate import LocalCall
from longca.masks import LazyMask, Mask, band, diagonal_segments, whole_mask
from longca.masks.band import spread

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import Traits

FULL = (-1, -1)
CAUSAL = (-1, 0)
BOTH = (0, 1)


class PaperStyle(Strategy):
    """A strategy for full and causal attention, over the sequence or within documents, as in the study's
    multi-GPU code."""

    url = "https://arxiv.org/abs/2510.17896"
    baseline = True

    def refusal(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> Answer:
        return super().refusal(mask, call, world, kernel, device_type) or kernel.in_parts(call, device_type)

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if traits.per_head or not traits.num_segments or traits.window not in (FULL, CAUSAL):
            return (
                "the study's schedules are for full and causal attention, over the sequence or inside "
                "documents"
            )
        return self.own_calls(traits, call, world)

    def documents(self, mask: Mask | LazyMask, world: int) -> tuple[PaddedDocuments, bool]:
        """(the documents of a mask that the study's schedules do, True if it is causal)."""
        segments = diagonal_segments(whole_mask(mask))
        assert segments is not None, "`refusal` has been asked"
        return PaddedDocuments(segments.bounds, world), segments.window == CAUSAL

    def own_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls:
        """`local_calls` under a mask that the study's schedules do."""
        raise NotImplementedError


def rectangle(traits: Traits, num_q: int, num_k: int, *, causal: bool = False) -> Traits:
    """Traits of a call whose queries see all given keys of their document, or the preceding ones; lengths are
    those of the call."""
    full = traits.num_segments == 1 and not causal
    square = full and num_q == num_k
    return replace(
        traits,
        seqlen_q=num_q,
        seqlen_k=num_k,
        num_bands=traits.num_segments,
        full=full,
        causal=False,
        num_segments=int(square),
        window=FULL if square else None,
    )


def add_rows(whole: torch.Tensor, rows: torch.Tensor, part: torch.Tensor) -> None:
    """whole[rows] += part in the dtype of the whole, for distinct rows: `index_add_` would use atomics."""
    whole.index_copy_(0, rows, whole.index_select(0, rows).add_(part))


@dataclass(frozen=True, eq=False)
class HeldTokens:
    """The tokens of some chunks of a rank, without the padding."""

    positions: np.ndarray
    """positions of the tokens in the sequence, (L,) int64, by document"""
    rows: np.ndarray
    """their rows among the rank's padded rows, (L,)"""
    lengths: np.ndarray
    """tokens of each document, (N,)"""
    ends: np.ndarray
    """tokens of each document from its beginning to the last held token, (N,)"""


class PaddedDocuments:
    """Sharding in which all ranks have the same number of rows of every document, padding included.

    Each document is cut into 2P equal chunks, the last ones padded; rank r holds chunks r and 2P − 1 − r of
    every document, document by document. So all ranks have the same area of a causal document. P = 2, one
    document of 7 tokens and a row of padding:

        chunk    0     1     2     3
        tokens   0 1 | 2 3 | 4 5 | 6 ·
        rank     0     1     1     0

    Shapes: P ranks, N documents, R rows of a rank with padding, L tokens of a rank.

    Args:
        bounds: document n is tokens bounds[n]..bounds[n + 1].
    """

    def __init__(self, bounds: np.ndarray, world: int) -> None:
        self.bounds = bounds
        self.world = world
        self._chunk = -(-np.diff(bounds) // (2 * world))
        self._before = 2 * (np.cumsum(self._chunk) - self._chunk)
        self.num_rows = int(2 * self._chunk.sum())
        """R, of every rank"""

    @cached_property
    def num_padding(self) -> int:
        """Number of padding rows on all ranks."""
        return self.num_rows * self.world - int(self.bounds[-1])

    def held(self, rank: int, halves: tuple[int, ...] = BOTH) -> HeldTokens:
        """The tokens of a rank in the first chunk (0) of each document, in the second (1), or in both."""
        numbers = np.array([(rank, 2 * self.world - 1 - rank)[half] for half in halves])
        start = self.bounds[:-1, None]
        end = self.bounds[1:, None]
        chunk_start = np.minimum(start + numbers * self._chunk[:, None], end)
        chunk_end = np.minimum(chunk_start + self._chunk[:, None], end)
        chunk, positions = spread(chunk_start.ravel(), chunk_end.ravel())
        offset = self._before[:, None] + np.array(halves) * self._chunk[:, None] - chunk_start
        lengths = chunk_end - chunk_start
        ends = np.where(lengths > 0, chunk_end - start, 0).max(axis=1)
        return HeldTokens(positions, positions + offset.ravel()[chunk], lengths.sum(axis=1), ends)

    def num_keys(self, held: HeldTokens, *, causal: bool) -> np.ndarray:
        """Keys of each document that held tokens may see, (N,)."""
        return np.where(held.lengths > 0, held.ends if causal else np.diff(self.bounds), 0)

    def rows_of(self, documents: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rank, row on that rank) of the first lengths[n] tokens of documents[n], document by document."""
        document, inside = spread(np.zeros_like(lengths), lengths)
        document = documents[document]
        number, offset = np.divmod(inside, self._chunk[document])
        second = number >= self.world
        rank = np.where(second, 2 * self.world - 1 - number, number)
        return rank, self._before[document] + second * self._chunk[document] + offset


def full_mask(q_lengths: np.ndarray, k_lengths: np.ndarray) -> Mask:
    """The mask in which queries see all keys of their document; lengths are of each document."""
    return Mask(
        int(q_lengths.sum()), int(k_lengths.sum()), (band.make(*_edges(q_lengths), *_edges(k_lengths)),)
    )


def causal_mask(q_lengths: np.ndarray, k_lengths: np.ndarray) -> Mask:
    """Like `full_mask`, but only the last query of a document sees its last key, the preceding query sees one
    key less, and so on."""
    q0, q1 = _edges(q_lengths)
    k0, k1 = _edges(k_lengths)
    return Mask(int(q_lengths.sum()), int(k_lengths.sum()), (band.make(q0, q1, k0, k1, hi=k1 - q1),))


def gathered_mask(documents: PaddedDocuments, held: HeldTokens, *, causal: bool) -> Mask:
    """The mask of held tokens and all keys of their documents that they may see, with those of all ranks at
    hand."""
    num_keys = documents.num_keys(held, causal=causal)
    return (causal_mask if causal else full_mask)(held.lengths, num_keys)


def _edges(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    end = np.cumsum(lengths)
    return end - lengths, end


class PaperStylePrepared(PreparedStrategy):
    """Keys and values of a rank are in one buffer of 2R rows × G heads × D: first k, then v, with padding."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm) -> None:
        segments = diagonal_segments(problem.mask)
        assert segments is not None, "`supports` has been asked"
        self.documents = PaddedDocuments(segments.bounds, comm.world)
        self.causal = segments.window == CAUSAL
        self.mine = self.documents.held(comm.rank)
        super().__init__(problem, TokenShard(self.mine.positions))
        self.comm = comm
        self._kernel = kernel
        self._counted = Counter()
        self._kv_rows = self.both(self.mine.rows)
        if self.documents.num_padding:
            self.notes.append(
                f"documents are padded to multiples of {2 * comm.world} tokens: "
                f"{self.documents.num_padding} rows more than the {problem.mask.seqlen_q} tokens"
            )

    def call(self, mask: Mask) -> LocalCall:
        """The kernel prepared for a part of the mask; its costs are added to the strategy's."""
        call = LocalCall(self._kernel, replace(self.problem, mask=mask))
        self._counted.update(call.prepared.costs)
        self.costs |= self._counted
        self.notes += [note for note in call.prepared.notes if note not in self.notes]
        return call

    def on_device(self, index: np.ndarray) -> torch.Tensor:
        import torch

        return torch.from_numpy(index).to(self.problem.device)

    def both(self, rows: np.ndarray) -> torch.Tensor:
        """Rows of a rank's buffer: the keys of these rows, then their values."""
        return self.on_device(np.concatenate([rows, rows + self.documents.num_rows]))

    def pad(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """A buffer with this rank's keys and values; rows of padding are 0."""
        import torch

        buffer = k.new_zeros(2 * self.documents.num_rows, *k.shape[1:])
        return buffer.index_copy_(0, self._kv_rows, torch.cat([k, v]))

    def unpad(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = buffer.index_select(0, self._kv_rows).chunk(2)
        return k, v

    @property
    def shard_bytes(self) -> float:
        """Bytes of the keys of an even share of the tokens, for traffic formulas. Values have the same
        size."""
        problem = self.problem
        return (
            problem.mask.seqlen_q
            / self.comm.world
            * problem.num_kv_heads
            * problem.head_dim
            * problem.dtype.itemsize
        )
