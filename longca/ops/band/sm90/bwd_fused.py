"""Band attention on Hopper: dQ, dK and dV in one pass, in Gluon, over lines of keys.

As `sm90.bwd_dkdv`, but a piece is worked on once for each query head, so that all programs are at the same few heads, whose Q, dO
and dQ then stay in the level-2 cache. All gradients are added to float32 sums by the tensor memory accelerator (`sm90.dq_add`).

dQ of a step is made in the next one, beside its exponentials: the first dQ of a piece is of no use and is not added; the last one
comes after the loop. How a step's gradients of scores, dS, reach the other team: each writes its keys' dS of step n to room n % 2, and
arrives once a step at one barrier. No team arrives for step n + 1 before it has seen both arrive for n, so that the parity of n tells steps
apart. Before a team arrives for step n, its dQ of step n − 2 is done, which was the last to read room n % 2: so a team that has seen
step n − 1 complete may write to that room.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from longca.ops.band.sm90.bwd_dkdv import barriers, note
from longca.ops.band.sm90.bwd_load import FULL, feed_tiles
from longca.ops.band.sm90.dq_add import add_tiles, put
from longca.ops.band.sm90.tile_scheduler import ROWS, TEAMS, TOLD, hear


@gluon.jit
def _start_product(rows, columns):
    """rows · columnsᵀ, under way: (64, D) each."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    return warpgroup_mma(rows, columns.permute((1, 0)), gl.zeros([ROWS, ROWS], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _start_dq(ds_smem, halves, count, team: gl.constexpr):
    """Half of the columns of step `count`'s dQ, under way: two matmuls, over the keys of each team."""
    WIDTH: gl.constexpr = halves.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    turns = (count & 1) * TEAMS
    dq = warpgroup_mma(ds_smem.index(turns).permute((1, 0)), halves.index(team), gl.zeros([ROWS, WIDTH], gl.float32, layout), use_acc=False,
                       is_async=True)
    return warpgroup_mma(ds_smem.index(turns + 1).permute((1, 0)), halves.index(2 + team), dq, is_async=True)


@gluon.jit
def _weights(scores, base, seen, shape, num_rows, rows, scale_log2):
    """exp2 of keys × queries, 0 where hidden."""
    weights = gl.exp2(scores * scale_log2 - base[None, :])
    if (shape != FULL) | (num_rows < TEAMS * ROWS):
        columns = gl.arange(0, ROWS, layout=gl.SliceLayout(0, scores.type.layout))
        seen = gl.where(rows < num_rows, seen, 0)
        first, behind = seen & 0xFFFF, seen >> 16
        shown = (columns[None, :] - first[:, None]).to(gl.uint32) < (behind - first)[:, None].to(gl.uint32)
        weights = gl.where(shown, weights, 0.0)
    return weights


@gluon.jit
def _hand_over(part, tile, count, bars, team: gl.constexpr):
    """A part of a gradient, the team's `count`-th, to the adding warp."""
    mbarrier.wait(bars[1].index(team), (count & 1) ^ 1)
    put(part, tile)
    mbarrier.arrive(bars[0].index(team), count=1)


@gluon.jit
def _hand_over_halves(x, tile, count, bars, team: gl.constexpr):
    left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()
    _hand_over(left, tile, count, bars, team)
    _hand_over(right, tile, count + 1, bars, team)


