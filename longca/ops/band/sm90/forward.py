"""Band attention on Hopper: the forward kernel, in Gluon, over the tables of `tables.schedule`.

One or two persistent programs a multiprocessor, whose warps have roles. One warp takes pieces and loads tiles of Q, K and V through
the tensor memory accelerator into rings of shared memory. One or two warp groups (teams) hold 64 rows of a line each and share the
tiles of K and V. Within a team the scores of the next step are under way while the softmax of this one runs, and two teams take
turns at the tensor cores, so that the softmax of one hides behind the products of the other.

Shapes: T queries, S keys, H query heads, G KV heads, D head dim; q and out are (T, H, D), k and v (S, G, D), LSE is (T, H). A pack
is the PACK query heads of one KV head that share a tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from longca.ops.band.sm90.load import load_tiles, parts_before
from longca.ops.band.sm90.softmax import hide, shapes_of, softmax
from longca.ops.band.sm90.store import store
from longca.ops.band.sm90.tile_scheduler import ROWS, TOLD, hear

STORE_NEGATIVE = gl.constexpr("""{ .reg .pred p; .reg .b32 a; mov.b32 a, 0; setp.lt.f32 p, $1, 0f00000000;
    @p st.volatile.shared.f32 [a], $1; mov.b32 $0, $1; }""")


@gluon.jit
def _pin(sums):
    """Nothing, but a place that the assembler cannot move the sums' computation past. They are never negative."""
    gl.inline_asm_elementwise(STORE_NEGATIVE, "=f,f", [sums], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def _start_scores(q, k_smem, k_full, turns, count, team: gl.constexpr, OVERLAP: gl.constexpr):
    """Q·Kᵀ of a tile, under way, begun when it is this team's turn."""
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    slot = count % STAGES
    mbarrier.wait(k_full.index(slot), (count // STAGES) & 1)
    if OVERLAP and turns.shape[0] == 2:
        mbarrier.wait(turns.index(team), (count & 1) ^ (1 - team))
    return warpgroup_mma(q, k_smem.index(slot).permute((1, 0)), gl.zeros([ROWS, TILE], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _start_output(weights, acc, v_smem, v_full, count):
    """acc + P·V of a tile, under way."""
    STAGES: gl.constexpr = v_smem.shape[0]
    slot = count % STAGES
    mbarrier.wait(v_full.index(slot), (count // STAGES) & 1)
    return warpgroup_mma(weights, v_smem.index(slot), acc, is_async=True)


@gluon.jit
def _step(shapes, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team: gl.constexpr, MASKED: gl.constexpr,
          PARTS: gl.constexpr, OVERLAP: gl.constexpr):
    """Scores of tile `count` beside the output of tile `count − 1`, then the softmax of tile `count`."""
    k_full, k_empty, v_full, v_empty, turns = bars[2], bars[3], bars[4], bars[5], bars[6]
    STAGES: gl.constexpr = k_smem.shape[0]
    scores = _start_scores(q, k_smem, k_full, turns, count, team, OVERLAP)
    acc = _start_output(weights, acc, v_smem, v_full, count - 1)
    if OVERLAP and turns.shape[0] == 2:
        mbarrier.arrive(turns.index(1 - team), count=1)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k_empty.index(count % STAGES), count=1)
    if MASKED:
        scores = hide(scores, shapes, PARTS)
    next_weights, rescale, row_max, row_sum = softmax(scores, row_max, row_sum, scale_log2, MASKED)
    next_weights = gl.convert_layout(next_weights.to(k_smem.dtype), weights.type.layout)
    if OVERLAP:
        _pin(row_sum)
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
    acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, acc.type.layout))[:, None]
    return next_weights, acc, row_max, row_sum


@gluon.jit
def _attend(smem, bars, tables, outputs, strides, scale_log2, team: gl.constexpr, PACK: gl.constexpr, TEAMS: gl.constexpr,
            QUEUE: gl.constexpr, PARTS: gl.constexpr, CARRY: gl.constexpr, OVERLAP: gl.constexpr):
    """A team's rows of every piece."""
    q_smem, k_smem, v_smem, told = smem
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, told_full, told_empty = bars
    runs_ptr, shapes_ptr = tables[1], tables[2]
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    D: gl.constexpr = k_smem.shape[2]
    STEP: gl.constexpr = TILE // PARTS
    SHAPE_ROWS: gl.constexpr = TEAMS * ROWS // PACK
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    rows = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout))
    shape_row = shapes_ptr + rows // PACK
    count, turn = 0, 0  # tiles and pieces so far
    row0, row1, middle, last, num_full, share, pack = hear(0, told, told_full, told_empty)
    while pack >= 0:
        q_place = turn % QUEUE * TEAMS + team
        q = q_smem.index(q_place).reshape([ROWS, D])
        padding = parts_before(last - middle + num_full, PARTS)
        num_tiles, num_masked = (padding + last - middle + num_full) // PARTS, (padding + last - middle + PARTS - 1) // PARTS
        mbarrier.wait(q_full.index(q_place), turn // QUEUE & 1)
        scores = _start_scores(q, k_smem, k_full, turns, count, team, OVERLAP)
        if OVERLAP and TEAMS == 2:
            mbarrier.arrive(turns.index(1 - team), count=1)
        shapes = shapes_of(0, padding, middle, last, runs_ptr, shape_row, PARTS, STEP, SHAPE_ROWS)
        next_shapes = shapes_of(1, padding, middle, last, runs_ptr, shape_row, PARTS, STEP, SHAPE_ROWS)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(count % STAGES), count=1)
        row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, score_layout))
        row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, score_layout))
        weights, _, row_max, row_sum = softmax(hide(scores, shapes, PARTS), row_max, row_sum, scale_log2, True)
        weights = gl.convert_layout(weights.to(k_smem.dtype), weight_layout)
        acc = gl.zeros([ROWS, D], gl.float32, out_layout)
        count += 1
        for tile in range(1, num_masked):
            shapes = next_shapes
            next_shapes = shapes_of(tile + 1, padding, middle, last, runs_ptr, shape_row, PARTS, STEP, SHAPE_ROWS)
            weights, acc, row_max, row_sum = _step(shapes, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team,
                                                   True, PARTS, OVERLAP)
            count += 1
        for _ in range(gl.maximum(num_masked, 1), num_tiles):
            weights, acc, row_max, row_sum = _step(shapes, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team,
                                                   False, PARTS, OVERLAP)
            count += 1
        acc = _start_output(weights, acc, v_smem, v_full, count - 1)
        acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
        mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
        store(acc, row_max, row_sum, row0, row1, share, pack, rows, q, outputs, strides, scale_log2, PACK, TEAMS * ROWS, CARRY)
        fence_async_shared()
        mbarrier.arrive(q_empty.index(q_place), count=1)
        turn += 1
        row0, row1, middle, last, num_full, share, pack = hear(turn, told, told_full, told_empty)


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(COUNT):
        mbarrier.init(bars.index(place), count=ARRIVALS)
    return bars


