"""Band attention on Hopper: what the rows of a tile see, and the online softmax over it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _shape_of(part, padding, middle, last, step, runs_ptr, shape_row, SHAPE_ROWS: gl.constexpr):
    """What each row sees of a piece's n-th part: nothing of an empty one, everything of a full one."""
    run = middle + part - padding
    is_partial = (part >= padding) & (run < last)
    shape = gl.load(runs_ptr + run * 2 + 1, mask=is_partial, other=0)
    return gl.load(shape_row + shape * SHAPE_ROWS, mask=is_partial, other=gl.where(part < padding, 0, step << 16))


@gluon.jit
def shapes_of(tile, padding, middle, last, runs_ptr, shape_row, PARTS: gl.constexpr, STEP: gl.constexpr, SHAPE_ROWS: gl.constexpr):
    """The shapes of a tile's first and last part."""
    first = _shape_of(tile * PARTS, padding, middle, last, STEP, runs_ptr, shape_row, SHAPE_ROWS)
    if PARTS == 1:
        return first, first
    return first, _shape_of(tile * PARTS + 1, padding, middle, last, STEP, runs_ptr, shape_row, SHAPE_ROWS)


@gluon.jit
def _sees(shape, columns):
    first, behind = shape & 0xFFFF, shape >> 16  # both bounds in one comparison
    return (columns[None, :] - first[:, None]).to(gl.uint32) < (behind - first)[:, None].to(gl.uint32)


@gluon.jit
def hide(scores, shapes, PARTS: gl.constexpr):
    """−inf outside each row's columns [first, behind), packed as in `Lines.shapes`."""
    columns = gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, scores.type.layout))
    seen = _sees(shapes[0], columns)
    if PARTS == 2:
        seen = gl.where((columns < scores.shape[1] // 2)[None, :], seen, _sees(shapes[1], columns - scores.shape[1] // 2))
    return gl.where(seen, scores, float("-inf"))


@gluon.jit
def softmax(scores, row_max, row_sum, scale_log2, GUARD: gl.constexpr):
    """One tile of the online softmax in base 2: (weights, rescale of what was summed so far, maximum, sum)."""
    row_max_new = gl.maximum(row_max, gl.max(scores, 1))
    shift = row_max_new * scale_log2
    if GUARD:  # a row that has seen no key yet: −inf − (−inf) must not arise
        shift = gl.where(row_max_new == float("-inf"), 0.0, shift)
    rescale = gl.exp2(row_max * scale_log2 - shift)
    weights = gl.exp2(scores * scale_log2 - shift[:, None])
    return weights, rescale, row_max_new, row_sum * rescale + gl.sum(weights, 1)
