"""Attention under FlashMask's column form: the forward pass.

For each key up to four numbers say from which query on, and until which, it is hidden. Their minima and
maxima over a tile of keys decide, before the call, whether a tile is skipped, needs no element test, or is
tested element by element (`flashmask.tiles`). This is the form of Paddle's FlashMask in Triton, not Paddle's
kernel.

Shapes: H query heads, G KV heads, M head groups with masks of their own, T tokens, D head dim. Tensors are
    q_HTD, k_GTD,
v_GTD, out_HTD, lse_HT. Offsets of a head are 64-bit; inside a head 32 bits reach 16 M tokens at D = 128.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from longca.ops.flashmask.tiles import TileLists, col_lists, row_lists
from longca.ops.tile_sources import load_tile, tile_source
from longca.ops.tuning import Tuning


@dataclass(frozen=True, eq=False)
class FlashMaskTensors:
    """A mask on the device, and the tiles of the kernels that take it."""

    columns: torch.Tensor  # int32 (M, C, Tk); C = 1, 2 or 4
    causal: bool
    tuning: Tuning
    forward: TileLists
    queries: TileLists | None  # for the backward pass: of dQ
    keys: TileLists | None  # and of dK and dV

    @property
    def num_bytes(self) -> int:
        lists = {
            id(part): part.num_bytes for part in (self.forward, self.queries, self.keys) if part is not None
        }
        return self.columns.numel() * self.columns.element_size() + sum(lists.values())

    def sizes(self, q: torch.Tensor, k: torch.Tensor) -> tuple[int, int, int, int]:
        """The sizes that each kernel takes: lengths, query heads of a KV head, KV heads of a head group."""
        return q.shape[1], k.shape[1], len(q) // len(k), len(k) // len(self.columns)

    def variant(self, q: torch.Tensor) -> tuple[bool, int, int]:
        """The constants that each kernel is compiled for: causal, columns, head dim."""
        return self.causal, self.columns.shape[1], q.shape[2]


def make_mask(
    columns: torch.Tensor, causal: bool, seqlen_q: int, tuning: Tuning, needs_backward: bool
) -> FlashMaskTensors:
    """Makes a mask: the columns and the tile lists of each kernel.

    Args:
        columns: int32 (M, Tk, C) in the order LTS, LTE, UTS, UTE. causal, C = 1: query i is hidden from LTS
            on. causal, 2: in [LTS, LTE). Not causal, 2: from LTS on and before UTE. Not causal, 4: in [LTS,
            LTE) and [UTS, UTE).
        causal: hides queries before the key as well.
    """
    columns = columns.transpose(1, 2).contiguous()
    rows = {
        tile: row_lists(columns, causal, seqlen_q, *tile)
        for tile in ({tuning.forward.tile, tuning.queries.tile} if needs_backward else {tuning.forward.tile})
    }
    keys = col_lists(columns, causal, seqlen_q, *tuning.keys.tile) if needs_backward else None
    return FlashMaskTensors(columns, causal, tuning, rows[tuning.forward.tile],
                            rows[tuning.queries.tile] if needs_backward else None, keys)


@triton.jit
def is_visible(row, key, columns_ptr, seqlen_k, CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr):
    """The element test of a tile, for rows and keys that broadcast against each other."""
    inside = key < seqlen_k
    hidden = row >= tl.load(columns_ptr + key, mask=inside, other=0)
    if NUM_COLUMNS == 2:
        second = row < tl.load(columns_ptr + seqlen_k + key, mask=inside, other=0)
        hidden = hidden & second if CAUSAL else hidden | second
    if NUM_COLUMNS == 4:
        hidden = hidden & (row < tl.load(columns_ptr + seqlen_k + key, mask=inside, other=0))
        upper = row >= tl.load(columns_ptr + 2 * seqlen_k + key, mask=inside, other=0)
        hidden = hidden | (upper & (row < tl.load(columns_ptr + 3 * seqlen_k + key, mask=inside, other=0)))
    visible = inside & (hidden == 0)
    if CAUSAL:
        visible = visible & (row >= key)
    return visible


@triton.jit
def _attend(acc, row_max, row_sum, q, row, k_src, v_src, kv_head, columns_ptr, tiles_ptr, start, end,
            seqlen_k, scale_log2,
            TESTED: tl.constexpr, CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr,
            TILE_K: tl.constexpr, BY_TMA: tl.constexpr):
    """Online softmax over one list of tiles of keys. Maxima are of scaled s, to shift 2."""
    tile = tl.load(tiles_ptr + start, mask=start < end, other=0)
    for place in tl.range(start, end):
        key0 = tile * TILE_K
        # a round ahead: loads of keys never wait for it
        tile = tl.load(tiles_ptr + place + 1, mask=place + 1 < end, other=0)
        k = load_tile(k_src, kv_head, key0, HEAD_DIM, seqlen_k, TILE_K, HEAD_DIM, not TESTED, BY_TMA)
        s = tl.dot(q, tl.trans(k))
        if TESTED:
            key = key0 + tl.arange(0, TILE_K)
            seen = is_visible(row[:, None], key[None, :], columns_ptr, seqlen_k, CAUSAL, NUM_COLUMNS)
            s = tl.where(seen, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = new_max
        if TESTED:  # nothing seen yet: any finite shift will do
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.math.exp2(s * scale_log2 - shift[:, None])
        rescale = tl.math.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        v = load_tile(v_src, kv_head, key0, HEAD_DIM, seqlen_k, TILE_K, HEAD_DIM, not TESTED, BY_TMA)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _forward(q_ptr, k_src, v_src, out_ptr, lse_ptr, columns_ptr, full_offsets_ptr, full_tiles_ptr,
             part_offsets_ptr,
             part_tiles_ptr, seqlen_q, seqlen_k, heads_per_kv_head, kv_heads_per_group, scale_log2,
             CAUSAL: tl.constexpr,
             NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
             BY_TMA: tl.constexpr):
    """One tile of queries of one head."""
    num_row_tiles = tl.num_programs(0)
    # under a causal mask the last tiles are the longest: they start first
    row_tile = num_row_tiles - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // heads_per_kv_head
    group = kv_head // kv_heads_per_group
    if not BY_TMA:
        k_src += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
        v_src += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
    columns_ptr += group.to(tl.int64) * NUM_COLUMNS * seqlen_k

    row = row_tile * TILE_Q + tl.arange(0, TILE_Q)
    offset = (
        head.to(tl.int64) * seqlen_q * HEAD_DIM + row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    )
    q = tl.load(q_ptr + offset, mask=row[:, None] < seqlen_q, other=0.0)
    acc = tl.zeros([TILE_Q, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([TILE_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_Q], dtype=tl.float32)
    entry = group * num_row_tiles + row_tile
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, row, k_src, v_src, kv_head, columns_ptr, full_tiles_ptr,
                                    tl.load(full_offsets_ptr + entry),
        tl.load(full_offsets_ptr + entry + 1), seqlen_k, scale_log2, False, CAUSAL, NUM_COLUMNS, HEAD_DIM,
                                    TILE_K, BY_TMA)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, row, k_src, v_src, kv_head, columns_ptr, part_tiles_ptr,
                                    tl.load(part_offsets_ptr + entry),
        tl.load(part_offsets_ptr + entry + 1), seqlen_k, scale_log2, True, CAUSAL, NUM_COLUMNS, HEAD_DIM,
                                    TILE_K, BY_TMA)

    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)
    lse = tl.where(empty, float("-inf"), (row_max + tl.math.log2(row_sum)) * 0.6931471805599453)
    tl.store(
        out_ptr + offset, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=row[:, None] < seqlen_q
    )
    tl.store(lse_ptr + head.to(tl.int64) * seqlen_q + row, lse, mask=row < seqlen_q)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: FlashMaskTensors, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out (H, Tq, D), LSE (H, Tq) float32). Rows without keys: out 0, LSE −inf.

    Args:
        q, k, v: contiguous (H, Tq, D) and (G, Tk, D); D a power of 2.
    """
    tiling, lists = mask.tuning.forward, mask.forward
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    k_src, v_src = (tile_source(x, tiling.tile_k, tiling.by_tma) for x in (k, v))
    with torch.cuda.device_of(q):
        _forward[(triton.cdiv(q.shape[1], tiling.tile_q), len(q))](
            q, k_src, v_src, out, lse, mask.columns, lists.full_offsets, lists.full_tiles, lists.part_offsets,
                                                                   lists.part_tiles,
            *mask.sizes(q, k), scale * 1.4426950408889634, *mask.variant(q), *tiling.tile, tiling.by_tma,
            num_warps=tiling.num_warps, num_stages=tiling.num_stages)
    return out, lse
