"""How pieces take turns, played by programs that go on in any order, by the tables and rules of `band_hopper_add`."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask, build_mask
from longca.ops.band_lines import FIRST, LAST, MIDDLE, Lines, Wanted
from longca.ops.band_plan import make_lines
from longca.ops.band_turns import way_of_turns
from tests.kernels.masks_for_tests import NOTHING_VISIBLE, band_masks
from tests.masks.strategies import quick

STEP, DONE = 8, -(1 << 30)


def columns_of(lines: Lines, piece: np.ndarray, way: int) -> list[int]:
    """Of its steps, in the order in which it makes them."""
    runs = lines.runs.numpy()
    columns = [column + place * STEP for column, count in runs[piece[FIRST]:piece[MIDDLE]] for place in range(count)]
    return sorted([*columns, *runs[piece[MIDDLE]:piece[LAST], 0].tolist()], reverse=way == 1)


def work(lines: Lines, number: int, way: int, progress: list[int], added: list[list[int]]) -> Iterator[None]:
    """A piece, up to each point at which another may go on: stops for good where it waits for one that never comes."""
    waits = lines.waits.numpy()
    place, behind = lines.waits_of.numpy()[0, number].tolist()
    for column in columns_of(lines, lines.pieces.numpy()[0, number], way):
        row = -column - STEP if way == 2 else column
        progress[number] = row + STEP
        yield
        more = place < behind
        while more:
            bottom, other = waits[place].tolist()
            while other >= 0 and progress[other] > max(row, bottom):
                yield
            more = bottom > row and place + 1 < behind
            place += more
        for touched in range(column, column + STEP):
            added[touched].append(number)
        yield
    progress[number] = DONE


def play(mask: Mask, way: int, num_programs: int, seed: int) -> None:
    """Additions to each column come in the order of the pieces."""
    lines, = make_lines(mask, [Wanted(16, STEP, True, 1.0, in_order=way)], torch.device("cpu"))
    total, chance = lines.pieces.shape[1], random.Random(seed)
    progress, added = [(1 << 31) - 1] * total, [[] for _ in range(mask.seqlen_q + STEP)]
    waiting, running = iter(range(total)), []
    for _ in range(200 * (sum(len(columns_of(lines, piece, way)) for piece in lines.pieces.numpy()[0]) + total) * num_programs):
        while len(running) < num_programs and (number := next(waiting, None)) is not None:
            running.append(work(lines, number, way, progress, added))
        if not running:
            break
        one = chance.choice(running)
        if next(one, "over") == "over":
            running.remove(one)
    assert not running, "pieces wait for each other in a circle"
    for pieces in added:
        assert pieces == sorted(pieces)


@pytest.mark.parametrize("way", [1, 2])
@pytest.mark.parametrize("name", ["full", "causal", "causal_document", "full_document", "sliding_window", "global_sliding_window",
                                  "shared_question", "prefix_lm_document", "causal_blockwise"])
def test_patterns(name: str, way: int) -> None:
    params = {"window": 40} if "window" in name else {}
    params |= {"num_global": 10} if name == "global_sliding_window" else {}
    play(build_mask(name, seqlen=203, **params), way, num_programs=5, seed=1)


@quick
@given(band_masks(max_groups=1), st.sampled_from([1, 2]), st.integers(1, 4), st.integers(0, 9))
def test_random_masks(mask: Mask, way: int, num_programs: int, seed: int) -> None:
    if mask.seqlen_k:
        play(mask, way, num_programs, seed)


@pytest.mark.parametrize(("name", "seqlen", "way"), [
    ("full", 8192, 1), ("causal", 8192, 1), ("sliding_window", 32768, 0), ("full_document", 32768, 1),
    ("global_sliding_window", 32768, 2), ("shared_question", 32768, 2), ("causal_document", 32768, 0), ("global_sliding_window", 8192, 0),
    ("full", 1024, 0), ("causal_sliding_window", 32768, 0), ("full_document", 8192, 0), ("causal_document", 8192, 0),
    ("block_sparse_uniform", 8192, 0)])
def test_who_takes_turns(name: str, seqlen: int, way: int) -> None:
    corpus = {"corpus": "prolong64k"} if "document" in name or "question" in name else {}
    assert way_of_turns(build_mask(name, seqlen=seqlen, **corpus), 8) == way


@pytest.mark.parametrize(("name", "way"), [("full", 1), ("causal", 1), ("prefix_lm", 1), ("full_document", 0), ("causal_blockwise", 0),
                                           ("global_sliding_window", 0), ("shared_question", 0)])
def test_few_heads_take_turns_only_where_most_queries_see_a_key(name: str, way: int) -> None:
    corpus = {"corpus": "prolong64k"} if name in ("full_document", "causal_blockwise", "shared_question") else {}
    mask = build_mask(name, seqlen=32768, **corpus)
    assert way_of_turns(mask, 4) > 0 and {way_of_turns(mask, few) for few in (1, 2, 5, 6)} == {way}


def test_nothing_visible_takes_no_turns() -> None:
    assert not any(way_of_turns(mask, 8) for mask in NOTHING_VISIBLE)
