"""FlashAttention-2 over lists of visible blocks, in Triton: forward and backward, GQA, lists for each head
group.

A re-implementation of the algorithm (tiles of scores that never leave the chip; the log of the row sums kept
for the backward; dK and dV by columns, dQ by rows, no atomics), where the loop over keys is a loop over a
list of blocks.

Shapes: q, out, dout (Sq, H, D); k, v (Sk, G, D); lse and delta float32 (H, Sq). All contiguous. A list
    belongs to a head
group of the mask. TILE sizes divide the block's, so a tile never leaves its block; with EVEN, both lengths
are multiples of the tiles.
"""

import torch
import triton
import triton.language as tl

from longca.ops.tile_sources import load_tile, tile_source
from longca.ops.tuning import Tiling, Tuning

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def _rows(base, row0, stride, seqlen, TILE: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):
    """Loads (TILE, D) rows from row0 on; zeros past the end."""
    rows, dims = tl.arange(0, TILE), tl.arange(0, D)
    pointers = base + row0.to(tl.int64) * stride + rows[:, None] * stride + dims[None, :]
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=(row0 + rows)[:, None] < seqlen, other=0.0)


@triton.jit
def _store_rows(base, row0, stride, seqlen, values, TILE: tl.constexpr, D: tl.constexpr):
    rows, dims = tl.arange(0, TILE), tl.arange(0, D)
    pointers = base + row0.to(tl.int64) * stride + rows[:, None] * stride + dims[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=(row0 + rows)[:, None] < seqlen)


