"""Band attention on Hopper: the warp that takes pieces of `Lines`, tells the others, and loads their tiles.

Who is free takes the next piece, longest first. K and V travel in rings of shared memory: a tile's `full` barrier says that it has
come, its `empty` barrier that all who read it have. A tile of keys consists of PARTS steps of the line, from anywhere: where steps
are short, the tensor cores still get whole tiles. A piece's parts are, in this order: empty ones, so that tiles are whole and there
is one at least, then its partial steps, then its full ones.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from longca.ops.band.sm90.tile_scheduler import ROWS, piece_of, run_of, tell

SWIZZLE = gl.constexpr(64)  # elements of a row that lie together in shared memory


@gluon.jit
def parts_before(num_steps, PARTS: gl.constexpr):
    """Empty parts of a piece."""
    return gl.where(num_steps == 0, PARTS, (PARTS - num_steps % PARTS) % PARTS)


@gluon.jit
def _copy(desc, column, kv_head, full, parts, place, PARTS: gl.constexpr, BLOCKS: gl.constexpr):
    for block in gl.static_range(BLOCKS):
        tma.async_copy_global_to_shared(desc, [column, kv_head, block * SWIZZLE], full, parts.index(place + block * PARTS))


@gluon.jit
def _load_part(column, held, kv_head, count, k_desc, v_desc, smem, bars, PARTS: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr):
    """Part `count` of K; with a tile's last part, V's parts too, the one before being at `held`: V's room is free later than K's."""
    k_parts, v_parts = smem
    k_full, k_empty, v_full, v_empty = bars
    BYTES: gl.constexpr = k_desc.block_type.nbytes * PARTS * BLOCKS
    part, slot, phase = count % PARTS, count // PARTS % STAGES, (count // PARTS // STAGES) & 1
    place = slot * (PARTS * BLOCKS)
    if part == 0:
        mbarrier.wait(k_empty.index(slot), phase ^ 1)
        mbarrier.expect(k_full.index(slot), BYTES)
    _copy(k_desc, column, kv_head, k_full.index(slot), k_parts, place + part, PARTS, BLOCKS)
    if part == PARTS - 1:
        mbarrier.wait(v_empty.index(slot), phase ^ 1)
        mbarrier.expect(v_full.index(slot), BYTES)
        if PARTS == 2:
            _copy(v_desc, held, kv_head, v_full.index(slot), v_parts, place, PARTS, BLOCKS)
        _copy(v_desc, column, kv_head, v_full.index(slot), v_parts, place + part, PARTS, BLOCKS)


@gluon.jit
def load_tiles(descs, smem, bars, tables, sizes, next_ptr, PACK: gl.constexpr, TEAMS: gl.constexpr, QUEUE: gl.constexpr,
               PARTS: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp.

    Args:
        next_ptr: int32 (1,), how many pieces have been taken beyond each program's first.
    """
    q_desc, k_desc, v_desc = descs
    q_smem, k_smem, v_smem, told = smem
    q_full, q_empty, ring_bars, told_full, told_empty = bars[0], bars[1], (bars[2], bars[3], bars[4], bars[5]), bars[7], bars[8]
    pieces_ptr, runs_ptr = tables[0], tables[1]
    num_items, packs_per_kv_head = sizes[1], sizes[3]
    STEP: gl.constexpr = k_desc.block_type.shape[0]
    BLOCKS: gl.constexpr = k_smem.shape[2] // SWIZZLE
    shape: gl.constexpr = [STAGES * BLOCKS * PARTS, STEP, 1, SWIZZLE]
    rings = k_smem._reinterpret(k_desc.dtype, shape, k_desc.layout), v_smem._reinterpret(v_desc.dtype, shape, v_desc.layout)
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    count, turn, held = 0, 0, 0  # parts and pieces so far: slots and phases of the rings follow
    item = gl.program_id(0)
    while item < num_items:
        entry, pack = piece_of(item, pieces_ptr, sizes)
        ticket = gl.atomic_add(next_ptr + lane * 0, lane * 0 + 1, mask=lane == 0, sem="relaxed")
        tell(entry, pack, turn, told, told_full, told_empty)
        kv_head = pack // packs_per_kv_head
        row, first, middle, last = gl.load(entry), gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4)
        for team in gl.static_range(TEAMS):
            place = turn % QUEUE * TEAMS + team
            mbarrier.wait(q_empty.index(place), (turn // QUEUE & 1) ^ 1)
            mbarrier.expect(q_full.index(place), q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(q_desc, [row + team * (ROWS // PACK), pack * PACK, 0], q_full.index(place), q_smem.index(place))
        for _ in range(parts_before(last - middle + gl.load(entry + 5), PARTS)):
            _load_part(0, held, kv_head, count, k_desc, v_desc, rings, ring_bars, PARTS, BLOCKS, STAGES)
            held = 0
            count += 1
        for number in range(last - first):
            column, num_steps, _ = run_of(number, first, middle, last, runs_ptr)  # Triton 3.6 loses a bound carried from the round before
            for _ in range(num_steps):
                _load_part(column, held, kv_head, count, k_desc, v_desc, rings, ring_bars, PARTS, BLOCKS, STAGES)
                held = column
                column += STEP
                count += 1
        turn += 1
        item = gl.max(gl.where(lane == 0, ticket, 0), 0) + gl.num_programs(0)
    tell(pieces_ptr, -1, turn, told, told_full, told_empty)
