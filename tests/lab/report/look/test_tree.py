"""Drawings take few letters and lose nothing."""

import pytest

from longca.lab.report.look.tree import compact, parsed


def test_numbers_of_a_drawing_are_short_and_shares_exact():
    root = parsed(
        '<svg xmlns="http://www.w3.org/2000/svg"><!-- no --><g id="a"><g id="b"/></g>'
        '<path d="M 10.123 -0.04 \nL -3.96 4 z" style="opacity: 0.55; stroke-width: 0.84"/>'
        '<text transform="rotate(-0 1.23 4)"> a 1.234 </text></svg>'
    )
    compact(root)
    group, path, text = root
    assert path.get("d") == "M10.1 0L-4 4z" and path.get("style") == "opacity: 0.55; stroke-width: 0.8"
    assert text.text == " a 1.234 " and not text.attrib and group.attrib == {"id": "a"}


@pytest.mark.parametrize(
    ("outline", "short"),
    [
        ("M 36 138.2 L 155.6 138.2 ", "M36 138.2H155.6"),
        ("M 88.25 67.6 L 88.21 64.2 ", "M88.2 67.6V64.2"),
        ("M 42.4 90.6 L 57.7 74.6 L 72.9 65.2 ", "M42.4 90.6l15.3-16 15.2-9.4"),
        ("M 0 0 L 1 1 z L 2 3 ", "M0 0l1 1zL2 3"),
        ("M 0 1.6 C 0.4 1.6 0.8 1.5 1.1 1.1 z ", "M0 1.6C0.4 1.6 0.8 1.5 1.1 1.1z"),
    ],
)
def test_outlines_have_few_letters(outline, short):
    root = parsed(f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{outline}"/></svg>')
    compact(root)
    assert root[0].get("d") == short
