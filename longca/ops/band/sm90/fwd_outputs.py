"""The results of the forward kernel on Hopper: out and LSE, merged with initial ones, or a split's partial
result. Shapes as in `sm90.forward`."""

# Triton reads the types of fields as values
# pyright: reportInvalidTypeForm=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate

from longca.ops.band.sm90.pipeline import store_rows_through_smem
from longca.ops.band.sm90.tile_scheduler import Scalar, scalar

LN2 = gl.constexpr(0.6931471805599453)


@aggregate
class ForwardOutputs:
    """Pointers and strides of the result, of the initial (out, LSE) merged with it, and of partial results."""  # noqa: E501

    out: gl.tensor
    lse: gl.tensor
    initial_out: gl.tensor
    initial_lse: gl.tensor
    partial_out: gl.tensor
    partial_lse: gl.tensor
    out_token: Scalar
    out_head: Scalar
    lse_token: Scalar
    lse_head: Scalar
    num_slots: Scalar

    @gluon.constexpr_function
    def __init__(self, out, lse, initial_out, initial_lse, partial_out, partial_lse, out_token, out_head, lse_token, lse_head, num_slots):  # noqa: E501
        self.out = out
        self.lse = lse
        self.initial_out = initial_out
        self.initial_lse = initial_lse
        self.partial_out = partial_out
        self.partial_lse = partial_lse
        self.out_token = scalar(out_token)
        self.out_head = scalar(out_head)
        self.lse_token = scalar(lse_token)
        self.lse_head = scalar(lse_head)
        self.num_slots = scalar(num_slots)


@gluon.jit
def write_rows(acc, row_max, row_sum, tile, rows, buffer, outputs, scale_log2, PACK: gl.constexpr, TILE_ROWS: gl.constexpr,  # noqa: E501
              HAS_INITIAL: gl.constexpr):
    """Writes out and LSE of a whole row tile, merged with the initial ones, or the float32 partial result of
    a split to its slot.

    Args:
        buffer: staging shared memory of (64, D) in the inputs' dtype.
    """
    D: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    some = row_sum > 0.0
    lse = gl.where(some, (row_max * scale_log2 + gl.log2(row_sum)) * LN2, float("-inf"))
    inverse = gl.where(some, 1.0 / row_sum, 0.0)
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    if (tile.slot < 0) | (tile.row_start == tile.row_end):  # a work tile of no rows has nothing to store
        token, head = (tile.row_start + rows // PACK).to(gl.int64), tile.pack * PACK + rows % PACK
        lse_offset, inside = token * outputs.lse_token + head * outputs.lse_head, token < tile.row_end
        out_offset = gl.convert_layout(token * outputs.out_token + head * outputs.out_head, gl.SliceLayout(1, layout))[:, None] + dims  # noqa: E501
        inside_rows = gl.convert_layout(inside, gl.SliceLayout(1, layout))[:, None]
        if HAS_INITIAL:
            initial_lse = gl.load(outputs.initial_lse + lse_offset, mask=inside, other=float("-inf"))
            most = gl.maximum(lse, initial_lse)
            shift = gl.where(most == float("-inf"), 0.0, most)
            ours, theirs = gl.exp(lse - shift), gl.exp(initial_lse - shift)
            total = gl.where(most == float("-inf"), 1.0, ours + theirs)
            lse = gl.where(most == float("-inf"), most, shift + gl.log(total))
            acc = acc * gl.convert_layout(inverse * ours / total, gl.SliceLayout(1, layout))[:, None]
            initial_out = gl.load(outputs.initial_out + out_offset, mask=inside_rows, other=0.0)
            acc += initial_out * gl.convert_layout(theirs / total, gl.SliceLayout(1, layout))[:, None]
        else:
            acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, layout))[:, None]
        gl.store(outputs.lse + lse_offset, lse, mask=inside)
        if outputs.out.dtype.element_ty == buffer.dtype:
            store_rows_through_smem(buffer, acc, tile.row_start, tile.row_end, tile.pack, rows, outputs.out, outputs.out_token,  # noqa: E501
                                    outputs.out_head, PACK)
        else:
            gl.store(outputs.out + out_offset, acc.to(outputs.out.dtype.element_ty), mask=inside_rows)
    else:
        slot_row = (tile.pack.to(gl.int64) * outputs.num_slots + tile.slot) * TILE_ROWS + rows
        gl.store(outputs.partial_lse + slot_row, lse)
        acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, layout))[:, None]
        gl.store(outputs.partial_out + gl.convert_layout(slot_row, gl.SliceLayout(1, layout))[:, None] * D + dims, acc)  # noqa: E501
