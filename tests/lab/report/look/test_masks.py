"""Drawings of masks."""

import re

from longca.lab.report.look.masks import mask_drawings
from tests.helpers.records import quick_study


def test_each_mask_is_drawn_once_and_used_everywhere(text, outline):
    drawn = set(re.findall(r'<symbol id="m-(\w+)"', text))
    assert drawn == {entry.cell.mask for entry in quick_study() if entry.work is None}
    assert {value[3:] for value in outline.fetched if value.startswith("#m-")} == drawn
    gallery = re.search(r'<section id="masks">.*?</section>', text, re.DOTALL)[0]
    assert gallery.count("<li>") == len(drawn) and "same document and j ≤ i" in gallery
    assert len(re.findall(r'<use href="#m-full"', text)) > 5


def test_a_mask_without_a_drawing_has_none():
    assert [drawing.name for drawing in mask_drawings(["causal", "of_a_plugin", "full"])] == [
        "causal",
        "full",
    ]