@gluon.jit(do_not_specialize=["lse_token", "num_slots", "num_pieces", "num_items", "packs_at_once", "packs_per_kv_head", "packs_per_group"])
def forward_kernel(q_desc, k_desc, v_desc, next_ptr, pieces_ptr, runs_ptr, shapes_ptr, out_ptr, lse_ptr, in_out_ptr, in_lse_ptr,
                   slot_out_ptr, slot_lse_ptr, out_token, out_head, lse_token, lse_head, num_slots, num_pieces, num_items, packs_at_once,
                   packs_per_kv_head, packs_per_group, scale_log2, D: gl.constexpr, PACK: gl.constexpr, TEAMS: gl.constexpr,
                   PARTS: gl.constexpr, CARRY: gl.constexpr, OVERLAP: gl.constexpr, STAGES: gl.constexpr):
    """
    Args:
        q_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        k_desc, v_desc: (S, G, D) in boxes of (step, 1, 64).
        next_ptr: int32 (1,), zero.
        pieces_ptr, runs_ptr, shapes_ptr: of `Lines` with tile = 64 · TEAMS / PACK.
        slot_out_ptr, slot_lse_ptr: float32 (packs, num_slots, 64 · TEAMS, D) and (packs, num_slots, 64 · TEAMS), for split lines.
        num_items: packs · num_pieces.
        PACK: query heads of a KV head that share a tile.
        TEAMS: warp groups that compute.
        PARTS: steps that make a tile.
        OVERLAP: the softmax stays beside the product before it, and teams take turns; else both are left to chance.
    """
    TILE: gl.constexpr = k_desc.block_type.shape[0] * PARTS
    QUEUE: gl.constexpr = TEAMS  # tiles of Q
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [QUEUE * TEAMS, ROWS // PACK, PACK, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, D], tile_layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, D], tile_layout)
    told = gl.allocate_shared_memory(gl.int32, [2, TOLD], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full, q_empty = _barriers(QUEUE * TEAMS, 1), _barriers(QUEUE * TEAMS, 1)
    k_full, k_empty = _barriers(STAGES, 1), _barriers(STAGES, TEAMS)
    v_full, v_empty = _barriers(STAGES, 1), _barriers(STAGES, TEAMS)
    told_full, told_empty, turns = _barriers(2, 1), _barriers(2, TEAMS), _barriers(TEAMS, 1)
    fence_async_shared()
    smem, bars = (q_smem, k_smem, v_smem, told), (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, told_full, told_empty)
    tables, outputs = (pieces_ptr, runs_ptr, shapes_ptr), (out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr)
    strides = out_token, out_head, lse_token, lse_head, num_slots
    sizes = num_pieces, num_items, packs_at_once, packs_per_kv_head, packs_per_group
    descs = q_desc, k_desc, v_desc
    if TEAMS == 2:
        gl.warp_specialize([
            (_attend, (smem, bars, tables, outputs, strides, scale_log2, 0, PACK, TEAMS, QUEUE, PARTS, CARRY, OVERLAP)),
            (_attend, (smem, bars, tables, outputs, strides, scale_log2, 1, PACK, TEAMS, QUEUE, PARTS, CARRY, OVERLAP)),
            (load_tiles, (descs, smem, bars, tables, sizes, next_ptr, PACK, TEAMS, QUEUE, PARTS, STAGES)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_attend, (smem, bars, tables, outputs, strides, scale_log2, 0, PACK, TEAMS, QUEUE, PARTS, CARRY, OVERLAP)),
            (load_tiles, (descs, smem, bars, tables, sizes, next_ptr, PACK, TEAMS, QUEUE, PARTS, STAGES)),
        ], [1], [24])
