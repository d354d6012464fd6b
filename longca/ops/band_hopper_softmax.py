"""Band attention on Hopper: what the rows of a step see, and the online softmax over it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def shape_of(run, last, other, runs_ptr, shape_row, SHAPE_ROWS: gl.constexpr):
    """What each row sees of a partial step; `other` from `last` on."""
    is_partial = run < last
    shape = gl.load(runs_ptr + run * 2 + 1, mask=is_partial, other=0)
    return gl.load(shape_row + shape * SHAPE_ROWS, mask=is_partial, other=other)


@gluon.jit
def hide(scores, shape):
    """−inf outside each row's columns [first, behind), packed as in `Lines.shapes`."""
    first, behind = shape & 0xFFFF, shape >> 16
    columns = gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, scores.type.layout))
    seen = (columns[None, :] - first[:, None]).to(gl.uint32) < (behind - first)[:, None].to(gl.uint32)  # both bounds in one comparison
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def softmax(scores, row_max, row_sum, scale_log2, GUARD: gl.constexpr):
    """One step of the online softmax in base 2: (weights, rescale of what was summed so far, maximum, sum)."""
    row_max_new = gl.maximum(row_max, gl.max(scores, 1))
    shift = row_max_new * scale_log2
    if GUARD:  # a row that has seen no key yet: −inf − (−inf) must not arise
        shift = gl.where(row_max_new == float("-inf"), 0.0, shift)
    rescale = gl.exp2(row_max * scale_log2 - shift)
    weights = gl.exp2(scores * scale_log2 - shift[:, None])
    return weights, rescale, row_max_new, row_sum * rescale + gl.sum(weights, 1)
