"""Band attention on Hopper: the kernel for dQ, in Gluon, over lines of queries.

One program a multiprocessor. A warp loads; two warp groups (teams) hold 64 rows of a line each, with dQ in registers, and go over all steps
of keys. A step's scores and dP are under way beside the product of the step before with its keys.

Shapes as in `sm90.forward`; steps have 64 keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from longca.ops.band.sm90.bwd_dkdv import barriers, note
from longca.ops.band.sm90.bwd_load import EMPTY, FULL
from longca.ops.band.sm90.store import store_through
from longca.ops.band.sm90.tile_scheduler import ROWS, TEAMS, TOLD, hear, piece_of, run_of, tell

QUEUE = gl.constexpr(2)  # pieces whose Q and dO are there


@gluon.jit
def _store(dq, tile, outputs, row0, row1, slot, pack, rows, PACK: gl.constexpr, CARRY: gl.constexpr):
    """A team's rows: to the result, by way of its tile of Q if types are the same; of a split line as float32 to a slot."""
    dq_ptr, in_dq_ptr, share_ptr, dq_token, dq_head, num_slots = outputs
    D: gl.constexpr = dq.shape[1]
    layout: gl.constexpr = dq.type.layout
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    if (slot < 0) | (row0 == row1):  # a piece of no rows has nothing to store
        token, head = (row0 + rows // PACK).to(gl.int64), pack * PACK + rows % PACK
        place = gl.convert_layout(token * dq_token + head * dq_head, gl.SliceLayout(1, layout))[:, None] + dims
        inside = gl.convert_layout(token < row1, gl.SliceLayout(1, layout))[:, None]
        if CARRY:
            dq += gl.load(in_dq_ptr + place, mask=inside, other=0.0)
        if dq_ptr.dtype.element_ty == tile.dtype:
            store_through(tile, dq, row0, row1, pack, rows, dq_ptr, dq_token, dq_head, PACK)
        else:
            gl.store(dq_ptr + place, dq.to(dq_ptr.dtype.element_ty), mask=inside)
    else:
        share = (pack.to(gl.int64) * num_slots + slot) * (TEAMS * ROWS) + rows
        gl.store(share_ptr + gl.convert_layout(share, gl.SliceLayout(1, layout))[:, None] * D + dims, dq)


@gluon.jit
def _gradient(smem, bars, told_bars, stats, shapes_ptr, outputs, scale, scale_log2, team: gl.constexpr, PACK: gl.constexpr,
              CARRY: gl.constexpr):
    """A team's rows of every piece."""
    q_smem, dout_smem, k_smem, v_smem, notes, told = smem
    row_full, row_empty, k_full, v_full, empty = bars
    base_ptr, delta_ptr, num_tokens = stats
    STAGES: gl.constexpr = k_smem.shape[0]
    D: gl.constexpr = k_smem.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    rows = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, ROWS, layout=gl.SliceLayout(0, layout))
    count, turn = 0, 0
    row0, row1, middle, last, num_full, slot, pack = hear(0, told, told_bars[0], told_bars[1])
    while pack >= 0:
        held = turn % QUEUE
        q_tile = q_smem.index(held * TEAMS + team).reshape([ROWS, D])
        dout_tile = dout_smem.index(held * TEAMS + team).reshape([ROWS, D])
        place_of_rows = (pack.to(gl.int64) * num_tokens + row0) * PACK + rows
        base, delta = gl.load(base_ptr + place_of_rows), gl.load(delta_ptr + place_of_rows)
        num_steps = gl.maximum(last - middle + num_full, 1)
        dq = gl.zeros([ROWS, D], gl.float32, sum_layout)
        before = gl.zeros([ROWS, ROWS], k_smem.dtype, left)  # of the first step there is none: nothing times its own keys
        mbarrier.wait(row_full.index(held), turn // QUEUE & 1)
        for number in range(num_steps):
            place, phase = count % STAGES, (count // STAGES) & 1
            place_before = gl.where(number == 0, place, (count + STAGES - 1) % STAGES)
            mbarrier.wait(k_full.index(place), phase)
            keys = k_smem.index(place).reshape([ROWS, D])
            scores = warpgroup_mma(q_tile, keys.permute((1, 0)), gl.zeros([ROWS, ROWS], gl.float32, layout), use_acc=False, is_async=True)
            shape = note(notes, place, 1)
            mbarrier.wait(v_full.index(place), phase)
            values = v_smem.index(place).reshape([ROWS, D])
            dweights = warpgroup_mma(dout_tile, values.permute((1, 0)), gl.zeros([ROWS, ROWS], gl.float32, layout), use_acc=False,
                                     is_async=True)
            dq = warpgroup_mma(before, k_smem.index(place_before).reshape([ROWS, D]), dq, is_async=True)
            seen = gl.load(shapes_ptr + shape * (TEAMS * ROWS // PACK) + rows // PACK, mask=shape >= 0,
                           other=gl.where(shape == FULL, ROWS << 16, 0))
            scores = warpgroup_mma_wait(2, deps=[scores])
            weights = gl.exp2(scores * scale_log2 - base[:, None])
            if shape != FULL:
                first, behind = seen & 0xFFFF, seen >> 16
                shown = (columns[None, :] - first[:, None]).to(gl.uint32) < (behind - first)[:, None].to(gl.uint32)
                weights = gl.where(shown, weights, 0.0)
            dweights = warpgroup_mma_wait(1, deps=[dweights])
            dscores = weights * (dweights - delta[:, None])
            next_left = gl.convert_layout(dscores.to(k_smem.dtype), left)
            dq, before = warpgroup_mma_wait(0, deps=[dq, before])
            if number > 0:
                mbarrier.arrive(empty.index(place_before), count=1)
            before = next_left
            count += 1
        last_place = (count + STAGES - 1) % STAGES
        dq = warpgroup_mma(before, k_smem.index(last_place).reshape([ROWS, D]), dq, is_async=True)
        dq, before = warpgroup_mma_wait(0, deps=[dq, before])
        mbarrier.arrive(empty.index(last_place), count=1)
        _store(dq * scale, q_tile, outputs, row0, row1, slot, pack, rows, PACK, CARRY)
        fence_async_shared()
        mbarrier.arrive(row_empty.index(held), count=1)
        turn += 1
        row0, row1, middle, last, num_full, slot, pack = hear(turn, told, told_bars[0], told_bars[1])


@gluon.jit
def _feed_step(column, shape, kv_head, count, descs, smem, bars, STAGES: gl.constexpr):
    k_desc, v_desc = descs
    k_smem, v_smem, notes = smem
    k_full, v_full, empty = bars
    slot, phase = count % STAGES, (count // STAGES) & 1
    place = gl.arange(0, 4, layout=gl.BlockedLayout([1], [32], [1], [0]))
    mbarrier.wait(empty.index(slot), phase ^ 1)
    notes.index(slot).store(gl.where(place == 0, column, shape))
    mbarrier.arrive(k_full.index(slot), count=1)
    mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [column, kv_head, 0], k_full.index(slot), k_smem.index(slot))
    mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [column, kv_head, 0], v_full.index(slot), v_smem.index(slot))


@gluon.jit
def _feed(descs, smem, bars, told_bars, tables, sizes, next_ptr, PACK: gl.constexpr):
    """The loading warp. A line without steps gets an empty one."""
    q_desc, dout_desc, k_desc, v_desc = descs
    q_smem, dout_smem, k_smem, v_smem, notes, told = smem
    row_full, row_empty = bars[0], bars[1]
    pieces_ptr, runs_ptr = tables
    num_items, packs_per_kv_head = sizes[1], sizes[3]
    STAGES: gl.constexpr = k_smem.shape[0]
    lane = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    count, turn = 0, 0
    item = gl.program_id(0)
    while item < num_items:
        entry, pack = piece_of(item, pieces_ptr, sizes)
        ticket = gl.atomic_add(next_ptr + lane * 0, lane * 0 + 1, mask=lane == 0, sem="relaxed")
        tell(entry, pack, turn, told, told_bars[0], told_bars[1])
        kv_head, held = pack // packs_per_kv_head, turn % QUEUE
        row, first, middle, last = gl.load(entry), gl.load(entry + 2), gl.load(entry + 3), gl.load(entry + 4)
        mbarrier.wait(row_empty.index(held), (turn // QUEUE & 1) ^ 1)
        mbarrier.expect(row_full.index(held), 2 * TEAMS * q_desc.block_type.nbytes)
        for team in gl.static_range(TEAMS):
            token = row + team * (ROWS // PACK)
            tma.async_copy_global_to_shared(q_desc, [token, pack * PACK, 0], row_full.index(held), q_smem.index(held * TEAMS + team))
            tma.async_copy_global_to_shared(dout_desc, [token, pack * PACK, 0], row_full.index(held), dout_smem.index(held * TEAMS + team))
        for number in range(gl.maximum(last - first, 1)):
            column, num_steps, shape = run_of(number, first, middle, last, runs_ptr)
            for _ in range(gl.where(first == last, 1, num_steps)):
                _feed_step(column, gl.where(first == last, EMPTY, shape), kv_head, count, (k_desc, v_desc), (k_smem, v_smem, notes),
                           (bars[2], bars[3], bars[4]), STAGES)
                column += ROWS
                count += 1
        turn += 1
        item = gl.max(gl.where(lane == 0, ticket, 0), 0) + gl.num_programs(0)
    tell(pieces_ptr, -1, turn, told, told_bars[0], told_bars[1])


@gluon.jit(do_not_specialize=["num_slots", "num_pieces", "num_items", "packs_at_once", "packs_per_kv_head", "packs_per_group",
                              "num_tokens"])
def queries_kernel(q_desc, dout_desc, k_desc, v_desc, next_ptr, pieces_ptr, runs_ptr, shapes_ptr, base_ptr, delta_ptr, dq_ptr, in_dq_ptr,
                   share_ptr, dq_token, dq_head, num_slots, num_pieces, num_items, packs_at_once, packs_per_kv_head, packs_per_group,
                   num_tokens, scale, scale_log2, PACK: gl.constexpr, CARRY: gl.constexpr, STAGES: gl.constexpr):
    """
    Args:
        q_desc, dout_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        k_desc, v_desc: (S, G, D) in boxes of (64, 1, D).
        next_ptr: int32 (1,), zero.
        pieces_ptr, runs_ptr, shapes_ptr: of `Lines` of 128 / PACK queries in steps of 64 keys.
        base_ptr, delta_ptr: of `band_statistics.prepare`, float32 (H / PACK, num_tokens, PACK).
        in_dq_ptr: float32, strided as dQ, with CARRY: what dQ is added to.
        share_ptr: float32 (H / PACK, num_slots, 128, D), for split lines.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [QUEUE * TEAMS, ROWS // PACK, PACK, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(q_desc.dtype, [QUEUE * TEAMS, ROWS // PACK, PACK, D], dout_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, ROWS, 1, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, ROWS, 1, D], v_desc.layout)
    notes = gl.allocate_shared_memory(gl.int32, [STAGES, 4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    told = gl.allocate_shared_memory(gl.int32, [2, TOLD], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = barriers(QUEUE, 1), barriers(QUEUE, TEAMS), barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, TEAMS)
    told_bars = barriers(2, 1), barriers(2, TEAMS)
    fence_async_shared()
    smem = q_smem, dout_smem, k_smem, v_smem, notes, told
    stats, outputs = (base_ptr, delta_ptr, num_tokens), (dq_ptr, in_dq_ptr, share_ptr, dq_token, dq_head, num_slots)
    sizes = num_pieces, num_items, packs_at_once, packs_per_kv_head, packs_per_group
    gl.warp_specialize([
        (_gradient, (smem, bars, told_bars, stats, shapes_ptr, outputs, scale, scale_log2, 0, PACK, CARRY)),
        (_gradient, (smem, bars, told_bars, stats, shapes_ptr, outputs, scale, scale_log2, 1, PACK, CARRY)),
        (_feed, ((q_desc, dout_desc, k_desc, v_desc), smem, bars, told_bars, (pieces_ptr, runs_ptr), sizes, next_ptr, PACK)),
    ], [4, 1], [240, 24])
