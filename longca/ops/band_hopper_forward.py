"""Band attention on Hopper: the forward kernel, in Gluon, over the tables of `band_lines`.

One persistent program a multiprocessor, three roles. A warp loads tiles of Q, K and V through the tensor memory accelerator into
rings of shared memory; two warp groups each hold 64 rows of a line and share every tile of K and V. Within a warp group the scores
of the next step are under way while the softmax of this one runs, and the two take turns at the tensor cores, so that the softmax
of one hides behind the products of the other. A step that is the last to need a tile says so, and the tile is loaded anew.

Shapes: T queries, S keys, H query heads, G KV heads, D head dim; q and out are (T, H, D), k and v
(S, G, D), LSE is (T, H). A pack is the PACK query heads of one KV head that share a tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from longca.ops.band_hopper_load import load_tiles
from longca.ops.band_hopper_pieces import ROWS, TEAMS, next_item, piece_of
from longca.ops.band_hopper_softmax import hide, shape_of, softmax
from longca.ops.band_hopper_store import store

STORE_NEGATIVE = gl.constexpr("""{ .reg .pred p; .reg .b32 a; mov.b32 a, 0; setp.lt.f32 p, $1, 0f00000000;
    @p st.volatile.shared.f32 [a], $1; mov.b32 $0, $1; }""")


@gluon.jit
def _pin(sums):
    """Nothing, but a place that the assembler cannot move the sums' computation past. They are never negative."""
    gl.inline_asm_elementwise(STORE_NEGATIVE, "=f,f", [sums], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def _start_scores(q, k_smem, k_full, turns, count, team: gl.constexpr):
    """Q·Kᵀ of a step, under way, begun when it is this team's turn."""
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    slot = count % STAGES
    mbarrier.wait(k_full.index(slot), (count // STAGES) & 1)
    mbarrier.wait(turns.index(team), (count & 1) ^ (1 - team))
    k = k_smem.index(slot).reshape([TILE, q.shape[1]])
    return warpgroup_mma(q, k.permute((1, 0)), gl.zeros([ROWS, TILE], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _start_output(weights, acc, v_smem, v_full, count):
    """acc + P·V of a step, under way."""
    STAGES: gl.constexpr = v_smem.shape[0]
    slot = count % STAGES
    mbarrier.wait(v_full.index(slot), (count // STAGES) & 1)
    return warpgroup_mma(weights, v_smem.index(slot).reshape([v_smem.shape[1], v_smem.shape[3]]), acc, is_async=True)


@gluon.jit
def _step(shape, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team: gl.constexpr, MASKED: gl.constexpr):
    """Scores of step `count` beside the output of step `count − 1`, then the softmax of step `count`."""
    _, _, k_full, k_empty, v_full, v_empty, turns = bars
    STAGES: gl.constexpr = k_smem.shape[0]
    scores = _start_scores(q, k_smem, k_full, turns, count, team)
    acc = _start_output(weights, acc, v_smem, v_full, count - 1)
    mbarrier.arrive(turns.index(1 - team), count=1)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k_empty.index(count % STAGES), count=1)
    if MASKED:
        scores = hide(scores, shape)
    next_weights, rescale, row_max, row_sum = softmax(scores, row_max, row_sum, scale_log2, MASKED)
    next_weights = gl.convert_layout(next_weights.to(k_smem.dtype), weights.type.layout)
    _pin(row_sum)
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
    acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, acc.type.layout))[:, None]
    return next_weights, acc, row_max, row_sum


@gluon.jit
def _attend(smem, bars, tables, outputs, strides, sizes, scale_log2, team: gl.constexpr, PACK: gl.constexpr, CARRY: gl.constexpr):
    """A team's rows of every piece."""
    q_smem, k_smem, v_smem = smem
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = bars
    pieces_ptr, runs_ptr, shapes_ptr = tables
    num_items = sizes[1]
    STAGES: gl.constexpr = k_smem.shape[0]
    TILE: gl.constexpr = k_smem.shape[1]
    D: gl.constexpr = k_smem.shape[3]
    SHAPE_ROWS: gl.constexpr = TEAMS * ROWS // PACK
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    rows = team * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout))
    shape_row = shapes_ptr + rows // PACK
    q = q_smem.index(team).reshape([ROWS, D])
    count, turn = 0, 0
    item = next_item(0, num_items)
    while item < num_items:
        entry, pack = piece_of(item, pieces_ptr, sizes)
        middle, last, num_full = gl.load(entry + 3), gl.load(entry + 4), gl.load(entry + 5)
        # the first step takes any kind of tile: a partial one, else a full one, else one of which nothing is seen
        num_steps = last - middle + num_full
        shape = shape_of(middle, last, gl.where(num_full > 0, TILE << 16, 0), runs_ptr, shape_row, SHAPE_ROWS)
        mbarrier.wait(q_full.index(team), turn & 1)
        scores = _start_scores(q, k_smem, k_full, turns, count, team)
        mbarrier.arrive(turns.index(1 - team), count=1)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(count % STAGES), count=1)
        row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, score_layout))
        row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, score_layout))
        weights, _, row_max, row_sum = softmax(hide(scores, shape), row_max, row_sum, scale_log2, True)
        weights = gl.convert_layout(weights.to(k_smem.dtype), weight_layout)
        acc = gl.zeros([ROWS, D], gl.float32, out_layout)
        count += 1
        shape = shape_of(middle + 1, last, 0, runs_ptr, shape_row, SHAPE_ROWS)
        for run in range(middle + 1, last):
            next_shape = shape_of(run + 1, last, 0, runs_ptr, shape_row, SHAPE_ROWS)
            weights, acc, row_max, row_sum = _step(shape, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team,
                                                   True)
            shape = next_shape
            count += 1
        for _ in range(gl.maximum(last - middle, 1), num_steps):
            weights, acc, row_max, row_sum = _step(shape, count, q, k_smem, v_smem, bars, weights, acc, row_max, row_sum, scale_log2, team,
                                                   False)
            count += 1
        mbarrier.arrive(q_empty.index(team), count=1)
        acc = _start_output(weights, acc, v_smem, v_full, count - 1)
        acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
        mbarrier.arrive(v_empty.index((count - 1) % STAGES), count=1)
        store(acc, row_max, row_sum, entry, pack, rows, outputs, strides, scale_log2, PACK, CARRY)
        turn += 1
        item = next_item(turn, num_items)


