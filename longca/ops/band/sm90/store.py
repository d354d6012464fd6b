"""Band attention on Hopper: how the forward kernel's rows reach memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def store(acc, row_max, row_sum, row0, row1, slot, pack, rows, q_tile, outputs, strides, scale_log2, PACK: gl.constexpr,
          LINE_ROWS: gl.constexpr, CARRY: gl.constexpr):
    """The rows of a whole line to out and LSE, merged with what is carried; those of a split line as float32 shares to its slot."""
    out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr = outputs
    out_token, out_head, lse_token, lse_head, num_slots = strides
    D: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    some = row_sum > 0.0
    lse = gl.where(some, (row_max * scale_log2 + gl.log2(row_sum)) * LN2, float("-inf"))
    weight = gl.where(some, 1.0 / row_sum, 0.0)
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    if (slot < 0) | (row0 == row1):  # a piece of no rows has nothing to store
        token, head = (row0 + rows // PACK).to(gl.int64), pack * PACK + rows % PACK
        lse_place, inside = token * lse_token + head * lse_head, token < row1
        place = gl.convert_layout(token * out_token + head * out_head, gl.SliceLayout(1, layout))[:, None] + dims
        inside_rows = gl.convert_layout(inside, gl.SliceLayout(1, layout))[:, None]
        if CARRY:
            in_lse = gl.load(in_lse_ptr + lse_place, mask=inside, other=float("-inf"))
            most = gl.maximum(lse, in_lse)
            base = gl.where(most == float("-inf"), 0.0, most)
            ours, theirs = gl.exp(lse - base), gl.exp(in_lse - base)
            total = gl.where(most == float("-inf"), 1.0, ours + theirs)
            lse = gl.where(most == float("-inf"), most, base + gl.log(total))
            acc = acc * gl.convert_layout(weight * ours / total, gl.SliceLayout(1, layout))[:, None]
            carried = gl.load(in_out_ptr + place, mask=inside_rows, other=0.0)
            acc += carried * gl.convert_layout(theirs / total, gl.SliceLayout(1, layout))[:, None]
        else:
            acc = acc * gl.convert_layout(weight, gl.SliceLayout(1, layout))[:, None]
        gl.store(lse_ptr + lse_place, lse, mask=inside)
        if out_ptr.dtype.element_ty == q_tile.dtype:
            store_through(q_tile, acc, row0, row1, pack, rows, out_ptr, out_token, out_head, PACK)
        else:
            gl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=inside_rows)
    else:
        share = (pack.to(gl.int64) * num_slots + slot) * LINE_ROWS + rows
        gl.store(slot_lse_ptr + share, lse)
        acc = acc * gl.convert_layout(weight, gl.SliceLayout(1, layout))[:, None]
        gl.store(slot_out_ptr + gl.convert_layout(share, gl.SliceLayout(1, layout))[:, None] * D + dims, acc)


@gluon.jit
def store_through(q_tile, acc, row0, row1, pack, rows, out_ptr, out_token, out_head, PACK: gl.constexpr):
    """By way of Q's place in shared memory, so that whole rows are written at a time."""
    D: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_tile.store(acc.to(q_tile.dtype))
    rows = gl.convert_layout(rows, gl.SliceLayout(1, layout))
    token, head = (row0 + rows // PACK).to(gl.int64), pack * PACK + rows % PACK
    place = (token * out_token + head * out_head)[:, None] + gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(out_ptr + place, q_tile.load(layout), mask=(token < row1)[:, None])
