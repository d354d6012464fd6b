"""Attention under FlashMask's column form: the backward pass, without atomics.

dK and dV go by tiles of keys, over all query heads of the KV head; dQ by tiles of queries. Shapes as in
`flashmask.forward`.
"""

import torch
import triton
import triton.language as tl

from longca.ops.flashmask.forward import FlashMaskTensors, is_visible
from longca.ops.tile_sources import load_tile, tile_source

PREPROCESS_ROWS = 64


@triton.jit
def _preprocess(out_ptr, dout_ptr, lse_ptr, delta_ptr, lse_log2_ptr, seqlen_q, HEAD_DIM: tl.constexpr,
                TILE_Q: tl.constexpr):
    """delta = rowsum(dout · out), and LSE · log2 e, +inf for rows without keys: their P is then 0."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * TILE_Q + tl.arange(0, TILE_Q)
    inside = row < seqlen_q
    place = head * seqlen_q * HEAD_DIM + row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    out = tl.load(out_ptr + place, mask=inside[:, None], other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + place, mask=inside[:, None], other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + head * seqlen_q + row, mask=inside, other=0.0)
    lse_log2 = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    tl.store(delta_ptr + head * seqlen_q + row, tl.sum(out * dout, 1), mask=inside)
    tl.store(lse_log2_ptr + head * seqlen_q + row, lse_log2, mask=inside)


@triton.jit
def _add_dkdv(dk, dv, k, v, key, q_src, dout_src, head, delta_ptr, lse_log2_ptr, columns_ptr, tiles_ptr,
              start, end, seqlen_q,
                    seqlen_k, scale_log2, TESTED: tl.constexpr, CAUSAL: tl.constexpr,
              NUM_COLUMNS: tl.constexpr,
                    HEAD_DIM: tl.constexpr, TILE_Q: tl.constexpr, BY_TMA: tl.constexpr):
    """Adds one list of tiles of queries of one head. S is keys × queries here, so that nothing is transposed
    twice."""
    tile = tl.load(tiles_ptr + start, mask=start < end, other=0)
    for place in tl.range(start, end):
        row0 = tile * TILE_Q
        tile = tl.load(tiles_ptr + place + 1, mask=place + 1 < end, other=0)
        row = row0 + tl.arange(0, TILE_Q)
        q = load_tile(q_src, head, row0, HEAD_DIM, seqlen_q, TILE_Q, HEAD_DIM, not TESTED, BY_TMA)
        dout = load_tile(dout_src, head, row0, HEAD_DIM, seqlen_q, TILE_Q, HEAD_DIM, not TESTED, BY_TMA)
        s = tl.dot(k, tl.trans(q))
        dp = tl.dot(v, tl.trans(dout))  # at this position it needs the fewest registers
        lse_log2 = (
            tl.load(lse_log2_ptr + row, mask=row < seqlen_q, other=float("inf"))
            if TESTED
            else tl.load(lse_log2_ptr + row)
        )
        p = tl.math.exp2(s * scale_log2 - lse_log2[None, :])
        if TESTED:
            seen = is_visible(row[None, :], key[:, None], columns_ptr, seqlen_k, CAUSAL, NUM_COLUMNS)
            p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(dout.dtype), dout, dv)
        delta = (
            tl.load(delta_ptr + row, mask=row < seqlen_q, other=0.0) if TESTED else tl.load(delta_ptr + row)
        )
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def _backward_dkdv(q_src, k_ptr, v_ptr, dout_src, delta_ptr, lse_log2_ptr, dk_ptr, dv_ptr, columns_ptr,
                   full_offsets_ptr,
                   full_tiles_ptr, part_offsets_ptr, part_tiles_ptr, seqlen_q, seqlen_k, heads_per_kv_head,
                   kv_heads_per_group,
                   scale, CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr,
                   TILE_Q: tl.constexpr,
                   TILE_K: tl.constexpr, BY_TMA: tl.constexpr):
    """dK and dV of one tile of keys of one KV head."""
    kv_head = tl.program_id(1)
    group = kv_head // kv_heads_per_group
    columns_ptr += group.to(tl.int64) * NUM_COLUMNS * seqlen_k
    key = tl.program_id(0) * TILE_K + tl.arange(0, TILE_K)
    offset = (
        kv_head.to(tl.int64) * seqlen_k * HEAD_DIM + key[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    )
    inside = key[:, None] < seqlen_k
    k = tl.load(k_ptr + offset, mask=inside, other=0.0)
    v = tl.load(v_ptr + offset, mask=inside, other=0.0)
    dk = tl.zeros([TILE_K, HEAD_DIM], dtype=tl.float32)
    dv = tl.zeros([TILE_K, HEAD_DIM], dtype=tl.float32)
    row_tile = group * tl.num_programs(0) + tl.program_id(0)
    full_start, full_end = tl.load(full_offsets_ptr + row_tile), tl.load(full_offsets_ptr + row_tile + 1)
    part_start, part_end = tl.load(part_offsets_ptr + row_tile), tl.load(part_offsets_ptr + row_tile + 1)
    scale_log2 = scale * 1.4426950408889634
    head = kv_head * heads_per_kv_head
    delta_ptr += head.to(tl.int64) * seqlen_q
    lse_log2_ptr += head.to(tl.int64) * seqlen_q
    if not BY_TMA:
        q_src += head.to(tl.int64) * seqlen_q * HEAD_DIM
        dout_src += head.to(tl.int64) * seqlen_q * HEAD_DIM
    for query in range(heads_per_kv_head):
        dk, dv = _add_dkdv(
            dk, dv, k, v, key, q_src, dout_src, head + query, delta_ptr, lse_log2_ptr, columns_ptr,
                           full_tiles_ptr, full_start,
            full_end, seqlen_q, seqlen_k, scale_log2, False, CAUSAL, NUM_COLUMNS, HEAD_DIM, TILE_Q, BY_TMA)
        dk, dv = _add_dkdv(
            dk, dv, k, v, key, q_src, dout_src, head + query, delta_ptr, lse_log2_ptr, columns_ptr,
                           part_tiles_ptr, part_start,
            part_end, seqlen_q, seqlen_k, scale_log2, True, CAUSAL, NUM_COLUMNS, HEAD_DIM, TILE_Q, BY_TMA)
        delta_ptr += seqlen_q
        lse_log2_ptr += seqlen_q
        if not BY_TMA:
            q_src += seqlen_q * HEAD_DIM
            dout_src += seqlen_q * HEAD_DIM
    tl.store(dk_ptr + offset, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + offset, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_dq(dq, q, dout, delta, lse_log2, row, k_src, v_src, kv_head, columns_ptr, tiles_ptr, start, end,
            seqlen_k,
                      scale_log2, TESTED: tl.constexpr, CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr,
            HEAD_DIM: tl.constexpr,
                      TILE_K: tl.constexpr, BY_TMA: tl.constexpr):
    """Adds one list of tiles of keys."""
    tile = tl.load(tiles_ptr + start, mask=start < end, other=0)
    for place in tl.range(start, end):
        key0 = tile * TILE_K
        tile = tl.load(tiles_ptr + place + 1, mask=place + 1 < end, other=0)
        k = load_tile(k_src, kv_head, key0, HEAD_DIM, seqlen_k, TILE_K, HEAD_DIM, not TESTED, BY_TMA)
        v = load_tile(v_src, kv_head, key0, HEAD_DIM, seqlen_k, TILE_K, HEAD_DIM, not TESTED, BY_TMA)
        p = tl.math.exp2(tl.dot(q, tl.trans(k)) * scale_log2 - lse_log2[:, None])
        if TESTED:
            key = key0 + tl.arange(0, TILE_K)
            seen = is_visible(row[:, None], key[None, :], columns_ptr, seqlen_k, CAUSAL, NUM_COLUMNS)
            p = tl.where(seen, p, 0.0)
        ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def _backward_dq(q_ptr, k_src, v_src, dout_ptr, delta_ptr, lse_log2_ptr, dq_ptr, columns_ptr,
                 full_offsets_ptr, full_tiles_ptr,
                      part_offsets_ptr, part_tiles_ptr, seqlen_q, seqlen_k, heads_per_kv_head,
                 kv_heads_per_group, scale,
                      CAUSAL: tl.constexpr, NUM_COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr,
                 TILE_Q: tl.constexpr,
                      TILE_K: tl.constexpr, BY_TMA: tl.constexpr):
    """dQ of one tile of queries of one head."""
    num_row_tiles = tl.num_programs(0)
    row_tile = num_row_tiles - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // heads_per_kv_head
    group = kv_head // kv_heads_per_group
    if not BY_TMA:
        k_src += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
        v_src += kv_head.to(tl.int64) * seqlen_k * HEAD_DIM
    columns_ptr += group.to(tl.int64) * NUM_COLUMNS * seqlen_k
    row = row_tile * TILE_Q + tl.arange(0, TILE_Q)
    inside = row < seqlen_q
    offset = (
        head.to(tl.int64) * seqlen_q * HEAD_DIM + row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    )
    q = tl.load(q_ptr + offset, mask=inside[:, None], other=0.0)
    dout = tl.load(dout_ptr + offset, mask=inside[:, None], other=0.0)
    delta = tl.load(delta_ptr + head.to(tl.int64) * seqlen_q + row, mask=inside, other=0.0)
    lse_log2 = tl.load(lse_log2_ptr + head.to(tl.int64) * seqlen_q + row, mask=inside, other=float("inf"))
    dq = tl.zeros([TILE_Q, HEAD_DIM], dtype=tl.float32)
    place = group * num_row_tiles + row_tile
    scale_log2 = scale * 1.4426950408889634
    dq = _add_dq(
        dq, q, dout, delta, lse_log2, row, k_src, v_src, kv_head, columns_ptr, full_tiles_ptr,
                 tl.load(full_offsets_ptr + place),
        tl.load(full_offsets_ptr + place + 1), seqlen_k, scale_log2, False, CAUSAL, NUM_COLUMNS, HEAD_DIM,
                 TILE_K, BY_TMA)
    dq = _add_dq(
        dq, q, dout, delta, lse_log2, row, k_src, v_src, kv_head, columns_ptr, part_tiles_ptr,
                 tl.load(part_offsets_ptr + place),
        tl.load(part_offsets_ptr + place + 1), seqlen_k, scale_log2, True, CAUSAL, NUM_COLUMNS, HEAD_DIM,
                 TILE_K, BY_TMA)
    tl.store(dq_ptr + offset, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None])


def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
             dout: torch.Tensor,
             mask: FlashMaskTensors, scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv), shaped as q, k and v; out and LSE may cover more keys than these.

    Args:
        lse: float32 (H, Tq), natural log; −inf where a row sees no key at all.
        mask: made with `needs_backward`.
    """
    num_heads, seqlen_q, head_dim = q.shape
    delta, lse_log2 = torch.empty_like(lse), torch.empty_like(lse)
    with torch.cuda.device_of(q):
        _preprocess[(triton.cdiv(seqlen_q, PREPROCESS_ROWS), num_heads)](
            out, dout, lse, delta, lse_log2, seqlen_q, head_dim, PREPROCESS_ROWS
        )
        dk, dv = backward_of_keys(q, k, v, dout, delta, lse_log2, mask, scale)
        dq = backward_of_queries(q, k, v, dout, delta, lse_log2, mask, scale)
    return dq, dk, dv