@gluon.jit
def _gradients(common, team: gl.constexpr):
    """A team's keys of every piece."""
    k_smem, v_smem, ds_smem, dq_smem, smem, told, all_bars, shapes_ptr, scale_log2 = common
    kv_bars, bars, dq_bars, told_bars = all_bars
    q_smem, dout_smem, base_smem, delta_smem, notes = smem
    q_full, dout_full, empty, ds_full = bars
    STAGES: gl.constexpr = q_smem.shape[0]
    D: gl.constexpr = q_smem.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    halves = k_smem._reinterpret(k_smem.dtype, [TEAMS * 2, ROWS, D // 2], gl.NVMMASharedLayout(128, 16, 2))
    k_tile, v_tile, dq_tile = k_smem.index(team).reshape([ROWS, D]), v_smem.index(team).reshape([ROWS, D]), dq_smem.index(team)
    rows = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    count, turn = 0, 0
    row0, row1, middle, last, num_full, _, pack = hear(0, told, told_bars[0], told_bars[1])
    while pack >= 0:
        dk, dv = gl.zeros([ROWS, D], gl.float32, sum_layout), gl.zeros([ROWS, D], gl.float32, sum_layout)
        mbarrier.wait(kv_bars[0], turn & 1)
        for number in range(gl.maximum(last - middle + num_full, 1)):
            place, phase = count % STAGES, (count // STAGES) & 1
            q, dout = q_smem.index(place).reshape([ROWS, D]), dout_smem.index(place).reshape([ROWS, D])
            mbarrier.wait(q_full.index(place), phase)
            scores = _start_product(k_tile, q)
            shape = note(notes, place, 1)
            seen = gl.load(shapes_ptr + shape * (TEAMS * ROWS) + rows, mask=shape >= 0, other=gl.where(shape == FULL, ROWS << 16, 0))
            mbarrier.wait(ds_full, (count - 1) & 1)
            dq = _start_dq(ds_smem, halves, count - 1, team)
            scores = warpgroup_mma_wait(2, deps=[scores])
            weights = _weights(scores, base_smem.index(place).load(across), seen, shape, row1 - row0, rows, scale_log2)
            weights_left = gl.convert_layout(weights.to(q.dtype), left)
            dq = warpgroup_mma_wait(0, deps=[dq])
            if number > 0:
                _hand_over(dq, dq_tile, count - 1, dq_bars, team)
            mbarrier.wait(dout_full.index(place), phase)
            dweights = _start_product(v_tile, dout)
            dv = warpgroup_mma(weights_left, dout, dv, is_async=True)
            dweights = warpgroup_mma_wait(1, deps=[dweights])
            dscores = (weights * (dweights - delta_smem.index(place).load(across)[None, :])).to(q.dtype)
            ds_smem.index(count % 2 * TEAMS + team).store(dscores)
            fence_async_shared()
            mbarrier.arrive(ds_full, count=1)
            dscores_left = gl.convert_layout(dscores, left)
            dk = warpgroup_mma(dscores_left, q, dk, is_async=True)
            dk, dv, weights_left, dscores_left = warpgroup_mma_wait(0, deps=[dk, dv, weights_left, dscores_left])
            mbarrier.arrive(empty.index(place), count=1)
            count += 1
        mbarrier.wait(ds_full, (count - 1) & 1)
        dq = warpgroup_mma_wait(0, deps=[_start_dq(ds_smem, halves, count - 1, team)])
        _hand_over(dq, dq_tile, count - 1, dq_bars, team)
        mbarrier.arrive(kv_bars[1], count=1)
        _hand_over_halves(dv, dq_tile, count, dq_bars, team)
        _hand_over_halves(dk, dq_tile, count, dq_bars, team)
        turn += 1
        row0, row1, middle, last, num_full, _, pack = hear(turn, told, told_bars[0], told_bars[1])


@gluon.jit(do_not_specialize=["num_pieces", "num_items", "kv_heads_at_once", "kv_heads_per_group", "heads_per_kv_head", "stats_of_head"])
def fused_kernel(q_desc, dout_desc, base_desc, delta_desc, k_desc, v_desc, dq_desc, dk_desc, dv_desc, next_ptr, pieces_ptr, runs_ptr,
                 shapes_ptr, waits_ptr, waits_of_ptr, progress_ptr, num_pieces, num_items, kv_heads_at_once, kv_heads_per_group,
                 heads_per_kv_head, stats_of_head, scale_log2, IN_ORDER: gl.constexpr, STAGES: gl.constexpr):
    """
    Args: as of `sm90.bwd_dkdv.backward_kernel` with one head in a step, and
        dq_desc, dk_desc, dv_desc: float32 (T, H, D) and (S, G, D), zero, in boxes of (64, 1, D / 2): to which is added, without the scale
            and with columns in the order of `put`.
        IN_ORDER: of `add_tiles`, for which there are waits_ptr, waits_of_ptr (of `Lines`) and progress_ptr: int32 (H, pieces), more than
            any row.
    """
    D: gl.constexpr = q_desc.block_type.shape[2]
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [TEAMS, ROWS, 1, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [TEAMS, ROWS, 1, D], v_desc.layout)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS, 1, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, ROWS, 1, D], dout_desc.layout)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [2 * TEAMS, ROWS, ROWS], gl.NVMMASharedLayout(128, 16, 2))
    dq_smem = gl.allocate_shared_memory(dq_desc.dtype, [TEAMS, ROWS, 1, D // 2], dq_desc.layout)
    base_smem = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], base_desc.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], delta_desc.layout)
    notes = gl.allocate_shared_memory(gl.int32, [STAGES, 4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    told = gl.allocate_shared_memory(gl.int32, [2, TOLD], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    kv_bars = barriers(1, 1).index(0), barriers(1, TEAMS).index(0)
    bars = barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, TEAMS), barriers(1, TEAMS).index(0)
    told_bars, dq_bars = (barriers(2, 1), barriers(2, TEAMS + 1)), (barriers(TEAMS, 1), barriers(TEAMS, 1))
    fence_async_shared()
    smem, descs = (q_smem, dout_smem, base_smem, delta_smem, notes), (q_desc, dout_desc, base_desc, delta_desc)
    tables, turns = (pieces_ptr, runs_ptr, shapes_ptr), (runs_ptr, waits_ptr, waits_of_ptr, progress_ptr)
    sizes = num_pieces, num_items, kv_heads_at_once, heads_per_kv_head, kv_heads_per_group
    common = k_smem, v_smem, ds_smem, dq_smem, smem, told, (kv_bars, bars, dq_bars, told_bars), shapes_ptr, scale_log2
    gl.warp_specialize([
        (_gradients, (common, 0)),
        (_gradients, (common, 1)),
        (feed_tiles, (k_desc, v_desc, descs, k_smem, v_smem, smem, told, kv_bars, bars, told_bars, tables, sizes, next_ptr,
                      heads_per_kv_head, stats_of_head, 1, TEAMS, STAGES, IN_ORDER)),
        (add_tiles, ((dq_desc, dk_desc, dv_desc), dq_smem, dq_bars, told, told_bars, turns, sizes, TEAMS, IN_ORDER)),
    ], [4, 1, 1], [240, 24, 24])
