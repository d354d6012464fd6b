"""Band attention on Hopper: the warp that loads tiles for the forward kernel.

K and V travel in rings of shared memory: a tile's `full` barrier says that it has come, its `empty` barrier that all who read it have.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from longca.ops.band_hopper_pieces import ROWS, TEAMS, next_item, piece_of


@gluon.jit
def _load_step(column, kv_head, count, k_desc, v_desc, smem, bars, STAGES: gl.constexpr):
    _, k_smem, v_smem = smem
    _, _, k_full, k_empty, v_full, v_empty, _ = bars
    slot, phase = count % STAGES, (count // STAGES) & 1
    mbarrier.wait(k_empty.index(slot), phase ^ 1)
    mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [column, kv_head, 0], k_full.index(slot), k_smem.index(slot))
    mbarrier.wait(v_empty.index(slot), phase ^ 1)
    mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [column, kv_head, 0], v_full.index(slot), v_smem.index(slot))


@gluon.jit
def load_tiles(descs, smem, bars, tables, sizes, PACK: gl.constexpr, STAGES: gl.constexpr):
    """The loading warp: partial steps first, then full ones, as the other warps take them. A line without steps gets one all the same."""
    q_desc, k_desc, v_desc = descs
    q_smem, q_full, q_empty = smem[0], bars[0], bars[1]
    pieces_ptr, runs_ptr, _ = tables
    _, num_items, _, packs_per_kv_head, _ = sizes
    TILE: gl.constexpr = k_desc.block_type.shape[0]
    count, turn = 0, 0  # steps and pieces so far: slots and phases of the rings follow
    item = next_item(0, num_items)
    while item < num_items:
        entry, pack = piece_of(item, pieces_ptr, sizes)
        kv_head = pack // packs_per_kv_head
        row, first, middle, last = gl.load(entry), gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4)
        for team in gl.static_range(TEAMS):
            mbarrier.wait(q_empty.index(team), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(team), q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(q_desc, [row + team * (ROWS // PACK), pack * PACK, 0], q_full.index(team), q_smem.index(team))
        for run in range(middle, last):
            _load_step(gl.load(runs_ptr + run * 2), kv_head, count, k_desc, v_desc, smem, bars, STAGES)
            count += 1
        for run in range(first, middle):
            column = gl.load(runs_ptr + run * 2)
            for step in range(gl.load(runs_ptr + run * 2 + 1)):
                _load_step(column + step * TILE, kv_head, count, k_desc, v_desc, smem, bars, STAGES)
                count += 1
        if first == last:
            _load_step(0, kv_head, count, k_desc, v_desc, smem, bars, STAGES)
            count += 1
        turn += 1
        item = next_item(turn, num_items)