def backward_of_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                     delta: torch.Tensor, lse_log2: torch.Tensor,
                     mask: FlashMaskTensors, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(dk, dv), given delta and lse_log2 = LSE · log2 e."""
    assert mask.keys is not None
    tiling, lists = mask.tuning.keys, mask.keys
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    q_src, dout_src = (tile_source(x, tiling.tile_q, tiling.by_tma) for x in (q, dout))
    _backward_dkdv[(triton.cdiv(k.shape[1], tiling.tile_k), len(k))](
        q_src, k, v, dout_src, delta, lse_log2, dk, dv, mask.columns, lists.full_offsets, lists.full_tiles,
                                                                     lists.part_offsets,
        lists.part_tiles, *mask.sizes(q, k), scale, *mask.variant(q), *tiling.tile, tiling.by_tma, num_warps=tiling.num_warps,  # noqa: E501
        num_stages=tiling.num_stages)
    return dk, dv


def backward_of_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
                        delta: torch.Tensor,
                        lse_log2: torch.Tensor, mask: FlashMaskTensors, scale: float) -> torch.Tensor:
    assert mask.queries is not None
    tiling, lists, dq = mask.tuning.queries, mask.queries, torch.empty_like(q)
    k_src, v_src = (tile_source(x, tiling.tile_k, tiling.by_tma) for x in (k, v))
    _backward_dq[(triton.cdiv(q.shape[1], tiling.tile_q), len(q))](
        q, k_src, v_src, dout, delta, lse_log2, dq, mask.columns, lists.full_offsets, lists.full_tiles,
                                                                   lists.part_offsets,
        lists.part_tiles, *mask.sizes(q, k), scale, *mask.variant(q), *tiling.tile, tiling.by_tma,
                                                                   num_warps=tiling.num_warps,
        num_stages=tiling.num_stages)
    return dq
