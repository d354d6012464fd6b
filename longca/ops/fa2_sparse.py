"""FlashAttention-2 over lists of visible blocks, in Triton: forward and backward, GQA, lists for each head group.

A re-implementation of the algorithm (tiles of scores that never leave the chip; the log of the row sums kept for the
backward; dK and dV by columns, dQ by rows, no atomics), where the loop over keys is a loop over a list of blocks.

Shapes: q, out, dout (Sq, H, D); k, v (Sk, G, D); lse and delta float32 (H, Sq). All contiguous. A list belongs to a head
group of the mask. TILE sizes divide the block's, so a tile never leaves its block; with EVEN, both lengths are multiples
of the tiles.
"""

import torch
import triton
import triton.language as tl

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def _rows(base, row0, stride, seqlen, TILE: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):
    """(TILE, D) from row0 on; zeros past the end."""
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
def _forward(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, list_ptr, count_ptr, seqlen_q, seqlen_k, num_blocks, width, scale,
             H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr,
             BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr, EVEN: tl.constexpr):
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    kv_head = head // (H // G)
    line = (kv_head * GROUPS // G) * num_blocks + row0 // BLOCK_Q
    blocks_ptr = list_ptr + line.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_K // TILE_K
    q = _rows(q_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    most = tl.full([TILE_Q], float("-inf"), tl.float32)
    total = tl.zeros([TILE_Q], tl.float32)
    acc = tl.zeros([TILE_Q, D], tl.float32)
    for step in range(tl.load(count_ptr + line) * tiles):
        col0 = tl.load(blocks_ptr + step // tiles) * BLOCK_K + step % tiles * TILE_K
        k = _rows(k_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
        scores = tl.dot(q, tl.trans(k))
        if not EVEN:  # a block has at least one column, and its first tile comes first: `most` is finite from then on
            scores = tl.where((col0 + tl.arange(0, TILE_K))[None, :] < seqlen_k, scores, float("-inf"))
        above = tl.maximum(most, tl.max(scores, 1) * (scale * LOG2_E))
        probs = tl.exp2(scores * (scale * LOG2_E) - above[:, None])
        shrink = tl.exp2(most - above)
        total = total * shrink + tl.sum(probs, 1)
        v = _rows(v_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
        acc = tl.dot(probs.to(v.dtype), v, acc * shrink[:, None])
        most = above
    rows = row0 + tl.arange(0, TILE_Q)
    lse = tl.where(total > 0, most * LN_2 + tl.log(total), float("-inf"))
    tl.store(lse_ptr + head.to(tl.int64) * seqlen_q + rows, lse, mask=rows < seqlen_q)
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    _store_rows(out_ptr + head * D, row0, H * D, seqlen_q, acc, TILE_Q, D)


@triton.jit
def _dot_rows(out_ptr, dout_ptr, delta_ptr, seqlen_q, H: tl.constexpr, D: tl.constexpr, TILE_Q: tl.constexpr):
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    out = _rows(out_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, False).to(tl.float32)
    dout = _rows(dout_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, False).to(tl.float32)
    rows = row0 + tl.arange(0, TILE_Q)
    tl.store(delta_ptr + head.to(tl.int64) * seqlen_q + rows, tl.sum(out * dout, 1), mask=rows < seqlen_q)


@triton.jit
def _backward_of_keys(q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, list_ptr, count_ptr, seqlen_q,
                      seqlen_k, num_blocks, width, scale, H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
                      BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
                      EVEN: tl.constexpr):
    """dK and dV of one tile of keys, over all query heads that share it."""
    col0, kv_head = tl.program_id(0) * TILE_K, tl.program_id(1)
    line = (kv_head * GROUPS // G) * num_blocks + col0 // BLOCK_K
    blocks_ptr = list_ptr + line.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_Q // TILE_Q
    k = _rows(k_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
    v = _rows(v_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
    dk, dv = tl.zeros([TILE_K, D], tl.float32), tl.zeros([TILE_K, D], tl.float32)
    steps = tl.load(count_ptr + line) * tiles
    for turn in range(steps * (H // G)):  # one loop over heads and blocks: nested ones would not be pipelined
        head, step = kv_head * (H // G) + turn // steps, turn % steps
        row0 = tl.load(blocks_ptr + step // tiles) * BLOCK_Q + step % tiles * TILE_Q
        rows = row0 + tl.arange(0, TILE_Q)
        inside = rows < seqlen_q
        place = head.to(tl.int64) * seqlen_q + rows
        q = _rows(q_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
        lse = tl.load(lse_ptr + place, mask=inside, other=float("inf"))  # so that rows past the end have no probability
        probs_t = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * LOG2_E) - (lse * LOG2_E)[None, :])
        dout = _rows(dout_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
        dv = tl.dot(probs_t.to(dout.dtype), dout, dv)
        delta = tl.load(delta_ptr + place, mask=inside, other=0.0)
        dscores_t = probs_t * (tl.dot(v, tl.trans(dout)) - delta[None, :])
        dk = tl.dot(dscores_t.to(q.dtype), q, dk)
    _store_rows(dk_ptr + kv_head * D, col0, G * D, seqlen_k, dk * scale, TILE_K, D)
    _store_rows(dv_ptr + kv_head * D, col0, G * D, seqlen_k, dv, TILE_K, D)


@triton.jit
def _backward_of_queries(q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, list_ptr, count_ptr, seqlen_q, seqlen_k,
                         num_blocks, width, scale, H: tl.constexpr, G: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
                         BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
                         EVEN: tl.constexpr):
    row0, head = tl.program_id(0) * TILE_Q, tl.program_id(1)
    kv_head = head // (H // G)
    line = (kv_head * GROUPS // G) * num_blocks + row0 // BLOCK_Q
    blocks_ptr = list_ptr + line.to(tl.int64) * width
    tiles: tl.constexpr = BLOCK_K // TILE_K
    rows = row0 + tl.arange(0, TILE_Q)
    place = head.to(tl.int64) * seqlen_q + rows
    q = _rows(q_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    dout = _rows(dout_ptr + head * D, row0, H * D, seqlen_q, TILE_Q, D, EVEN)
    lse = tl.load(lse_ptr + place, mask=rows < seqlen_q, other=float("inf")) * LOG2_E
    delta = tl.load(delta_ptr + place, mask=rows < seqlen_q, other=0.0)
    dq = tl.zeros([TILE_Q, D], tl.float32)
    for step in range(tl.load(count_ptr + line) * tiles):
        col0 = tl.load(blocks_ptr + step // tiles) * BLOCK_K + step % tiles * TILE_K
        k = _rows(k_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
        v = _rows(v_ptr + kv_head * D, col0, G * D, seqlen_k, TILE_K, D, EVEN)
        scores = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
        if not EVEN:
            scores = tl.where((col0 + tl.arange(0, TILE_K))[None, :] < seqlen_k, scores, float("-inf"))
        probs = tl.exp2(scores - lse[:, None])
        dscores = probs * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq)
    _store_rows(dq_ptr + head * D, row0, H * D, seqlen_q, dq * scale, TILE_Q, D)


def tile_of(block: int, most: int) -> int:
    """The largest power of two that divides the block, at most `most`; Triton's matmuls need 16."""
    return min(block & -block, most)


def sparse_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: torch.Tensor, counts: torch.Tensor,
                   blocks: tuple[int, int], scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of queries that see the blocks of their lists.

    Args:
        lists, counts: int32 (groups, q-blocks, width), (groups, q-blocks): k-blocks of each q-block.
        blocks: (q, k) size, multiples of 16; the last block may be shorter.
    """
    (seqlen_q, num_heads, head_dim), (seqlen_k, num_kv_heads, _) = q.shape, k.shape
    tile_q, tile_k = tile_of(blocks[0], 128), tile_of(blocks[1], 64)
    out, lse = torch.empty_like(q), torch.empty(num_heads, seqlen_q, dtype=torch.float32, device=q.device)
    _forward[(triton.cdiv(seqlen_q, tile_q), num_heads)](
        q, k, v, out, lse, lists, counts, seqlen_q, seqlen_k, counts.shape[1], lists.shape[2], scale, num_heads, num_kv_heads,
        len(lists), head_dim, *blocks, tile_q, tile_k, not (seqlen_q % tile_q or seqlen_k % tile_k),
        num_warps=8 if tile_q == 128 else 4, num_stages=3)
    return out, lse


def sparse_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor,
                    of_queries: tuple[torch.Tensor, torch.Tensor], of_keys: tuple[torch.Tensor, torch.Tensor],
                    blocks: tuple[int, int], scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv) from an output and LSE that may cover more keys than these.

    Args:
        of_queries: (lists, counts) as of the forward.
        of_keys: the same the other way about, (groups, k-blocks, width) and (groups, k-blocks).
    """
    (seqlen_q, num_heads, head_dim), (seqlen_k, num_kv_heads, _) = q.shape, k.shape
    delta, dq, dk, dv = torch.empty_like(lse), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _dot_rows[(triton.cdiv(seqlen_q, 64), num_heads)](out, dout, delta, seqlen_q, num_heads, head_dim, 64)

    def options(tile_q: int, tile_k: int) -> tuple[int | bool, ...]:
        even = not (seqlen_q % tile_q or seqlen_k % tile_k)
        return num_heads, num_kv_heads, len(of_keys[0]), head_dim, *blocks, tile_q, tile_k, even

    (lists, counts), tile_q, tile_k = of_keys, tile_of(blocks[0], 64), tile_of(blocks[1], 128)
    _backward_of_keys[(triton.cdiv(seqlen_k, tile_k), num_kv_heads)](
        q, k, v, dout, lse, delta, dk, dv, lists, counts, seqlen_q, seqlen_k, counts.shape[1], lists.shape[2], scale,
        *options(tile_q, tile_k), num_warps=8 if tile_k == 128 else 4, num_stages=2)
    (lists, counts), tile_q, tile_k = of_queries, tile_of(blocks[0], 128), tile_of(blocks[1], 64)
    _backward_of_queries[(triton.cdiv(seqlen_q, tile_q), num_heads)](
        q, k, v, dout, lse, delta, dq, lists, counts, seqlen_q, seqlen_k, counts.shape[1], lists.shape[2], scale,
        *options(tile_q, tile_k), num_warps=8 if tile_q == 128 else 4, num_stages=2)
    return dq, dk, dv
