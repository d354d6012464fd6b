"""Band attention on Hopper: how the forward kernel's rows reach memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from longca.ops.band_hopper_pieces import ROWS, TEAMS

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def store(acc, row_max, row_sum, entry, pack, rows, outputs, strides, scale_log2, PACK: gl.constexpr, CARRY: gl.constexpr):
    """The rows of a whole line to out and LSE, merged with what is carried; those of a split line as float32 shares to its slot."""
    out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr = outputs
    out_token, out_head, lse_token, lse_head, num_slots = strides
    D: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    row0, row1, slot = gl.load(entry), gl.load(entry + 1), gl.load(entry + 6)
    some = row_sum > 0.0
    lse = gl.where(some, (row_max * scale_log2 + gl.log2(row_sum)) * LN2, float("-inf"))
    weight = gl.where(some, 1.0 / row_sum, 0.0)
    token, head = (row0 + rows // PACK).to(gl.int64), pack * PACK + rows % PACK
    out_rows = gl.convert_layout(rows, gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    if (slot < 0) | (row0 == row1):  # a piece of no rows has nothing to store
        out_tokens, out_heads = (row0 + out_rows // PACK).to(gl.int64), pack * PACK + out_rows % PACK
        place, inside = (out_tokens * out_token + out_heads * out_head)[:, None] + dims, (out_tokens < row1)[:, None]
        lse_place = token * lse_token + head * lse_head
        if CARRY:
            in_lse = gl.load(in_lse_ptr + lse_place, mask=token < row1, other=float("-inf"))
            most = gl.maximum(lse, in_lse)
            base = gl.where(most == float("-inf"), 0.0, most)
            ours, theirs = gl.exp(lse - base), gl.exp(in_lse - base)
            total = gl.where(most == float("-inf"), 1.0, ours + theirs)
            whole_lse = gl.where(most == float("-inf"), most, base + gl.log(total))
            carried = gl.load(in_out_ptr + place, mask=inside, other=0.0)
            carried = carried * gl.convert_layout(theirs / total, gl.SliceLayout(1, layout))[:, None]
            out = (_scaled(acc, weight * ours / total, gl.float32, layout) + carried).to(out_ptr.dtype.element_ty)
        else:
            whole_lse, out = lse, _scaled(acc, weight, out_ptr.dtype.element_ty, layout)
        gl.store(lse_ptr + lse_place, whole_lse, mask=token < row1)
        gl.store(out_ptr + place, out, mask=inside)
    else:
        share = (pack.to(gl.int64) * num_slots + slot) * (TEAMS * ROWS)
        gl.store(slot_lse_ptr + share + rows, lse)
        gl.store(slot_out_ptr + (share + out_rows)[:, None] * D + dims, _scaled(acc, weight, gl.float32, layout))


@gluon.jit
def _scaled(acc, weight, dtype: gl.constexpr, layout: gl.constexpr):
    """Rows times their weights, laid out for stores of whole rows."""
    acc = acc * gl.convert_layout(weight, gl.SliceLayout(1, acc.type.layout))[:, None]
    return gl.convert_layout(acc.to(dtype), layout)
