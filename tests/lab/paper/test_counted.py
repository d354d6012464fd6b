"""Defects whose effect is counted: areas beside dense masks, and what is said of them."""

import numpy as np
import pandas as pd
import pytest

from longca.lab.paper.analysis.counted import BLOCKS, GLOBALS, RING, WINDOWS, counted, counted_global, effects
from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import PaperTable
from longca.lab.paper.repairs import REPAIRS
from longca.masks import build_mask


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    return counted()


@pytest.mark.parametrize(("seqlen", "width"), [(12, 3), (64, 7), (50, 16)])
def test_global_windows_are_counted_as_by_their_slices(seqlen: int, width: int) -> None:
    """A causal slice shows a key if it is as far from the last key as the query is from the last query, or
    further."""
    seen = np.zeros((seqlen, seqlen), int)
    query, key = np.indices(seen.shape)
    for (first, last), (left, right) in (((0, seqlen), (0, width)), ((0, width), (width, seqlen))):
        seen += (
            (query >= first) & (query < last) & (key >= left) & (key < right) & (key - right <= query - last)
        )
    seen += (query >= width) & (key >= width) & (abs(query - key) <= width)
    assert seen.max() == 1 and counted_global(seqlen, width) == seen.sum()


def test_a_window_is_counted_at_one_side(data: pd.DataFrame) -> None:
    rows = data[data.defect == WINDOWS]
    assert (
        rows.released
        == [
            build_mask("causal_sliding_window", seqlen=length, window=1024).area
            for length in (1024, 8192, 49152)
        ]
    ).all()
    assert rows.ratio.between(0.5, 0.501).all()
    assert (1 / data.ratio[data.defect == GLOBALS]).between(1.79, 1.99).all(), (
        "as it was found by running that code"
    )


def test_blocks_drawn_anew_are_as_many_and_others(data: pd.DataFrame) -> None:
    rows = data[data.defect == BLOCKS]
    assert rows.ratio.between(0.99, 1.01).all()
    assert rows.common.tolist() == pytest.approx([0.2, 0.5, 0.8], abs=0.01)
    assert data.common[data.defect != BLOCKS].isna().all()


def test_a_ring_keeps_what_each_rank_sends(data: pd.DataFrame) -> None:
    last = data[data.defect == RING].iloc[-1]
    output = 8192 * 64 * 128 * 2
    assert (
        last.world == 96
        and last.released == 96 * (output + output // 4)
        and last.without == 2 * output // 4 + 2 * output
    )


def test_the_findings_are_those_of_the_numbers(data: pd.DataFrame) -> None:
    shown = next(exhibit for exhibit in exhibits() if exhibit.name == "counted")
    assert isinstance(shown, PaperTable) and len(shown.cells(data).rows) == len(data)
    title = shown.title(data)
    assert (
        "of windows are counted up to 2.00 times too low" in title
        and "up to 48.0 times as much (ring of 96" in title
    )
    texts = effects(data)
    assert set(texts) == {WINDOWS, GLOBALS, BLOCKS, RING} <= {repair.number for repair in REPAIRS}
    assert "50 % of the pairs" in texts[WINDOWS] and "20 % to 80 %" in texts[BLOCKS]
    assert "on 96, where it is 15.0 GiB" in texts[RING]
    assert "7.00" in effects(data.assign(ratio=data.ratio.where(data.defect != RING, 7.0)))[RING]
