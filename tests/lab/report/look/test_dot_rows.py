"""Plots of dots in rows, in narrow windows."""

import xml.etree.ElementTree as ElementTree

import pytest


@pytest.mark.parametrize("name", ["accuracy", "cp_ranks", "energy", "noise", "predicted_errors"])
def test_dots_in_rows_are_drawn_for_narrow_windows_too(name, drawing):
    """With the same marks, on paper that needs no scrolling at 390 px, and the ids of both differ."""
    both = [ElementTree.fromstring(svg) for svg in (drawing(name).svg, drawing(name).narrow_svg)]
    assert [float(root.get("viewBox").split()[2]) <= 358 for root in both] == [False, True]
    assert len({tuple(group.get("data-rows", "") for group in root.iter("g")) for root in both}) == 1
    ids = [{part.get("id") for part in root.iter()} - {None} for root in both]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
