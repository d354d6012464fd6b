"""Model checking of the deterministic dQ order of `sm90.bwd_fused`: random interleavings of work tiles never
deadlock and always add in the same order."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.ops.band.plan import make_schedules
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.dq_order import changes_by_matrix, changes_by_sets
from longca.ops.band.tables.schedule import (
    FULL_START,
    PARTIAL_END,
    PARTIAL_START,
    ROW_START,
    TileSchedule,
    TileSpec,
)
from tests.helpers.kernels.masks_for_tests import band_masks
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
