"""Band attention on Hopper: pieces of `Lines`, and how a program's warps learn which is next."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS = gl.constexpr(64)  # of a warp group: the height of one wgmma
TEAMS = gl.constexpr(2)  # warp groups that compute
COLUMNS = gl.constexpr(8)  # of `Lines.pieces`
TOLD = gl.constexpr(16)  # numbers of a piece, with room to spare


@gluon.jit
def piece_of(item, pieces_ptr, sizes):
    """(entry of `pieces`, pack). Packs go in sections whose keys fit into L2; in a section the longest pieces come first."""
    num_pieces, _, packs_at_once, _, packs_per_group = sizes
    within = item % (num_pieces * packs_at_once)
    pack = item // (num_pieces * packs_at_once) * packs_at_once + within % packs_at_once
    return pieces_ptr + (pack // packs_per_group * num_pieces + within // packs_at_once) * COLUMNS, pack


@gluon.jit
def keys_piece_of(item, pieces_ptr, sizes):
    """(entry of `pieces`, its place among them, KV head, turn). KV heads go in sections; in a section all have their first turn first."""
    num_pieces, _, kv_heads_at_once, num_turns, kv_heads_per_group = sizes
    in_turn = num_pieces * kv_heads_at_once
    turn, within = item // in_turn % num_turns, item % in_turn
    kv_head, piece = item // (in_turn * num_turns) * kv_heads_at_once + within % kv_heads_at_once, within // kv_heads_at_once
    return pieces_ptr + (kv_head // kv_heads_per_group * num_pieces + piece) * COLUMNS, piece, kv_head, turn


@gluon.jit
def tell(entry, pack, turn, told, told_full, told_empty, piece=0):
    """Writes a piece's columns, the last one replaced by the pack, and its place to where all roles read them; a pack of −1 ends it."""
    slot, phase = turn % 2, (turn // 2) & 1
    column = gl.arange(0, TOLD, layout=gl.BlockedLayout([1], [32], [1], [0]))
    values = gl.load(entry + column, mask=column < COLUMNS - 1, other=piece)
    mbarrier.wait(told_empty.index(slot), phase ^ 1)
    told.index(slot).store(gl.where(column == COLUMNS - 1, pack, values))
    mbarrier.arrive(told_full.index(slot), count=1)


@gluon.jit
def hear(turn, told, told_full, told_empty):
    """(first row, row behind, first partial step, behind it, full steps, slot, pack) of the piece whose turn it is, or a pack of −1."""
    slot = turn % 2
    mbarrier.wait(told_full.index(slot), (turn // 2) & 1)
    row0, row1 = _heard(told, slot, 0), _heard(told, slot, 1)
    middle, last, num_full = _heard(told, slot, 3), _heard(told, slot, 4), _heard(told, slot, 5)
    share, pack = _heard(told, slot, 6), _heard(told, slot, 7)
    mbarrier.arrive(told_empty.index(slot), count=1)
    return row0, row1, middle, last, num_full, share, pack


@gluon.jit
def hear_runs(turn, told, told_full, told_empty):
    """(first row, first run, first partial step, behind it, pack, place) of the piece whose turn it is, to a single warp."""
    slot = turn % 2
    mbarrier.wait(told_full.index(slot), (turn // 2) & 1)
    row0, first, middle, last = _heard(told, slot, 0, 1), _heard(told, slot, 2, 1), _heard(told, slot, 3, 1), _heard(told, slot, 4, 1)
    pack, piece = _heard(told, slot, 7, 1), _heard(told, slot, 8, 1)
    mbarrier.arrive(told_empty.index(slot), count=1)
    return row0, first, middle, last, pack, piece


@gluon.jit
def _heard(told, slot, column: gl.constexpr, WARPS: gl.constexpr = 4):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.max(told.index(slot).slice(column, 1).load(layout), 0)


@gluon.jit
def run_of(number, first, middle, last, runs_ptr):
    """(column, steps, shape) of a piece's n-th run, partial steps first; a full one's shape is −1."""
    num_partial = last - middle
    is_partial, some = number < num_partial, number < last - first
    place = runs_ptr + gl.where(is_partial, middle + number, first + number - num_partial) * 2
    value = gl.load(place + 1, mask=some, other=0)
    return gl.load(place, mask=some, other=0), gl.where(is_partial, 1, value), gl.where(is_partial, value, -1)


@gluon.jit
def run_below(full, partial, first, middle, runs_ptr, STEP: gl.constexpr):
    """From the right: (column of its last step, steps, shape) of the run that is next, and the full and partial runs to go on with."""
    some, others = full >= first, partial >= middle
    column, num_steps = gl.load(runs_ptr + full * 2, mask=some, other=-1), gl.load(runs_ptr + full * 2 + 1, mask=some, other=1)
    other, shape = gl.load(runs_ptr + partial * 2, mask=others, other=-1), gl.load(runs_ptr + partial * 2 + 1, mask=others, other=0)
    is_full = column > other
    column = gl.maximum(gl.where(is_full, column + (num_steps - 1) * STEP, other), 0)
    num_steps, shape = gl.where(is_full, num_steps, 1), gl.where(is_full, -1, shape)
    return column, num_steps, shape, gl.where(is_full, full - 1, full), gl.where(is_full, partial, partial - 1)