@gluon.jit(do_not_specialize=["lse_token", "num_slots", "num_pieces", "num_items", "packs_at_once", "packs_per_kv_head", "packs_per_group"])
def forward_kernel(q_desc, k_desc, v_desc, pieces_ptr, runs_ptr, shapes_ptr, out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr,
                   slot_lse_ptr, out_token, out_head, lse_token, lse_head, num_slots, num_pieces, num_items, packs_at_once,
                   packs_per_kv_head, packs_per_group, scale_log2, PACK: gl.constexpr, CARRY: gl.constexpr, STAGES: gl.constexpr):
    """
    Args:
        q_desc: (T, H, D) in boxes of (64 / PACK, PACK, D).
        k_desc, v_desc: (S, G, D) in boxes of (step, 1, D).
        pieces_ptr, runs_ptr, shapes_ptr: of `Lines` with tile = 128 / PACK.
        slot_out_ptr, slot_lse_ptr: float32 (packs, num_slots, 128, D) and (packs, num_slots, 128), for split lines.
        num_items: packs · num_pieces.
        PACK: query heads of a KV head that share a tile.
    """
    TILE: gl.constexpr = k_desc.block_type.shape[0]
    D: gl.constexpr = k_desc.block_type.shape[2]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [TEAMS, ROWS // PACK, PACK, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, 1, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, 1, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for team in gl.static_range(TEAMS):
        mbarrier.init(q_full.index(team), count=1)
        mbarrier.init(q_empty.index(team), count=1)
        mbarrier.init(turns.index(team), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=TEAMS)
        mbarrier.init(v_empty.index(slot), count=TEAMS)
    fence_async_shared()
    smem, bars = (q_smem, k_smem, v_smem), (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)
    tables, outputs = (pieces_ptr, runs_ptr, shapes_ptr), (out_ptr, lse_ptr, in_out_ptr, in_lse_ptr, slot_out_ptr, slot_lse_ptr)
    strides = out_token, out_head, lse_token, lse_head, num_slots
    sizes = num_pieces, num_items, packs_at_once, packs_per_kv_head, packs_per_group
    gl.warp_specialize([
        (_attend, (smem, bars, tables, outputs, strides, sizes, scale_log2, 0, PACK, CARRY)),
        (_attend, (smem, bars, tables, outputs, strides, sizes, scale_log2, 1, PACK, CARRY)),
        (load_tiles, ((q_desc, k_desc, v_desc), smem, bars, tables, sizes, PACK, STAGES)),
    ], [4, 1], [240, 24])
