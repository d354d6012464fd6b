"""Sizes of the tensors of one call, from which kernels predict their buffers (`Kernel.buffer_bytes`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.masks import LazyMask, whole_mask

if TYPE_CHECKING:
    from longca.masks import Mask, Traits

FLOAT_BYTES = 4
ROUNDED_ROWS = 128  # kernels of the FlashAttention family give each packed segment so many more rows of sums
INDEX_BYTES = 4  # of an entry of a block list


@dataclass(frozen=True)
class CallSizes:
    """Bytes of tensors of one call. Queries are tokens × H × D, keys are K or V alone, tokens × G × D."""

    call: CallSpec
    traits: Traits

    @property
    def lse(self) -> int:
        """One float32 number for each query and head: the LSE, or another statistic of a row."""
        return FLOAT_BYTES * self.traits.seqlen_q * self.call.num_q_heads

    @property
    def queries(self) -> int:
        return self.call.elem_bytes * self._num_q

    @property
    def keys(self) -> int:
        return self.call.elem_bytes * self._num_k

    @property
    def query_sums(self) -> int:
        """Queries in float32."""
        return FLOAT_BYTES * self._num_q

    @property
    def key_sums(self) -> int:
        """Keys in float32."""
        return FLOAT_BYTES * self._num_k

    @property
    def wide_keys(self) -> int:
        """Keys with a head for each query head."""
        return self.keys * self.num_shared

    @property
    def num_shared(self) -> int:
        """Query heads that share a KV head."""
        return self.call.num_q_heads // self.call.num_kv_heads

    @property
    def shares_heads(self) -> bool:
        return self.num_shared > 1

    @property
    def is_backward(self) -> bool:
        return self.call.direction == "bwd"

    @property
    def density(self) -> float:
        pairs = self.traits.num_groups * self.traits.seqlen_q * self.traits.seqlen_k
        return self.traits.area / max(pairs, 1)

    def padding(self, rows: int) -> int:
        """Rows by which buffers of packed segments are longer than the tokens: `rows` for each segment; 0 for
        a single one."""
        return rows * self.traits.num_segments if self.traits.num_segments > 1 else 0

    def flash_sums(self, padded_rows: int = 0) -> int:
        """Bytes that most kernels hold in backward: two more statistics of rows, dQ in float32, and dK and dV
        in float32 if heads share keys.

        Args:
            padded_rows: of each packed segment.
        """
        padding = FLOAT_BYTES * self.call.head_dim * self.padding(padded_rows)
        query_sums = self.query_sums + padding * self.call.num_q_heads
        key_sums = self.key_sums + padding * self.call.num_kv_heads
        return 2 * self.lse + query_sums + (2 * key_sums if self.shares_heads else 0)

    def wide_sums(self, padded_rows: int = 0) -> int:
        """Bytes in backward of kernels that make dK and dV of all query heads, which are summed afterwards if
        heads share keys: two statistics of rows, and dQ in float32. Arguments as in `flash_sums`."""
        padding = FLOAT_BYTES * self.call.head_dim * self.padding(padded_rows) * self.call.num_q_heads
        return 2 * self.lse + self.query_sums + padding + self.unsummed_keys

    @property
    def unsummed_keys(self) -> int:
        """dK and dV of all query heads, if heads share keys."""
        return 2 * self.wide_keys if self.shares_heads else 0

    def num_blocks(self) -> tuple[int, int]:
        """(blocks of queries, blocks of keys) of a block mask. Those of blocks that differ in size follow
        from the number of runs: independent blocks of density p have p·(1 − p) runs each."""
        if self.traits.block_size is not None:
            block_q, block_k = self.traits.block_size
            return -(-self.traits.seqlen_q // block_q), -(-self.traits.seqlen_k // block_k)
        share = self.density * (1 - self.density)
        runs = self.traits.num_bands / self.traits.num_groups
        blocks = math.ceil(math.sqrt(runs / share)) if share else 1
        return blocks, blocks

    def tile_table(self, tile: int, num_lists: int) -> int:
        """A table with an entry for each tile of scores, for each list: a block mask of torch."""
        tiles = -(-self.traits.seqlen_q // tile) * -(-self.traits.seqlen_k // tile)
        return INDEX_BYTES * num_lists * tiles

    def block_list(self, size: tuple[int, int], num_lists: int) -> int:
        """Lists of the visible blocks of this size, each as long as the longest, which has hardly more than
        the mean."""
        blocks = -(-self.traits.seqlen_q // size[0]) * -(-self.traits.seqlen_k // size[1])
        return round(INDEX_BYTES * num_lists * blocks * self.density)

    @property
    def _num_q(self) -> int:
        return self.traits.seqlen_q * self.call.num_q_heads * self.call.head_dim

    @property
    def _num_k(self) -> int:
        return self.traits.seqlen_k * self.call.num_kv_heads * self.call.head_dim


def part_of(mask: Mask | LazyMask, traits: Traits) -> LazyMask:
    """A part of a mask with these traits. Where a kernel asks for more than these, the whole mask stands for
    the part."""
    return LazyMask(traits, lambda: whole_mask(mask))
