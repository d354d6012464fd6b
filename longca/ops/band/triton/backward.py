"""Band attention's backward pass in Triton, without atomics: dK and dV by lines of keys, dQ by lines of queries.

Shapes as in `triton.forward`; `base` and `delta` are those of `triton.preprocess`.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from longca.ops.band.config import Tuned
from longca.ops.band.tables.schedule import Lines
from longca.ops.band.triton.forward import LOG2_E, columns_of, first_run, is_seen, next_step, place_of

CHUNK = 64  # rows of a program that adds shares


@triton.jit
def _rows_at(x_ptr, token, head, token_stride, head_stride, inside, D: tl.constexpr):
    place = token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + tl.arange(0, D)[None, :]
    return tl.load(x_ptr + place, mask=inside[:, None], other=0.0)


@triton.jit
def _store_rows(x_ptr, share_ptr, x, token, head, token_stride, head_stride, inside, share, slot, SPLIT: tl.constexpr,
                D: tl.constexpr):
    """To the result, or to a slot."""
    dim = tl.arange(0, D)
    place = token.to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride + dim[None, :]
    if SPLIT:
        if slot >= 0:
            tl.store(share_ptr + share[:, None] * D + dim[None, :], x, mask=inside[:, None])
        else:
            tl.store(x_ptr + place, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(x_ptr + place, x.to(x_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["W", "kv_heads_at_once", "packs_per_kv_head", "kv_heads_per_group", "num_slots", "num_tokens"])
def _keys(q_desc, dout_desc, k_ptr, v_ptr, base_ptr, delta_ptr, dk_ptr, dv_ptr, share_dk_ptr, share_dv_ptr, pieces_ptr, runs_ptr,
          shapes_ptr, W, kv_heads_at_once, packs_per_kv_head, kv_heads_per_group, num_slots, num_tokens, k_token, k_head, v_token,
          v_head, dk_token, dk_head, dv_token, dv_head, scale, SPLIT: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr,
          P: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    """dK and dV of one piece of one KV head, over all its query heads. Scores are keys × queries. MASKED: there are partial steps."""
    piece, kv_head = place_of(W, kv_heads_at_once)
    piece_ptr = pieces_ptr + (kv_head // kv_heads_per_group * W + piece) * 8
    row0, row1, first = tl.load(piece_ptr), tl.load(piece_ptr + 1), tl.load(piece_ptr + 2)
    last, num_full, slot = tl.load(piece_ptr + 4), tl.load(piece_ptr + 5), tl.load(piece_ptr + 6)
    num_steps = num_full + last - tl.load(piece_ptr + 3)
    row = tl.arange(0, TILE)
    token, head = row0 + row, tl.zeros([TILE], tl.int32) + kv_head
    inside = token < row1
    k = _rows_at(k_ptr, token, head, k_token, k_head, inside, D)
    v = _rows_at(v_ptr, token, head, v_token, v_head, inside, D)
    dk, dv = tl.zeros([TILE, D], dtype=tl.float32), tl.zeros([TILE, D], dtype=tl.float32)
    scale_log2 = scale * LOG2_E
    query = tl.arange(0, STEP * P)
    for turn in range(packs_per_kv_head):
        pack = kv_head * packs_per_kv_head + turn
        stats = pack.to(tl.int64) * num_tokens * P
        place, run, ahead = first, tl.zeros([], tl.int64), first_run(runs_ptr, first, last)
        for number in tl.range(0, num_steps, num_stages=STAGES):
            column, place, run, ahead = next_step(runs_ptr, place, last, run, ahead, STEP)
            shape = tl.where(number < num_full, -1, ((run >> 32) + 1).to(tl.int32))
            run = tl.where(number < num_full, run, 0)
            q = q_desc.load([column, pack * P, 0]).reshape(STEP * P, D)
            dout = dout_desc.load([column, pack * P, 0]).reshape(STEP * P, D)
            scores = tl.dot(k, q.T)
            dweights = tl.dot(v, dout.T)  # this early it costs the fewest registers
            base = tl.load(base_ptr + stats + column * P + query)
            weights = tl.math.exp2(scores * scale_log2 - base[None, :])
            if MASKED:  # noqa: SIM102 - the outer one is decided when compiling
                if shape >= 0:
                    weights = tl.where(is_seen(shapes_ptr, shape, row, query // P, TILE), weights, 0.0)
            dv = tl.dot(weights.to(dout.dtype), dout, dv)
            delta = tl.load(delta_ptr + stats + column * P + query)
            dscores = weights * (dweights - delta[None, :])
            dk = tl.dot(dscores.to(q.dtype), q, dk)
    share = (kv_head.to(tl.int64) * num_slots + slot) * TILE + row
    _store_rows(dk_ptr, share_dk_ptr, dk * scale, token, head, dk_token, dk_head, inside, share, slot, SPLIT, D)
    _store_rows(dv_ptr, share_dv_ptr, dv, token, head, dv_token, dv_head, inside, share, slot, SPLIT, D)


@triton.jit(do_not_specialize=["W", "packs_at_once", "packs_per_kv_head", "packs_per_group", "num_slots", "num_tokens"])
def _queries(q_ptr, k_desc, v_desc, dout_ptr, base_ptr, delta_ptr, dq_ptr, in_dq_ptr, share_dq_ptr, pieces_ptr, runs_ptr, shapes_ptr, W,
             packs_at_once, packs_per_kv_head, packs_per_group, num_slots, num_tokens, q_token, q_head, dout_token, dout_head,
             dq_token, dq_head, scale, CARRY: tl.constexpr, SPLIT: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr,
             P: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    """dQ of one piece of one pack. MASKED as above."""
    piece, pack = place_of(W, packs_at_once)
    piece_ptr = pieces_ptr + (pack // packs_per_group * W + piece) * 8
    row0, row1, first = tl.load(piece_ptr), tl.load(piece_ptr + 1), tl.load(piece_ptr + 2)
    last, num_full, slot = tl.load(piece_ptr + 4), tl.load(piece_ptr + 5), tl.load(piece_ptr + 6)
    num_steps = num_full + last - tl.load(piece_ptr + 3)
    row = tl.arange(0, TILE * P)
    token, head = row0 + row // P, pack * P + row % P
    inside = token < row1
    q = _rows_at(q_ptr, token, head, q_token, q_head, inside, D)
    dout = _rows_at(dout_ptr, token, head, dout_token, dout_head, inside, D)
    stats = (pack.to(tl.int64) * num_tokens + row0) * P + row
    base = tl.load(base_ptr + stats, mask=inside, other=float("inf"))
    delta = tl.load(delta_ptr + stats, mask=inside, other=0.0)
    dq = tl.zeros([TILE * P, D], dtype=tl.float32)
    scale_log2 = scale * LOG2_E
    kv_offset = pack // packs_per_kv_head * D
    place, run, ahead = first, tl.zeros([], tl.int64), first_run(runs_ptr, first, last)
    for number in tl.range(0, num_steps, num_stages=STAGES):
        column, place, run, ahead = next_step(runs_ptr, place, last, run, ahead, STEP)
        shape = tl.where(number < num_full, -1, ((run >> 32) + 1).to(tl.int32))
        run = tl.where(number < num_full, run, 0)
        k = k_desc.load([column, kv_offset])
        weights = tl.math.exp2(tl.dot(q, k.T) * scale_log2 - base[:, None])
        if MASKED:  # noqa: SIM102 - the outer one is decided when compiling
            if shape >= 0:
                weights = tl.where(is_seen(shapes_ptr, shape, row // P, tl.arange(0, STEP), TILE), weights, 0.0)
        v = v_desc.load([column, kv_offset])
        dscores = weights * (tl.dot(dout, v.T) - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq)
    dq *= scale
    if CARRY:  # where the line is split, its shares are added to it
        dq += _rows_at(in_dq_ptr, token, head, dq_token, dq_head, inside & (slot < 0), D)
    share = (pack.to(tl.int64) * num_slots + slot) * (TILE * P) + row
    _store_rows(dq_ptr, share_dq_ptr, dq, token, head, dq_token, dq_head, inside, share, slot, SPLIT, D)


@triton.jit(do_not_specialize=["V", "packs_per_group", "num_slots"])
def _add_shares(x_ptr, in_ptr, share_ptr, splits_ptr, V, packs_per_group, num_slots, x_token, x_head, CARRY: tl.constexpr,
                D: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """CHUNK rows of one split line of one pack: the sum of its shares, in their order, and of what is carried."""
    pack = tl.program_id(1)
    split_ptr = splits_ptr + (pack // packs_per_group * V + tl.program_id(0)) * 4
    row0, row1, first = tl.load(split_ptr), tl.load(split_ptr + 1), tl.load(split_ptr + 2)
    row, dim = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = row0 + row // P, pack * P + row % P
    inside = (token < row1)[:, None]
    x = tl.zeros([CHUNK, D], dtype=tl.float32)
    x_place = token.to(tl.int64)[:, None] * x_token + head[:, None] * x_head + dim[None, :]
    if CARRY:
        x = tl.load(in_ptr + x_place, mask=inside, other=0.0)
    for slot in range(first, first + tl.load(split_ptr + 3)):
        place = (pack.to(tl.int64) * num_slots + slot) * (TILE * P) + row
        x += tl.load(share_ptr + place[:, None] * D + dim[None, :], mask=inside, other=0.0)
    tl.store(x_ptr + x_place, x.to(x_ptr.dtype.element_ty), mask=inside)


def keys_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, base: torch.Tensor, delta: torch.Tensor,
                   lines: Lines, scale: float, tuned: Tuned, *, dk: torch.Tensor, dv: torch.Tensor) -> None:
    """Writes `dk` and `dv`."""
    num_kv_heads, head_dim, pack = k.shape[1], k.shape[2], base.shape[2]
    width, groups = lines.pieces.shape[1], len(lines.pieces)
    shares = torch.empty(2, num_kv_heads, lines.num_slots, lines.tile, head_dim, dtype=torch.float32, device=k.device)
    strides = dk.stride(0), dk.stride(1), dv.stride(0), dv.stride(1)
    _keys[(width * num_kv_heads,)](
        _packs_of(q, lines.step, pack), _packs_of(dout, lines.step, pack), k, v, base, delta, dk, dv, *shares, lines.pieces, lines.runs,
        lines.shapes, width, tuned.at_once, q.shape[1] // num_kv_heads // pack, num_kv_heads // groups, lines.num_slots,
        base.shape[1], k.stride(0), k.stride(1), v.stride(0), v.stride(1), *strides, scale, lines.num_slots > 0, len(lines.shapes) > 0,
        head_dim, pack, lines.tile, lines.step, tuned.stages, num_warps=tuned.warps, num_stages=tuned.stages)
    for x, share in zip((dk, dv), shares, strict=True):
        _add(x, share, lines, 1)


def queries_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, base: torch.Tensor, delta: torch.Tensor,
                     lines: Lines, scale: float, tuned: Tuned, *, packs_at_once: int, dq: torch.Tensor,
                     carried: torch.Tensor | None = None) -> None:
    """Writes `dq`.

    Args:
        carried: float32, strided as `dq`, which it may be: what this is added to.
    """
    head_dim, pack, packs = q.shape[2], base.shape[2], base.shape[0]
    width, groups = lines.pieces.shape[1], len(lines.pieces)
    share = torch.empty(packs, lines.num_slots, tuned.rows, head_dim, dtype=torch.float32, device=q.device)
    _queries[(width * packs,)](
        q, columns_of(k, lines.step), columns_of(v, lines.step), dout, base, delta, dq, dq if carried is None else carried, share,
        lines.pieces, lines.runs, lines.shapes, width, packs_at_once, packs // k.shape[1], packs // groups, lines.num_slots,
        base.shape[1], q.stride(0), q.stride(1), dout.stride(0), dout.stride(1), dq.stride(0), dq.stride(1), scale, carried is not None,
        lines.num_slots > 0, len(lines.shapes) > 0, head_dim, pack, lines.tile, lines.step, tuned.stages, num_warps=tuned.warps,
        num_stages=tuned.stages)
    _add(dq, share, lines, pack, carried)


def _add(x: torch.Tensor, share: torch.Tensor, lines: Lines, pack: int, carried: torch.Tensor | None = None) -> None:
    if lines.num_slots > 0:
        packs, _, rows, head_dim = share.shape
        chunk = min(rows, CHUNK)
        _add_shares[(lines.splits.shape[1], packs, rows // chunk)](
            x, x if carried is None else carried, share, lines.splits, lines.splits.shape[1], packs // len(lines.pieces), lines.num_slots,
            x.stride(0), x.stride(1), carried is not None, head_dim, pack, lines.tile, chunk)


def _packs_of(x: torch.Tensor, step: int, pack: int) -> TensorDescriptor:
    """`step` tokens of `pack` heads at a time."""
    head_stride = x.stride(1) if x.shape[1] > 1 else x.shape[2]  # that of a single head may be anything
    return TensorDescriptor(x, list(x.shape), [x.stride(0), head_stride, 1], [step, pack, x.shape[2]])
