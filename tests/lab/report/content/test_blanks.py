"""Blanks of figures: not asked, or the recorded reason, in the panels where they are."""

import re
from pathlib import Path

import pandas as pd

from longca.core.plugin import Registry
from longca.lab.report.build import build
from longca.lab.report.content.blanks import NOT_ASKED, WITHOUT, Outcomes, words_text
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import Inline, inline, with_shared_styles
from longca.lab.report.look.tree import parsed
from longca.lab.report.series import labelled
from longca.lab.store.table import derived
from longca.lab.studies.outcome import Unsupported
from longca.lab.studies.record import Record
from tests.helpers.records import record
from tests.helpers.report.cases import cell


def records() -> list[Record]:
    """fa3 cannot run prefix_lm; flex was not asked for full, nor for causal at 2K."""
    return [
        *(
            record(cell("sdpa", mask, seqlen))
            for mask in ("full", "causal", "prefix_lm")
            for seqlen in (1024, 2048)
        ),
        *(record(cell("fa3", mask, seqlen)) for mask in ("full", "causal") for seqlen in (1024, 2048)),
        *(
            record(cell("fa3", "prefix_lm", seqlen), Unsupported(reason="no such mask"))
            for seqlen in (1024, 2048)
        ),
        record(cell("flex", "causal")),
        *(record(cell("flex", "prefix_lm", seqlen)) for seqlen in (1024, 2048)),
    ]


FIGURE = Registry("figure").load("throughput_forward")


def test_each_blank_has_its_reason_and_its_panels() -> None:
    table = labelled(derived(records()))
    data = FIGURE.data(table)
    panels = [mask for mask, _ in dict.fromkeys(zip(data["mask"], data.detail, strict=True))]
    blanks = {(blank.method, blank.why): blank for blank in Outcomes(table).blanks(data)}
    assert {key: blank.where for key, blank in blanks.items()} == {
        ("fa3", "unsupported: no such mask"): "prefix_lm",
        ("flex", NOT_ASKED): "full; causal (2K)",
    }
    assert [panels[place] for place in blanks["flex", NOT_ASKED].panels] == ["full", "causal"]


def test_panels_of_the_same_gpus_are_named_together() -> None:
    data = FIGURE.data(labelled(derived(records())))
    both = pd.concat([data.assign(detail=f"0.5 · {gpu}") for gpu in ("A", "B")])
    lone = pd.concat([both, data[data["mask"] == "full"].assign(detail="0.5 · C")])
    where = {blank.method: blank.where for blank in Outcomes(labelled(derived(records()))).blanks(lone)}
    assert where["flex"] == "A and B and C: full · 0.5; A and B: causal · 0.5 (2K)"


def test_what_was_measured_and_is_not_shown_is_not_called_unasked() -> None:
    table = labelled(derived(records()))
    data = FIGURE.data(table)
    kept = data[~((data.method == "fa3") & (data["mask"] == "full"))]
    whys = {blank.why for blank in Outcomes(table).blanks(kept) if blank.method == "fa3"}
    assert whys == {"unsupported: no such mask", WITHOUT}


def test_places_of_panels_are_those_of_the_drawing() -> None:
    """The page's script finds a panel by its place."""
    table = labelled(derived(records()))
    data = FIGURE.data(table)
    drawing = inline(FIGURE, data, Style(("fa3", "flex", "sdpa"), on_page=True), "f", "x")
    titles = [
        group.get("data-panel", "") for group in parsed(drawing.svg).iter() if group.get("class") == "panel"
    ]
    panels = dict.fromkeys(zip(data["mask"], data.detail, strict=True))
    assert [title.split(" · ")[0] for title in titles] == [mask for mask, _ in panels]


def test_the_page_lists_them_without_a_script(tmp_path: Path) -> None:
    text = build(records(), [], tmp_path / "page.html", study_title="x").read_text(encoding="utf-8")
    assert 'data-method="fa3" data-why="unsupported: no such mask" data-panels="1"' in text
    assert "2 methods without a mark in some panels" in text


def test_shared_styles_are_those_that_were_there() -> None:
    """Put back into the elements, the rules give the drawing that was."""
    table = labelled(derived(records()))
    drawing = inline(FIGURE, FIGURE.data(table), Style(("fa3", "flex", "sdpa"), on_page=True), "f", "x")
    (shared,), rules, rows = with_shared_styles([drawing])
    styles = dict(rule.split("{") for rule in rules.removesuffix("}").split("}"))
    text = shared.svg
    for name, style in styles.items():
        text = re.sub(rf' class="{name[1:]} ([^"]*)"([^>]*)', rf' class="\1"\2 style="{style}"', text)
        text = text.replace(f'class="{name[1:]}"', f'style="{style}"')
    text = re.sub(r'(?<=data-rows=")\d+', lambda match: rows[int(match[0])], text)
    assert styles and len(shared.svg) < len(drawing.svg)
    parts = (parsed(svg).iter() for svg in (text, drawing.svg))
    assert all(one.attrib == other.attrib for one, other in zip(*parts, strict=True))
    assert with_shared_styles([Inline('<path style="a: 1"/>', [])]) == (
        [Inline('<path style="a: 1"/>', [])],
        "",
        [],
    )


def test_a_mark_that_is_the_status_itself_is_not_explained() -> None:
    assert words_text("Fields", ["unsupported", "error", NOT_ASKED]) == (
        "Fields without a number say why when they are pointed at: “no” is unsupported, empty is not asked."
    )
