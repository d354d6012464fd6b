"""Band attention's forward pass in Triton: one online softmax over a line's full and partial steps.

Shapes: T tokens, H query heads, G KV heads, D head dim, P query heads of one KV head that share a tile (a pack), ROWS = P · tile
rows of the score matrix. q and out are (Tq, H, D), k and v (Tk, G, D), LSE is (Tq, H). Places in q, k, v are 64-bit.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from longca.ops.band.config import Tuned
from longca.ops.band.tables.schedule import Lines

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def place_of(W, packs_at_once):
    """(piece, pack) of this program. Packs go in sections whose keys fit into L2; in a section the longest pieces come first."""
    section = tl.program_id(0) // (W * packs_at_once)
    within = tl.program_id(0) % (W * packs_at_once)
    return within // packs_at_once, section * packs_at_once + within % packs_at_once


@triton.jit
def next_step(runs_ptr, place, behind, run, ahead, STEP: tl.constexpr):
    """(column, place, run, ahead) of the next full step. `run` is what is left of one, steps << 32 | column; `ahead` the one after it,
    which is loaded a run early, so that loads of keys or queries never wait for it."""
    fresh = run < (1 << 32)
    run = tl.where(fresh, ahead, run)
    place += fresh.to(tl.int32)
    ahead = tl.load((runs_ptr + 2 * place).to(tl.pointer_type(tl.int64)), mask=fresh & (place < behind), other=ahead)
    return run.to(tl.int32), place, run + (STEP - (1 << 32)), ahead


@triton.jit
def first_run(runs_ptr, place, behind):
    return tl.load((runs_ptr + 2 * place).to(tl.pointer_type(tl.int64)), mask=place < behind, other=0)


@triton.jit
def is_seen(shapes_ptr, shape, tile_row, column, TILE: tl.constexpr):
    """Which columns of a partial step each row sees, (rows, columns)."""
    bounds = tl.load(shapes_ptr + shape * TILE + tile_row)
    first = bounds & 0xFFFF
    return (column[None, :] - first[:, None]).to(tl.uint32) < ((bounds >> 16) - first).to(tl.uint32)[:, None]


@triton.jit
def _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset, scale_log2, shapes_ptr, shape, tile_row,
            MASKED: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """Online softmax over one step. MASKED: 0 never, 1 always, 2 where `shape` is not −1."""
    k = k_desc.load([column, kv_offset])
    scores = tl.dot(q, k.T)
    if MASKED == 1:
        scores = tl.where(is_seen(shapes_ptr, shape, tile_row, tl.arange(0, STEP), TILE), scores, float("-inf"))
    if MASKED == 2:  # noqa: SIM102 - the outer one is decided when compiling
        if shape >= 0:
            scores = tl.where(is_seen(shapes_ptr, shape, tile_row, tl.arange(0, STEP), TILE), scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
    base = new_max
    if MASKED > 0:  # nothing seen yet: any finite base will do
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.math.exp2(scores * scale_log2 - base[:, None])
    shrink = tl.math.exp2(row_max - base)
    row_sum = row_sum * shrink + tl.sum(weights, 1)
    v = v_desc.load([column, kv_offset])
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
    return acc, new_max, row_sum


@triton.jit(do_not_specialize=["W", "packs_at_once", "packs_per_kv_head", "packs_per_group", "num_slots"])
def _forward(q_ptr, k_desc, v_desc, out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr, pieces_ptr, runs_ptr,
             shapes_ptr, W, packs_at_once, packs_per_kv_head, packs_per_group, num_slots, q_token, q_head, out_token,
             out_head, lse_token, lse_head, scale_log2, LOOP: tl.constexpr, CARRY: tl.constexpr, SPLIT: tl.constexpr,
             D: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    """One piece of one pack."""
    piece, pack = place_of(W, packs_at_once)
    piece_ptr = pieces_ptr + (pack // packs_per_group * W + piece) * 8
    row0, row1 = tl.load(piece_ptr), tl.load(piece_ptr + 1)
    first, middle, last = tl.load(piece_ptr + 2), tl.load(piece_ptr + 3), tl.load(piece_ptr + 4)
    num_full, slot = tl.load(piece_ptr + 5), tl.load(piece_ptr + 6)
    ROWS: tl.constexpr = TILE * P
    row = tl.arange(0, ROWS)
    token, head = row0 + row // P, pack * P + row % P
    inside, dim = token < row1, tl.arange(0, D)
    q = tl.load(q_ptr + token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head + dim[None, :], mask=inside[:, None], other=0.0)
    acc = tl.zeros([ROWS, D], dtype=tl.float32)
    row_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([ROWS], dtype=tl.float32)
    out_place = token.to(tl.int64)[:, None] * out_token + head[:, None] * out_head + dim[None, :]
    lse_place = token.to(tl.int64) * lse_token + head * lse_head
    if CARRY:
        whole = inside & (slot < 0)
        row_max = tl.load(in_lse_ptr + lse_place, mask=whole, other=float("-inf")) * LOG2_E
        row_sum = tl.where(row_max > float("-inf"), 1.0, 0.0)
        acc = tl.load(in_out_ptr + out_place, mask=whole[:, None], other=0.0)

    kv_offset = pack // packs_per_kv_head * D
    tile_row = row // P
    if LOOP == 2:
        place, run, ahead = first, tl.zeros([], tl.int64), first_run(runs_ptr, first, last)
        for number in tl.range(0, num_full + last - middle, num_stages=STAGES):
            column, place, run, ahead = next_step(runs_ptr, place, last, run, ahead, STEP)
            shape = tl.where(number < num_full, -1, ((run >> 32) + 1).to(tl.int32))
            run = tl.where(number < num_full, run, 0)
            acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset, scale_log2, shapes_ptr,
                                            shape, tile_row, 2, D, TILE, STEP)
    else:
        if LOOP == 1:
            place, run, ahead = first, tl.zeros([], tl.int64), first_run(runs_ptr, first, last)
            for _ in tl.range(0, num_full, num_stages=STAGES):
                column, place, run, ahead = next_step(runs_ptr, place, last, run, ahead, STEP)
                acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, column, kv_offset, scale_log2, shapes_ptr,
                                                0, tile_row, 0, D, TILE, STEP)
        else:
            for place in range(first, middle):
                column = tl.load(runs_ptr + 2 * place)
                for step in tl.range(0, tl.load(runs_ptr + 2 * place + 1), num_stages=STAGES):
                    acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, column + step * STEP, kv_offset,
                                                    scale_log2, shapes_ptr, 0, tile_row, 0, D, TILE, STEP)
        for place in tl.range(middle, last, num_stages=STAGES):
            acc, row_max, row_sum = _attend(acc, row_max, row_sum, q, k_desc, v_desc, tl.load(runs_ptr + 2 * place), kv_offset,
                                            scale_log2, shapes_ptr, tl.load(runs_ptr + 2 * place + 1), tile_row, 1, D, TILE, STEP)

    empty = row_sum == 0.0
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    lse = tl.where(empty, float("-inf"), (row_max + tl.math.log2(row_sum)) * LN_2)
    if SPLIT:
        share = (pack.to(tl.int64) * num_slots + slot) * ROWS + row
        tl.store(slot_out_ptr + share[:, None] * D + dim[None, :], acc, mask=(inside & (slot >= 0))[:, None])
        tl.store(slot_lse_ptr + share, lse, mask=inside & (slot >= 0))
        inside = inside & (slot < 0)
    tl.store(out_ptr + out_place, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + lse_place, lse, mask=inside)


@triton.jit(do_not_specialize=["V", "packs_per_group", "num_slots"])
def _combine(out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr, splits_ptr, V, packs_per_group, num_slots,
             out_token, out_head, lse_token, lse_head, CARRY: tl.constexpr, D: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
             CHUNK: tl.constexpr):
    """CHUNK rows of one split line of one pack: its shares by their weight, in their order."""
    pack = tl.program_id(1)
    split_ptr = splits_ptr + (pack // packs_per_group * V + tl.program_id(0)) * 4
    row0, row1, first = tl.load(split_ptr), tl.load(split_ptr + 1), tl.load(split_ptr + 2)
    row, dim = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = row0 + row // P, pack * P + row % P
    inside = token < row1
    out_place = token.to(tl.int64)[:, None] * out_token + head[:, None] * out_head + dim[None, :]
    lse_place = token.to(tl.int64) * lse_token + head * lse_head
    acc = tl.zeros([CHUNK, D], dtype=tl.float32)
    lse = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
    if CARRY:
        lse = tl.load(in_lse_ptr + lse_place, mask=inside, other=float("-inf"))
        acc = tl.load(in_out_ptr + out_place, mask=inside[:, None], other=0.0)
    for slot in range(first, first + tl.load(split_ptr + 3)):
        place = (pack.to(tl.int64) * num_slots + slot) * (TILE * P) + row
        share_lse = tl.load(slot_lse_ptr + place, mask=inside, other=float("-inf"))
        share = tl.load(slot_out_ptr + place[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0)
        most = tl.maximum(lse, share_lse)
        base = tl.where(most == float("-inf"), 0.0, most)
        ours, theirs = tl.exp(lse - base), tl.exp(share_lse - base)
        total = tl.where(ours + theirs == 0.0, 1.0, ours + theirs)
        acc = acc * (ours / total)[:, None] + share * (theirs / total)[:, None]
        lse = tl.where(most == float("-inf"), most, base + tl.log(total))
    tl.store(out_ptr + out_place, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + lse_place, lse, mask=inside)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lines: Lines, scale: float, tuned: Tuned, *, packs_at_once: int,
            out: torch.Tensor, lse: torch.Tensor, carried: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
    """Writes `out` and `lse`. Rows that see no key: 0 and −inf.

    Args:
        lines: rows of queries, `tuned.tile(P)` tokens each, over steps of `tuned.step` keys.
        carried: (out float32, LSE) of other keys, to be merged with; may be `out` and `lse` themselves.
    """
    num_heads, head_dim, num_kv_heads = q.shape[1], q.shape[2], k.shape[1]
    pack = tuned.rows // lines.tile
    packs, num_groups, width = num_heads // pack, len(lines.pieces), lines.pieces.shape[1]
    split = lines.num_slots > 0
    share_out = torch.empty(packs if split else 0, lines.num_slots, tuned.rows, head_dim, dtype=torch.float32, device=q.device)
    share_lse = torch.empty(share_out.shape[:-1], dtype=torch.float32, device=q.device)
    in_out, in_lse = carried if carried is not None else (share_out, share_lse)
    strides = out.stride(0), out.stride(1), lse.stride(0), lse.stride(1)
    if width == 0:
        return
    _forward[(width * packs,)](
        q, columns_of(k, lines.step), columns_of(v, lines.step), out, lse, in_out, in_lse, share_out, share_lse, lines.pieces,
        lines.runs, lines.shapes, width, packs_at_once, packs // num_kv_heads, packs // num_groups, lines.num_slots,
        q.stride(0), q.stride(1), *strides, scale * LOG2_E.value, tuned.loop, carried is not None, split, head_dim, pack, lines.tile,
        lines.step, tuned.stages, num_warps=tuned.warps, num_stages=tuned.stages)
    if split:
        chunk = min(tuned.rows, 32)
        _combine[(lines.splits.shape[1], packs, tuned.rows // chunk)](
            out, lse, in_out, in_lse, share_out, share_lse, lines.splits, lines.splits.shape[1], packs // num_groups,
            lines.num_slots, *strides, carried is not None, head_dim, pack, lines.tile, chunk)


def columns_of(x: torch.Tensor, step: int) -> TensorDescriptor:
    """`step` tokens of one head at a time, of a tensor (T, heads, D) that lies so that heads and D are one axis."""
    num_tokens, num_heads, head_dim = x.shape
    return TensorDescriptor(x, [num_tokens, num_heads * head_dim], [x.stride(0), 1], [step, head_dim])
