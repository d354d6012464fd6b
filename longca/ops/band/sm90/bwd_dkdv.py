"""Band attention on Hopper: the kernel for dK and dV, in Gluon, over lines of keys.

One program a multiprocessor. A warp loads (`sm90.bwd_load`); two warp groups (teams) hold 64 keys of a line each, with dK and dV in
registers, and go over all steps of queries. Scores and their gradients are keys × queries, so that they enter the products for dV and
dK from registers. Products run beside what does not need them: dP beside the exponentials, dV beside dS.

Shapes as in `sm90.forward`; steps have 64 rows, which are 64 / PACK queries of PACK heads.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from longca.ops.band.sm90.bwd_load import FULL, feed_tiles
from longca.ops.band.sm90.tile_scheduler import ROWS, TEAMS, TOLD, hear


@gluon.jit
def note(notes, slot, place: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.max(notes.index(slot).slice(place, 1).load(layout), 0)


@gluon.jit
def _store(x, tile, x_ptr, share_ptr, x_token, x_head, row0, row1, slot, kv_head, num_slots, team: gl.constexpr):
    """A team's rows of dK or dV: to the result, by way of its tile of V if types are the same; of a split line as float32 to a slot."""
    D: gl.constexpr = x.shape[1]
    SAME: gl.constexpr = x_ptr.dtype.element_ty == tile.dtype
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0]) if SAME else x.type.layout
    if (slot < 0) | (row0 == row1):  # a piece of no rows has nothing to store
        if SAME:
            tile.store(x.to(tile.dtype))
            values = tile.load(layout)
        else:
            values = x.to(x_ptr.dtype.element_ty)
        token = row0 + team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        place = (token.to(gl.int64) * x_token + kv_head * x_head)[:, None] + gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
        gl.store(x_ptr + place, values, mask=(token < row1)[:, None])
    else:
        row = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, x.type.layout))
        share = ((kv_head.to(gl.int64) * num_slots + slot) * (TEAMS * ROWS) + row) * D
        gl.store(share_ptr + share[:, None] + gl.arange(0, D, layout=gl.SliceLayout(0, x.type.layout))[None, :], x)