@triton.jit
def _forward(q_ptr, k_src, v_src, out_ptr, lse_ptr, list_ptr, count_ptr, seqlen_q, seqlen_k, num_blocks,
             width, scale_log2,
             H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr,
             BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr, BY_TMA: tl.constexpr,
             EVEN: tl.constexpr):
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    kv_head = head // (H // G)
    entry = (kv_head * GROUPS // G) * num_blocks + row0 // BLOCK_Q
    blocks_ptr = list_ptr + entry.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_K // TILE_K
    if not BY_TMA:
        k_src += kv_head * D
        v_src += kv_head * D
    q = _rows(q_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    row_max = tl.full([TILE_Q], float("-inf"), tl.float32)
    row_sum = tl.zeros([TILE_Q], tl.float32)
    acc = tl.zeros([TILE_Q, D], tl.float32)
    num_tiles = tl.load(count_ptr + entry) * tiles
    block = tl.load(blocks_ptr, mask=num_tiles > 0, other=0)
    for number in range(num_tiles):
        col0 = block * BLOCK_K + number % tiles * TILE_K
        # a round ahead: loads of keys never wait for it
        block = tl.load(blocks_ptr + (number + 1) // tiles, mask=number + 1 < num_tiles, other=0)
        k = load_tile(k_src, kv_head, col0, G * D, seqlen_k, TILE_K, D, EVEN, BY_TMA)
        s = tl.dot(q, tl.trans(k))
        # a block has at least one column, and its first tile comes first: `row_max` is finite from then on
        if not EVEN:
            s = tl.where((col0 + tl.arange(0, TILE_K))[None, :] < seqlen_k, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        v = load_tile(v_src, kv_head, col0, G * D, seqlen_k, TILE_K, D, EVEN, BY_TMA)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        row_max = new_max
    rows = row0 + tl.arange(0, TILE_Q)
    lse = tl.where(row_sum > 0, row_max * LN_2 + tl.log(row_sum), float("-inf"))
    tl.store(lse_ptr + head.to(tl.int64) * seqlen_q + rows, lse, mask=rows < seqlen_q)
    acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    _store_rows(out_ptr + head * D, row0, H * D, seqlen_q, acc, TILE_Q, D)


@triton.jit
def _preprocess(out_ptr, dout_ptr, lse_ptr, delta_ptr, lse_log2_ptr, seqlen_q, H: tl.constexpr,
                D: tl.constexpr, TILE_Q: tl.constexpr):
    """delta = rowsum(dout · out), and LSE · log2 e."""
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    out = _rows(out_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, False).to(tl.float32)
    dout = _rows(dout_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, False).to(tl.float32)
    rows = row0 + tl.arange(0, TILE_Q)
    place = head.to(tl.int64) * seqlen_q + rows
    tl.store(delta_ptr + place, tl.sum(out * dout, 1), mask=rows < seqlen_q)
    tl.store(
        lse_log2_ptr + place,
        tl.load(lse_ptr + place, mask=rows < seqlen_q, other=0.0) * LOG2_E,
        mask=rows < seqlen_q,
    )


@triton.jit
def _backward_dkdv(q_src, k_ptr, v_ptr, dout_src, lse_log2_ptr, delta_ptr, dk_ptr, dv_ptr, list_ptr,
                   count_ptr, seqlen_q,
                      seqlen_k, num_blocks, width, scale, H: tl.constexpr, G: tl.constexpr,
                   GROUPS: tl.constexpr, D: tl.constexpr,
                      BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr,
                   TILE_K: tl.constexpr,
                      BY_TMA: tl.constexpr, EVEN: tl.constexpr):
    """dK and dV of one tile of keys, over all query heads that share it."""
    col0, kv_head = tl.program_id(0) * TILE_K, tl.program_id(1)
    entry = (kv_head * GROUPS // G) * num_blocks + col0 // BLOCK_K
    blocks_ptr = list_ptr + entry.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_Q // TILE_Q
    k = _rows(k_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
    v = _rows(v_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
    dk, dv = tl.zeros([TILE_K, D], tl.float32), tl.zeros([TILE_K, D], tl.float32)
    num_tiles = tl.load(count_ptr + entry) * tiles
    head, number = kv_head * (H // G), 0
    block = tl.load(blocks_ptr, mask=num_tiles > 0, other=0)
    # one loop over heads and blocks: nested ones would not be pipelined
    for _ in range(num_tiles * (H // G)):
        row0 = block * BLOCK_Q + number % tiles * TILE_Q
        q = load_tile(
            q_src if BY_TMA else q_src + head * D, head, row0, H * D, seqlen_q, TILE_Q, D, EVEN, BY_TMA
        )
        dout = load_tile(
            dout_src if BY_TMA else dout_src + head * D, head, row0, H * D, seqlen_q, TILE_Q, D, EVEN, BY_TMA
        )
        rows = row0 + tl.arange(0, TILE_Q)
        place = head.to(tl.int64) * seqlen_q + rows
        is_last = number + 1 == num_tiles
        head, number = tl.where(is_last, head + 1, head), tl.where(is_last, 0, number + 1)
        block = tl.load(blocks_ptr + number // tiles)  # a round ahead: loads of queries never wait for it
        s_t = tl.dot(k, tl.trans(q))
        dp_t = tl.dot(v, tl.trans(dout))  # at this position it needs the fewest registers
        lse_log2 = (
            tl.load(lse_log2_ptr + place)
            if EVEN
            else tl.load(lse_log2_ptr + place, mask=rows < seqlen_q, other=float("inf"))
        )
        # 0 for rows past the end, whose LSE is infinite
        p_t = tl.exp2(s_t * (scale * LOG2_E) - lse_log2[None, :])
        dv = tl.dot(p_t.to(dout.dtype), dout, dv)
        delta = (
            tl.load(delta_ptr + place)
            if EVEN
            else tl.load(delta_ptr + place, mask=rows < seqlen_q, other=0.0)
        )
        ds_t = p_t * (dp_t - delta[None, :])
        dk = tl.dot(ds_t.to(q.dtype), q, dk)
    _store_rows(dk_ptr + kv_head * D, col0, G * D, seqlen_k, dk * scale, TILE_K, D)
    _store_rows(dv_ptr + kv_head * D, col0, G * D, seqlen_k, dv, TILE_K, D)


@triton.jit
def _backward_dq(q_ptr, k_src, v_src, dout_ptr, lse_log2_ptr, delta_ptr, dq_ptr, list_ptr, count_ptr,
                 seqlen_q, seqlen_k,
                         num_blocks, width, scale, H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr,
                 D: tl.constexpr,
                         BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr,
                 TILE_K: tl.constexpr,
                         BY_TMA: tl.constexpr, EVEN: tl.constexpr):
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    kv_head = head // (H // G)
    entry = (kv_head * GROUPS // G) * num_blocks + row0 // BLOCK_Q
    blocks_ptr = list_ptr + entry.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_K // TILE_K
    if not BY_TMA:
        k_src += kv_head * D
        v_src += kv_head * D
    rows = row0 + tl.arange(0, TILE_Q)
    place = head.to(tl.int64) * seqlen_q + rows
    q = _rows(q_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    dout = _rows(dout_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    lse_log2 = tl.load(lse_log2_ptr + place, mask=rows < seqlen_q, other=float("inf"))
    delta = tl.load(delta_ptr + place, mask=rows < seqlen_q, other=0.0)
    dq = tl.zeros([TILE_Q, D], tl.float32)
    num_tiles = tl.load(count_ptr + entry) * tiles
    block = tl.load(blocks_ptr, mask=num_tiles > 0, other=0)
    for number in range(num_tiles):
        col0 = block * BLOCK_K + number % tiles * TILE_K
        block = tl.load(blocks_ptr + (number + 1) // tiles, mask=number + 1 < num_tiles, other=0)
        k = load_tile(k_src, kv_head, col0, G * D, seqlen_k, TILE_K, D, EVEN, BY_TMA)
        v = load_tile(v_src, kv_head, col0, G * D, seqlen_k, TILE_K, D, EVEN, BY_TMA)
        s = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
        if not EVEN:
            s = tl.where((col0 + tl.arange(0, TILE_K))[None, :] < seqlen_k, s, float("-inf"))
        p = tl.exp2(s - lse_log2[:, None])
        ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    _store_rows(dq_ptr + head * D, row0, H * D, seqlen_q, dq * scale, TILE_Q, D)


def sparse_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor,
                   counts: torch.Tensor,
                   blocks: tuple[int, int], scale: float,
                   tiling: Tiling) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of queries that see the blocks of their lists.

    Args:
        lists, counts: int32 (groups, q-blocks, width), (groups, q-blocks): k-blocks of each q-block.
        blocks: (q, k) size, multiples of 16; the last block may be shorter.
        tiling: tiles divide the blocks.
    """
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q), dtype=torch.float32, device=q.device)
    k_src, v_src = (tile_source(x.transpose(0, 1), tiling.tile_k, tiling.by_tma) for x in (k, v))
    _forward[(triton.cdiv(len(q), tiling.tile_q), q.shape[1])](
        q, k_src, v_src, out, lse, lists, counts, len(q), len(k), counts.shape[1], lists.shape[2],
                                                               scale * 1.4426950408889634,
        *_variant(q, k, lists, blocks, tiling), num_warps=tiling.num_warps, num_stages=tiling.num_stages)
    return out, lse


def sparse_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                    dout: torch.Tensor,
                    of_queries: tuple[torch.Tensor, torch.Tensor], of_keys: tuple[torch.Tensor, torch.Tensor],
                    blocks: tuple[int, int], scale: float,
                    tuning: Tuning) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv) from an output and LSE that may cover more keys than these.

    Args:
        of_queries: (lists, counts) as of the forward.
        of_keys: (lists, counts) of q-blocks for each k-block, (groups, k-blocks, width) and (groups,
            k-blocks).
    """
    (seqlen_q, num_heads, head_dim), delta, lse_log2 = q.shape, torch.empty_like(lse), torch.empty_like(lse)
    _preprocess[(triton.cdiv(seqlen_q, 64), num_heads)](
        out, dout, lse, delta, lse_log2, seqlen_q, num_heads, head_dim, 64
    )
    dk, dv = backward_of_keys(q, k, v, dout, lse_log2, delta, of_keys, blocks, scale, tuning.keys)
    return (
        backward_of_queries(q, k, v, dout, lse_log2, delta, of_queries, blocks, scale, tuning.queries),
        dk,
        dv,
    )


def backward_of_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                     lse_log2: torch.Tensor, delta: torch.Tensor,
                     of_keys: tuple[torch.Tensor, torch.Tensor], blocks: tuple[int, int], scale: float,
                     tiling: Tiling) -> tuple[torch.Tensor, torch.Tensor]:
    """(dk, dv), given lse_log2 = LSE · log2 e and delta, both (H, Sq)."""
    (lists, counts), dk, dv = of_keys, torch.empty_like(k), torch.empty_like(v)
    q_src, dout_src = (tile_source(x.transpose(0, 1), tiling.tile_q, tiling.by_tma) for x in (q, dout))
    _backward_dkdv[(triton.cdiv(len(k), tiling.tile_k), k.shape[1])](
        q_src, k, v, dout_src, lse_log2, delta, dk, dv, lists, counts, len(q), len(k), counts.shape[1],
                                                                     lists.shape[2], scale,
        *_variant(q, k, lists, blocks, tiling), num_warps=tiling.num_warps, num_stages=tiling.num_stages)
    return dk, dv


def backward_of_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                        lse_log2: torch.Tensor,
                        delta: torch.Tensor, of_queries: tuple[torch.Tensor, torch.Tensor],
                        blocks: tuple[int, int], scale: float,
                        tiling: Tiling) -> torch.Tensor:
    (lists, counts), dq = of_queries, torch.empty_like(q)
    k_src, v_src = (tile_source(x.transpose(0, 1), tiling.tile_k, tiling.by_tma) for x in (k, v))
    _backward_dq[(triton.cdiv(len(q), tiling.tile_q), q.shape[1])](
        q, k_src, v_src, dout, lse_log2, delta, dq, lists, counts, len(q), len(k), counts.shape[1],
                                                                   lists.shape[2], scale,
        *_variant(q, k, lists, blocks, tiling), num_warps=tiling.num_warps, num_stages=tiling.num_stages)
    return dq


def _variant(q: torch.Tensor, k: torch.Tensor, lists: torch.Tensor, blocks: tuple[int, int],
             tiling: Tiling) -> tuple[int | bool, ...]:
    """The constants that a kernel is compiled for: heads, groups, head dim, blocks, tiles, whether these fill
    both lengths."""
    even = not (len(q) % tiling.tile_q or len(k) % tiling.tile_k)
    return q.shape[1], k.shape[1], len(lists), q.shape[2], *blocks, *tiling.tile, tiling.by_tma, even
