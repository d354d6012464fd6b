"""Attention under FlashMask's column form: the forward pass.

For each key up to four numbers say from which query on, and until which, it is hidden. Minima and maxima of these over a
tile of keys decide, before the call, whether a tile is skipped, needs no element test, or is tested element by element
(`flashmask_tiles`). This is the form of Paddle's FlashMask in Triton, not Paddle's kernel.

Shapes: H query heads, G KV heads, M head groups with masks of their own, T tokens, D head dim. Tensors are q_HTD, k_GTD,
v_GTD, out_HTD, lse_HT. Offsets of a head are 64-bit; inside a head 32 bits reach 16 M tokens at D = 128.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from longca.ops.flashmask_tiles import TileLists, col_lists, row_lists

ROW_TILE = (128, 64)  # queries × keys, of the row-parallel kernels: forward and dQ
COL_TILE = (64, 128)  # of the column-parallel one: dK and dV


@dataclass(frozen=True, eq=False)
class FlashMask:
    """A mask on the device."""

    columns: torch.Tensor  # int32 (M, C, Tk); C = 1, 2 or 4
    causal: bool
    rows: TileLists
    cols: TileLists | None  # for the backward pass

    @property
    def num_bytes(self) -> int:
        lists = self.rows.num_bytes + (self.cols.num_bytes if self.cols is not None else 0)
        return self.columns.numel() * self.columns.element_size() + lists


def make_mask(columns: torch.Tensor, causal: bool, seqlen_q: int, needs_backward: bool) -> FlashMask:
    """The tile lists beside the columns.

    Args:
        columns: int32 (M, Tk, C) in the order LTS, LTE, UTS, UTE. causal, C = 1: query i is hidden from LTS on. causal, 2: in
            [LTS, LTE). Not causal, 2: from LTS on and before UTE. Not causal, 4: in [LTS, LTE) and [UTS, UTE).
        causal: hides queries before the key as well.
    """
    columns = columns.transpose(1, 2).contiguous()
    rows = row_lists(columns, causal, seqlen_q, *ROW_TILE)
    return FlashMask(columns, causal, rows, col_lists(columns, causal, seqlen_q, *COL_TILE) if needs_backward else None)


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
def _attend(acc, row_max, row_sum, q, row, k_ptr, v_ptr, columns_ptr, tiles_ptr, first, last, seqlen_k, scale_log2,
            TESTED: tl.constexpr, CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr,
            TILE_K: tl.constexpr):
    """Online softmax over one list of tiles of keys."""
    dim = tl.arange(0, HEAD_DIM)
    for place in tl.range(first, last):
        key = tl.load(tiles_ptr + place) * TILE_K + tl.arange(0, TILE_K)
        if TESTED:
            k = tl.load(k_ptr + key[None, :] * HEAD_DIM + dim[:, None], mask=key[None, :] < seqlen_k, other=0.0)
            v = tl.load(v_ptr + key[:, None] * HEAD_DIM + dim[None, :], mask=key[:, None] < seqlen_k, other=0.0)
        else:
            k = tl.load(k_ptr + key[None, :] * HEAD_DIM + dim[:, None])
            v = tl.load(v_ptr + key[:, None] * HEAD_DIM + dim[None, :])
        scores = tl.dot(q, k) * scale_log2
        if TESTED:
            seen = is_visible(row[:, None], key[None, :], columns_ptr, seqlen_k, CAUSAL, NUM_COLUMNS)
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        base = new_max
        if TESTED:  # nothing seen yet: any finite base will do
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.math.exp2(scores - base[:, None])
        shrink = tl.math.exp2(row_max - base)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _forward(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, columns_ptr, full_offsets_ptr, full_tiles_ptr, part_offsets_ptr,
             part_tiles_ptr, seqlen_q, seqlen_k, heads_per_kv_head, kv_heads_per_group, scale_log2, CAUSAL: tl.constexpr,
             NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr):
    """One tile of queries of one head."""
    num_lines = tl.num_programs(0)
    line = num_lines - 1 - tl.program_id(0)  # under a causal mask the last tiles are the longest: they start first
    head = tl.program_id(1)
    kv_head = head // heads_per_kv_head
    group = kv_head // kv_heads_per_group
    q_ptr += head.to(tl.int64) * seqlen_q * HEAD_DIM
    out_ptr += head.to(tl.int64) * seqlen_q * HEAD_DIM
    k_ptr += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
    v_ptr += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
    columns_ptr += group.to(tl.int64) * NUM_COLUMNS * seqlen_k

    row = line * TILE_Q + tl.arange(0, TILE_Q)
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + row[:, None] * HEAD_DIM + dim[None, :], mask=row[:, None] < seqlen_q, other=0.0)
    acc = tl.zeros([TILE_Q, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([TILE_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_Q], dtype=tl.float32)
    place = group * num_lines + line
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, row, k_ptr, v_ptr, columns_ptr, full_tiles_ptr, tl.load(full_offsets_ptr + place),
        tl.load(full_offsets_ptr + place + 1), seqlen_k, scale_log2, False, CAUSAL, NUM_COLUMNS, HEAD_DIM, TILE_K)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, row, k_ptr, v_ptr, columns_ptr, part_tiles_ptr, tl.load(part_offsets_ptr + place),
        tl.load(part_offsets_ptr + place + 1), seqlen_k, scale_log2, True, CAUSAL, NUM_COLUMNS, HEAD_DIM, TILE_K)

    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)
    lse = tl.where(empty, float("-inf"), (row_max + tl.math.log2(row_sum)) * 0.6931471805599453)
    tl.store(out_ptr + row[:, None] * HEAD_DIM + dim[None, :], (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty),
             mask=row[:, None] < seqlen_q)
    tl.store(lse_ptr + head.to(tl.int64) * seqlen_q + row, lse, mask=row < seqlen_q)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: FlashMask, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(out (H, Tq, D), LSE (H, Tq) float32). Rows without keys: out 0, LSE −inf.

    Args:
        q, k, v: contiguous (H, Tq, D) and (G, Tk, D); D a power of 2.
    """
    num_heads, seqlen_q, head_dim = q.shape
    out, lse = torch.empty_like(q), torch.empty(num_heads, seqlen_q, dtype=torch.float32, device=q.device)
    groups, num_columns, seqlen_k = mask.columns.shape
    rows = mask.rows
    with torch.cuda.device_of(q):
        _forward[(triton.cdiv(seqlen_q, ROW_TILE[0]), num_heads)](
            q, k, v, out, lse, mask.columns, rows.full_offsets, rows.full_tiles, rows.part_offsets, rows.part_tiles, seqlen_q,
            seqlen_k, num_heads // len(k), len(k) // groups, scale * 1.4426950408889634, mask.causal, num_columns, head_dim,
            *ROW_TILE, num_warps=8 if head_dim > 64 else 4, num_stages=3)
    return out, lse
