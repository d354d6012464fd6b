"""Band attention on Hopper: the warp that loads for the backward kernel.

Like `sm90.load`, with keys and queries in each other's place: K and V of a line lie still, and steps of Q and dO, with their
statistics and a note of what each step is, go through rings of shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from longca.ops.band.sm90.tile_scheduler import ROWS, keys_piece_of, run_below, run_of, tell

FULL, EMPTY = gl.constexpr(-1), gl.constexpr(-2)  # in a note, instead of a shape


@gluon.jit
def place_of_stats(column, pack, stats_of_pack, PACK: gl.constexpr):
    """Where the statistics of a step's rows begin: at a multiple of 16 bytes, in the copy that has them there."""
    COPIES: gl.constexpr = 4 // PACK if PACK < 4 else 1
    return pack * stats_of_pack + column % COPIES * (stats_of_pack // COPIES) + column // COPIES * (COPIES * PACK)


@gluon.jit
def _feed(column, shape, pack, stats_of_pack, count, descs, smem, bars, PACK: gl.constexpr, STAGES: gl.constexpr):
    q_desc, dout_desc, base_desc, delta_desc = descs
    q_smem, dout_smem, base_smem, delta_smem, notes = smem
    q_full, dout_full, empty = bars[0], bars[1], bars[2]
    slot, phase = count % STAGES, (count // STAGES) & 1
    place = gl.arange(0, 4, layout=gl.BlockedLayout([1], [32], [1], [0]))
    stats = place_of_stats(column, pack, stats_of_pack, PACK)
    mbarrier.wait(empty.index(slot), phase ^ 1)
    notes.index(slot).store(gl.where(place == 0, column, gl.where(place == 1, shape, pack)))
    mbarrier.arrive(q_full.index(slot), count=1)
    mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + base_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [column, pack * PACK, 0], q_full.index(slot), q_smem.index(slot))
    tma.async_copy_global_to_shared(base_desc, [stats], q_full.index(slot), base_smem.index(slot))
    mbarrier.expect(dout_full.index(slot), dout_desc.block_type.nbytes + delta_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(dout_desc, [column, pack * PACK, 0], dout_full.index(slot), dout_smem.index(slot))
    tma.async_copy_global_to_shared(delta_desc, [stats], dout_full.index(slot), delta_smem.index(slot))


@gluon.jit
def _take(next_ptr, lane):
    return gl.atomic_add(next_ptr + lane * 0, lane * 0 + 1, mask=lane == 0, sem="relaxed")


@gluon.jit
def feed_tiles(k_desc, v_desc, descs, k_smem, v_smem, smem, told, kv_bars, bars, told_bars, tables, sizes, next_ptr, packs_per_kv_head,
               stats_of_pack, PACK: gl.constexpr, TEAMS: gl.constexpr, STAGES: gl.constexpr, IN_ORDER: gl.constexpr = False):
    """The loading warp. A line without steps gets an empty one.

    Args:
        IN_ORDER: as in `sm90.dq_add.add_tiles`: steps go from the last column on, instead of partial ones first, and a piece, a
            program's first one too, is taken only when it begins, so that all before it have begun.
    """
    kv_full, kv_empty = kv_bars
    pieces_ptr, runs_ptr = tables[0], tables[1]
    STEP: gl.constexpr = ROWS // PACK
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    count, turn = 0, 0
    item = gl.program_id(0)
    if IN_ORDER:
        item = gl.max(gl.where(lane == 0, _take(next_ptr, lane), 0), 0)
    while item < sizes[1]:
        entry, piece, kv_head, part = keys_piece_of(item, pieces_ptr, sizes)
        if not IN_ORDER:
            ticket = _take(next_ptr, lane)
        num_packs = packs_per_kv_head // sizes[3]
        first_pack = kv_head * packs_per_kv_head + part * num_packs
        tell(entry, first_pack, turn, told, told_bars[0], told_bars[1], piece)
        row, first, middle, last = gl.load(entry), gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4)
        mbarrier.wait(kv_empty, (turn & 1) ^ 1)
        mbarrier.expect(kv_full, 2 * TEAMS * k_desc.block_type.nbytes)
        for team in gl.static_range(TEAMS):
            tma.async_copy_global_to_shared(k_desc, [row + team * ROWS, kv_head, 0], kv_full, k_smem.index(team))
            tma.async_copy_global_to_shared(v_desc, [row + team * ROWS, kv_head, 0], kv_full, v_smem.index(team))
        for pack in range(first_pack, first_pack + num_packs):
            full, partial = middle - 1, last - 1
            for number in range(gl.maximum(last - first, 1)):
                if IN_ORDER:
                    column, num_steps, shape, full, partial = run_below(full, partial, first, middle, runs_ptr, STEP)
                else:
                    column, num_steps, shape = run_of(number, first, middle, last, runs_ptr)
                for _ in range(gl.where(first == last, 1, num_steps)):
                    _feed(column, gl.where(first == last, EMPTY, shape), pack, stats_of_pack, count, descs, smem, bars, PACK, STAGES)
                    column += -STEP if IN_ORDER else STEP
                    count += 1
        turn += 1
        if IN_ORDER:
            item = gl.max(gl.where(lane == 0, _take(next_ptr, lane), 0), 0)
        else:
            item = gl.max(gl.where(lane == 0, ticket, 0), 0) + gl.num_programs(0)
    tell(pieces_ptr, -1, turn, told, told_bars[0], told_bars[1])
