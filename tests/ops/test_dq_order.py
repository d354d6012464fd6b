"""Model checking of the deterministic dQ order of `sm90.bwd_fused`: random interleavings of work tiles never
deadlock and always add in the same order."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.core.plugin import Registry
from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.ops.band.plan import make_schedules
from longca.ops.band.tables import backward_rule
from longca.ops.band.tables.backward_rule import (
    APART,
    FILLED,
    TWO_KERNELS,
    AddOrder,
    is_staircase,
    keys_of_last_query,
    orders_of_parts,
    preferred_dq_order,
)
from longca.ops.band.tables.dq_order import changes_by_matrix, changes_by_sets
from longca.ops.band.tables.heads import heads_at_once, heads_per_item_of
from longca.ops.band.tables.schedule import (
    FULL_START,
    PARTIAL_END,
    PARTIAL_START,
    ROW_START,
    TileSchedule,
    TileSpec,
)
from tests.helpers.kernels.masks_for_tests import NOTHING_VISIBLE, band_masks
from tests.helpers.masks.strategies import quick

STEP = 8
DONE = -(1 << 30)


def columns_of(schedule: TileSchedule, tile: np.ndarray) -> list[int]:
    """The columns of its steps, in the order in which it makes them from the last one on."""
    ranges = schedule.block_ranges.numpy()
    columns = [
        column + place * STEP
        for column, count in ranges[tile[FULL_START] : tile[PARTIAL_START]]
        for place in range(count)
    ]
    return sorted([*columns, *ranges[tile[PARTIAL_START] : tile[PARTIAL_END], 0].tolist()], reverse=True)


def work(
    schedule: TileSchedule, order: AddOrder, number: int, progress: list[int], added: list[list[int]]
) -> Iterator[None]:
    """A tile, up to each point at which another may go on: stops for good where it waits for one that never
    comes."""
    waits = schedule.waits.numpy()
    place, behind = schedule.wait_ranges.numpy()[0, number].tolist()
    columns = columns_of(schedule, schedule.work_tiles.numpy()[0, number])
    for begin in columns if order is AddOrder.FROM_LAST else reversed(columns):
        column = begin if order is AddOrder.FROM_LAST else -begin - STEP
        progress[number] = column + STEP
        yield
        more = place < behind
        while more:
            bottom, other = waits[place].tolist()
            while other >= 0 and progress[other] > max(column, bottom):
                yield
            more = bottom > column and place + 1 < behind
            place += more
        touched = added[begin : begin + STEP]
        assert not schedule.stores_first or {bool(before) for before in touched} == {other >= 0}, (
            "what waits for none is first everywhere"
        )
        for before in touched:
            before.append(number)
        yield
    progress[number] = DONE


def play(mask: Mask, order: AddOrder, num_programs: int, seed: int) -> None:
    """Additions to each column come in the order of the tiles."""
    (schedule,) = make_schedules(
        mask, [TileSpec(16, STEP, True, 1.0, in_order=order, stores_first=True)], torch.device("cpu")
    )
    total = schedule.work_tiles.shape[1]
    chance = random.Random(seed)
    progress = [(1 << 31) - 1] * total
    added = [[] for _ in range(mask.seqlen_q + STEP)]
    waiting = iter(range(total))
    running = []
    for _ in range(
        200
        * (sum(len(columns_of(schedule, tile)) for tile in schedule.work_tiles.numpy()[0]) + total)
        * num_programs
    ):
        while len(running) < num_programs and (number := next(waiting, None)) is not None:
            running.append(work(schedule, order, number, progress, added))
        if not running:
            break
        first = chance.choice(running)
        if next(first, "over") == "over":
            running.remove(first)
    assert not running, "tiles wait for each other in a circle"
    for tiles in added:
        assert tiles == sorted(tiles)
    assert not schedule.stores_first or all(added[: mask.seqlen_q]), "no column keeps what memory was"
    if schedule.stores_first:
        starts = schedule.work_tiles[0, :, ROW_START].tolist()
        assert sorted(starts) == list(range(0, mask.seqlen_k, 16)), "and no row"


ORDERS = pytest.mark.parametrize("order", [AddOrder.FROM_LAST, AddOrder.FROM_FIRST])


@ORDERS
@pytest.mark.parametrize(
    "name",
    [
        "full",
        "causal",
        "causal_document",
        "full_document",
        "sliding_window",
        "global_sliding_window",
        "shared_question",
        "prefix_lm_document",
        "causal_blockwise",
    ],
)
def test_patterns(name: str, order: AddOrder) -> None:
    params = {"window": 40} if "window" in name else {}
    params |= {"num_global": 10} if name == "global_sliding_window" else {}
    play(build_mask(name, seqlen=203, **params), order, num_programs=5, seed=1)


@ORDERS
@quick
@given(band_masks(max_groups=1), st.integers(1, 4), st.integers(0, 9))
def test_random_masks(order: AddOrder, mask: Mask, num_programs: int, seed: int) -> None:
    if mask.seqlen_k:
        play(mask, order, num_programs, seed)


@ORDERS
@pytest.mark.parametrize(
    ("mask", "stores"),
    [
        (build_mask("full", seqlen=203), True),
        (build_mask("causal", seqlen=203), True),
        (build_mask("causal_document", seqlen=203, documents=[103, 100]), True),
        (build_mask("sliding_window", seqlen=203, window=40), True),
        (build_mask("sliding_window", seqlen=203, window=41), False),
        (build_mask("full_document", seqlen=203, documents=[103, 100]), False),
        (Mask(64, 64, (np.array([[0, 48, 0, 64, -INF, INF]]),)), False),
        (Mask(0, 64, (np.empty((0, 6), dtype=np.int64),)), True),
    ],
)
def test_first_addends_are_stored_where_nothing_is_left_over(
    mask: Mask, stores: bool, order: AddOrder
) -> None:
    """Not where blocks begin between those of others, or where a query sees no key."""
    (schedule,) = make_schedules(
        mask, [TileSpec(16, STEP, True, 1.0, in_order=order, stores_first=True)], torch.device("cpu")
    )
    assert schedule.stores_first is stores


LAST = AddOrder.FROM_LAST
FIRST = AddOrder.FROM_FIRST


@pytest.mark.parametrize(
    ("name", "seqlen", "order"),
    [
        ("full", 8192, FIRST),
        ("full", 8193, LAST),
        ("causal", 32768, FIRST),
        ("causal", 32769, LAST),
        ("prefix_lm", 8192, FIRST),
        ("causal_blockwise", 32768, LAST),
        ("full", 1024, None),
        ("causal_blockwise", 8192, None),
        ("sliding_window", 8192, FIRST),
        ("causal_sliding_window", 32768, None),
        ("full_document", 32768, FIRST),
        ("full_document", 8192, None),
        ("causal_document", 32768, FIRST),
        ("causal_document", 8192, None),
        ("causal_document", 131072, FIRST),
        ("shared_question", 32768, FIRST),
        ("global_sliding_window", 32768, FIRST),
        ("global_sliding_window", 8192, None),
        ("block_causal_document", 32768, FIRST),
        ("block_sparse_uniform", 8192, None),
    ],
)
def test_who_takes_turns(name: str, seqlen: int, order: AddOrder | None) -> None:
    assert preferred_dq_order(mask_of(name, seqlen), 8) is order


@pytest.mark.parametrize(
    ("name", "seqlen", "order", "of_few"),
    [
        ("full", 32768, LAST, LAST),
        ("causal", 32768, FIRST, FIRST),
        ("causal", 65536, LAST, LAST),
        ("prefix_lm", 32768, LAST, LAST),
        ("sliding_window", 32768, FIRST, FIRST),
        ("block_causal_document", 65536, FIRST, FIRST),
        ("causal_blockwise", 32768, LAST, None),
        ("full_document", 16384, FIRST, None),
        ("full_document", 65536, FIRST, None),
        ("causal_document", 32768, FIRST, None),
        ("shared_question", 65536, FIRST, None),
        ("global_sliding_window", 32768, FIRST, None),
    ],
)
def test_few_heads_take_turns_where_work_tiles_are_long_and_alike(
    name: str, seqlen: int, order: AddOrder, of_few: AddOrder | None
) -> None:
    mask = mask_of(name, seqlen)
    assert preferred_dq_order(mask, 4) is order and {
        preferred_dq_order(mask, few) for few in (1, 2, 3, 5, 6, 7)
    } == {of_few}


@pytest.mark.parametrize(
    ("name", "seqlen", "order", "heads", "rounds"),
    [
        ("full", 32768, LAST, 1, 1),
        ("full", 8192, LAST, 4, 1),
        ("full", 8192, FIRST, 2, 1),
        ("full", 7168, FIRST, 4, 1),
        ("prefix_lm", 8192, FIRST, 2, 2),
        ("prefix_lm", 32768, LAST, 4, 1),
        ("causal", 32768, LAST, 4, 1),
        ("causal", 8192, FIRST, 1, 1),
        ("causal_document", 32768, FIRST, 1, 1),
        ("full_document", 32768, FIRST, 2, 2),
        ("causal", 32768, AddOrder.ANY, 1, 1),
    ],
)
def test_heads_at_once(name: str, seqlen: int, order: AddOrder, heads: int, rounds: int) -> None:
    mask = mask_of(name, seqlen)
    assert heads_at_once(mask, order, 8, 8, 1, 128) == (heads, rounds)
    assert heads_at_once(mask, order, 2, 8, 1, 128) == (min(heads, 2), rounds)
    assert heads_at_once(mask, order, 8, 1, 1, 128) == (heads * rounds, 1), (
        "of which each has its own KV head"
    )


@pytest.mark.parametrize(
    ("queries", "keys", "heads"), [(4096, 8192, 4), (4096, 24576, 4), (8192, 32768, 2), (16384, 32768, 1)]
)
def test_the_fewer_queries_the_more_heads_start_together(queries: int, keys: int, heads: int) -> None:
    """Work tiles follow each other through the queries, so that few heads with few queries would leave
    programs idle."""
    assert heads_at_once(
        build_mask("full", seqlen=keys).crop((0, queries), (0, keys)), FIRST, 8, 8, 1, 128
    ) == (heads, 1)


def test_a_window_takes_four_heads_for_each_work_tile() -> None:
    """A narrow one, where there are enough items; then of one KV head."""
    window = mask_of("sliding_window", 8192)
    wide = build_mask("sliding_window", seqlen=8192, window=4096)
    assert [heads_per_item_of(window, FIRST, heads, 128) for heads in (64, 32, 16, 8)] == [4, 2, 1, 1]
    assert [heads_at_once(window, FIRST, 8, 8 // heads, heads, 128) for heads in (4, 2, 1)] == [
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    assert heads_per_item_of(wide, FIRST, 64, 128) == heads_per_item_of(window, LAST, 64, 128) == 1
    assert heads_per_item_of(mask_of("causal", 8192), FIRST, 64, 128) == 1
    nearly_causal = build_mask("causal_sliding_window", seqlen=8192, window=6000)
    assert heads_at_once(nearly_causal, FIRST, 8, 8, 1, 128) == (1, 1)


@pytest.mark.parametrize(
    ("name", "stairs"),
    [
        ("causal", True),
        ("causal_document", True),
        ("shared_question", True),
        ("sliding_window", True),
        ("full", False),
        ("full_document", False),
        ("block_causal_document", False),
        ("global_sliding_window", False),
        ("prefix_lm", False),
        ("causal_blockwise", False),
        ("block_sparse_uniform", False),
    ],
)
def test_staircases(name: str, stairs: bool) -> None:
    """`global_sliding_window` begins every work tile at row 0; under `causal_blockwise` work tiles of a
    document meet in its last rows."""
    assert is_staircase(mask_of(name, 8192)) is stairs


@quick
@given(band_masks(max_groups=1))
def test_a_staircase_has_work_tiles_that_begin_apart_and_see_all_between(mask: Mask) -> None:
    """Judged here pair by pair, under work tiles of few keys."""
    tile = 8
    dense = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    columns = [dense[:, start : start + tile] for start in range(0, mask.seqlen_k, tile)]
    rows = [np.flatnonzero(column.any(axis=1)) for column in columns]
    spans = [(int(row[0]), int(row[-1]) + 1) for row in rows if len(row)]
    apart = len({start // tile for start, _ in spans}) >= APART * len(spans) > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward_rule, "TILE", tile)
        assert is_staircase(mask) is (
            apart and bool(dense.sum() >= FILLED * tile * sum(end - start for start, end in spans))
        )


def rows_that_see(*parts: tuple[int, int]) -> np.ndarray:
    """Bands of so many rows, one part after the other, that see so many of the keys, the first ones."""
    ends = np.cumsum([rows for rows, _ in parts])
    return np.array(
        [[end - rows, end, 0, keys, -INF, INF] for end, (rows, keys) in zip(ends, parts, strict=True)]
    )


@pytest.mark.parametrize(
    ("num_rows", "num_keys", "of_the_last", "order"),
    [
        (3000, 3500, 3500, FIRST),
        (2999, 3500, 3500, None),
        (3000, 3499, 3499, None),
        (9000, 9000, 8100, LAST),
        (9000, 9000, 8099, FIRST),
    ],
)
def test_pieces_must_be_long_and_many_and_begin_alike(
    num_rows: int, num_keys: int, of_the_last: int, order: AddOrder | None
) -> None:
    bands = rows_that_see((num_rows - 1, num_keys), (1, of_the_last))
    assert preferred_dq_order(Mask(num_rows, num_keys, (bands,)), 2) is order
    assert preferred_dq_order(Mask(num_rows, num_keys, (bands, bands)), 2) is order
    assert (
        preferred_dq_order(Mask(num_rows * 2, num_keys * 2, (bands, np.empty((0, 6), dtype=np.int64))), 2)
        is None
    )


@pytest.mark.parametrize(("num_rows", "of_few"), [(6667, FIRST), (6666, None)])
def test_few_heads_want_work_tiles_of_two_fifths_of_the_longest(
    num_rows: int, of_few: AddOrder | None
) -> None:
    """A tenth of the keys is seen by all 20000 queries. Of a part with less queries work tiles have no more
    than these."""
    mask = Mask(20000, 20000, (rows_that_see((num_rows, 20000), (20000 - num_rows, 2000)),))
    assert [preferred_dq_order(mask, heads) for heads in (1, 3, 7, 8)] == [of_few, of_few, of_few, FIRST]
    parts = [
        mask,
        mask.crop((0, 12000), (0, 20000)),
        mask.crop((0, 20000), (0, 2000)),
        mask.crop((12000, 20000), (0, 20000)),
    ]
    sizes = (np.array([getattr(part, name) for part in parts]) for name in ("area", "seqlen_q", "seqlen_k"))
    assert orders_of_parts(mask, *sizes, 3).tolist() == [
        of_few or TWO_KERNELS,
        FIRST,
        TWO_KERNELS,
        TWO_KERNELS,
    ]
    assert preferred_dq_order(parts[1], 3) is FIRST


def test_groups_of_heads_count_by_their_mean() -> None:
    few_keys = rows_that_see((3000, 2500))
    assert preferred_dq_order(Mask(3000, 2500, (few_keys, few_keys)), 8) is None
    few_queries = rows_that_see((16383, 4100), (1, 16384))
    assert [
        preferred_dq_order(Mask(16384, 16384, (few_queries, few_queries)), heads) for heads in (2, 4)
    ] == [None, LAST]
    half_blind = rows_that_see((7999, 8000), (1, 4000))
    assert preferred_dq_order(Mask(8000, 8000, (rows_that_see((8000, 8000)), half_blind)), 8) is FIRST


def test_the_last_query_may_be_followed_by_some_that_see_nothing() -> None:
    seen = rows_that_see((4800, 4200))
    assert (
        preferred_dq_order(Mask(4800, 4200, (seen,)), 8)
        is preferred_dq_order(Mask(4900, 4200, (seen,)), 8)
        is FIRST
    )


@quick
@given(band_masks(max_groups=1))
def test_what_the_last_query_sees_is_counted(mask: Mask) -> None:
    dense = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    seeing = np.flatnonzero(dense.any(axis=1))
    assert keys_of_last_query(mask.groups[0]) == (dense[seeing[-1]].sum() if len(seeing) else 0)


def test_blocks_and_nothing_visible_take_no_turns() -> None:
    bounds = np.arange(0, 8193, 128)[None]
    assert not preferred_dq_order(
        Mask(8192, 8192, grid=BlockGrid(np.ones((1, 64, 64), dtype=bool), bounds, bounds)), 8
    )
    nothing = Mask(0, 0, (np.empty((0, 6), dtype=np.int64),))
    assert not any(
        preferred_dq_order(mask, heads) for mask in (*NOTHING_VISIBLE, nothing) for heads in (1, 8)
    )


def mask_of(name: str, seqlen: int) -> Mask:
    corpus = {"corpus": "prolong64k"} if Registry("mask").load(name).uses_documents else {}
    return build_mask(name, seqlen=seqlen, **corpus)


@quick
@given(st.integers(1, 130), st.integers(2, 40), st.randoms())
def test_sets_of_tiles_find_what_the_matrix_finds(
    num_tiles: int, num_positions: int, chance: random.Random
) -> None:
    """Bit for bit: stretches that are apart in each tile, several in one, none in some, in more tiles than a
    word has bits."""
    stretches = []
    for tile in range(num_tiles):
        ends = sorted(chance.sample(range(num_positions), chance.randint(0, min(6, num_positions)) // 2 * 2))
        stretches += [(tile, *pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
    owner, *cells = torch.tensor(stretches or [(0, 0, 1)]).t()
    actual, right = (
        changes(owner, torch.stack(cells), num_tiles, num_positions)
        for changes in (changes_by_sets, changes_by_matrix)
    )
    assert all(
        torch.equal(first, other) and first.dtype == other.dtype
        for first, other in zip(actual, right, strict=True)
    )