@gluon.jit
def _gradients(k_smem, v_smem, smem, told, kv_bars, bars, told_bars, shapes_ptr, outputs, strides, packs_per_kv_head, scale, scale_log2,
               team: gl.constexpr, PACK: gl.constexpr):
    """A team's keys of every piece."""
    q_smem, dout_smem, base_smem, delta_smem, notes = smem
    q_full, dout_full, empty = bars
    dk_ptr, dv_ptr, share_dk_ptr, share_dv_ptr = outputs
    dk_token, dk_head, dv_token, dv_head, num_slots = strides
    STAGES: gl.constexpr = q_smem.shape[0]
    D: gl.constexpr = q_smem.shape[3]
    STEP: gl.constexpr = ROWS // PACK
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    k_tile, v_tile = k_smem.index(team).reshape([ROWS, D]), v_smem.index(team).reshape([ROWS, D])
    rows = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, ROWS, layout=across)
    count, turn = 0, 0
    row0, row1, middle, last, num_full, slot, pack = hear(0, told, told_bars[0], told_bars[1])
    while pack >= 0:
        kv_head = pack // packs_per_kv_head
        num_steps = gl.maximum(last - middle + num_full, 1) * packs_per_kv_head
        dk, dv = gl.zeros([ROWS, D], gl.float32, sum_layout), gl.zeros([ROWS, D], gl.float32, sum_layout)
        mbarrier.wait(kv_bars[0], turn & 1)
        for _ in range(num_steps):
            place, phase = count % STAGES, (count // STAGES) & 1
            q, dout = q_smem.index(place).reshape([ROWS, D]), dout_smem.index(place).reshape([ROWS, D])
            mbarrier.wait(q_full.index(place), phase)
            scores = warpgroup_mma(k_tile, q.permute((1, 0)), gl.zeros([ROWS, ROWS], gl.float32, layout), use_acc=False, is_async=True)
            shape = note(notes, place, 1)
            mbarrier.wait(dout_full.index(place), phase)
            dweights = warpgroup_mma(v_tile, dout.permute((1, 0)), gl.zeros([ROWS, ROWS], gl.float32, layout), use_acc=False, is_async=True)
            seen = gl.load(shapes_ptr + shape * (TEAMS * ROWS) + rows, mask=shape >= 0, other=gl.where(shape == FULL, STEP << 16, 0))
            scores = warpgroup_mma_wait(1, deps=[scores])
            weights = gl.exp2(scores * scale_log2 - base_smem.index(place).load(across)[None, :])
            if (shape != FULL) | (row1 - row0 < TEAMS * ROWS):
                seen = gl.where(rows < row1 - row0, seen, 0)
                first, behind = seen & 0xFFFF, seen >> 16
                shown = ((columns // PACK)[None, :] - first[:, None]).to(gl.uint32) < (behind - first)[:, None].to(gl.uint32)
                weights = gl.where(shown, weights, 0.0)
            weights_left = gl.convert_layout(weights.to(q.dtype), left)
            dv = warpgroup_mma(weights_left, dout, dv, is_async=True)
            dweights = warpgroup_mma_wait(1, deps=[dweights])
            dscores = weights * (dweights - delta_smem.index(place).load(across)[None, :])
            dscores_left = gl.convert_layout(dscores.to(q.dtype), left)
            dk = warpgroup_mma(dscores_left, q, dk, is_async=True)
            dk, dv, weights_left, dscores_left = warpgroup_mma_wait(0, deps=[dk, dv, weights_left, dscores_left])
            mbarrier.arrive(empty.index(place), count=1)
            count += 1
        _store(dv, v_tile, dv_ptr, share_dv_ptr, dv_token, dv_head, row0, row1, slot, kv_head, num_slots, team)
        _store(dk * scale, v_tile, dk_ptr, share_dk_ptr, dk_token, dk_head, row0, row1, slot, kv_head, num_slots, team)
        fence_async_shared()
        mbarrier.arrive(kv_bars[1], count=1)
        turn += 1
        row0, row1, middle, last, num_full, slot, pack = hear(turn, told, told_bars[0], told_bars[1])


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(COUNT):
        mbarrier.init(bars.index(place), count=ARRIVALS)
    return bars


@gluon.jit(do_not_specialize=["num_slots", "num_pieces", "num_items", "kv_heads_at_once", "kv_heads_per_group", "packs_per_kv_head",
                              "stats_of_pack"])
def backward_kernel(q_desc, dout_desc, base_desc, delta_desc, k_desc, v_desc, next_ptr, pieces_ptr, runs_ptr, shapes_ptr, dk_ptr, dv_ptr,
                    share_dk_ptr, share_dv_ptr, dk_token, dk_head, dv_token, dv_head, num_slots, num_pieces, num_items, kv_heads_at_once,
                    kv_heads_per_group, packs_per_kv_head, stats_of_pack, scale, scale_log2, PACK: gl.constexpr, STAGES: gl.constexpr):
    """
    Args:
        q_desc, dout_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        base_desc, delta_desc: float32 (H / PACK · stats_of_pack,), as `sm90.launch.statistics` lays them out, in boxes of 64.
        k_desc, v_desc: (S, G, D) in boxes of (64, 1, D).
        next_ptr: int32 (1,), zero.
        pieces_ptr, runs_ptr, shapes_ptr: of `Lines` of 128 keys in steps of 64 / PACK queries.
        share_dk_ptr, share_dv_ptr: float32 (G, num_slots, 128, D), for split lines.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [TEAMS, ROWS, 1, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [TEAMS, ROWS, 1, D], v_desc.layout)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS // PACK, PACK, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS // PACK, PACK, D], dout_desc.layout)
    base_smem = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], base_desc.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], delta_desc.layout)
    notes = gl.allocate_shared_memory(gl.int32, [STAGES, 4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    told = gl.allocate_shared_memory(gl.int32, [2, TOLD], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv_bars = barriers(1, 1).index(0), barriers(1, TEAMS).index(0)
    bars = barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, TEAMS)
    told_bars = barriers(2, 1), barriers(2, TEAMS)
    fence_async_shared()
    smem, descs = (q_smem, dout_smem, base_smem, delta_smem, notes), (q_desc, dout_desc, base_desc, delta_desc)
    tables, outputs = (pieces_ptr, runs_ptr, shapes_ptr), (dk_ptr, dv_ptr, share_dk_ptr, share_dv_ptr)
    strides = dk_token, dk_head, dv_token, dv_head, num_slots
    sizes = num_pieces, num_items, kv_heads_at_once, 1, kv_heads_per_group
    gl.warp_specialize([
        (_gradients, (k_smem, v_smem, smem, told, kv_bars, bars, told_bars, shapes_ptr, outputs, strides, packs_per_kv_head, scale,
                      scale_log2, 0, PACK)),
        (_gradients, (k_smem, v_smem, smem, told, kv_bars, bars, told_bars, shapes_ptr, outputs, strides, packs_per_kv_head, scale,
                      scale_log2, 1, PACK)),
        (feed_tiles, (k_desc, v_desc, descs, k_smem, v_smem, smem, told, kv_bars, bars, told_bars, tables, sizes, next_ptr,
                      packs_per_kv_head, stats_of_pack, PACK, TEAMS, STAGES)),
    ], [4, 1], [240, 24])
