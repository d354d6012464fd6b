"""The page is valid and hides nothing, and its templates read what it has."""

import re
from dataclasses import fields

from longca.lab.report.content.page import Frame, PageData
from longca.lab.report.look.template import page_templates
from longca.lab.studies.outcome import STATUSES
from tests.helpers.records import quick_study
from tests.helpers.report.few import DAMAGED
from tests.helpers.support import ROOT


def test_it_is_well_formed(outline):
    assert len(set(outline.ids)) == len(outline.ids), "ids are unique"


def test_it_fetches_nothing(outline, text):
    assert all(value.startswith(("#", "data:")) for value in outline.fetched)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_links_lead_somewhere(outline, page):
    ids = set(outline.ids) | {
        f"cell-{entry.cell_id}" for entry in quick_study()
    }  # rows are made by the script
    for link in outline.links:
        if link.startswith("#"):
            assert link[1:].split("?")[0] in ids, link
        elif not link.startswith("http"):
            assert (page.parent / link).is_file(), link


def test_every_status_and_reason_is_told(text, outline):
    for status in STATUSES:
        assert f'href="#records?status={status}"' in text
    assert "FlexAttention has no backward on a CPU" in text and "stopped after 120 s" in text
    assert "Inplace &lt;update&gt; of an input" in text and "<update>" not in text


def test_damaged_files_are_named(text):
    assert f"<code>{DAMAGED.path}</code>: {DAMAGED.reason}" in text


def test_it_decides_first(text):
    """Title, finding, map and ranking stand before all else, and without a script they show the default
    setting."""
    places = [
        text.index(part)
        for part in (
            "<h1>",
            '<p class="lead">',
            'id="map"',
            'id="ranking"',
            'class="statusbar"',
            'class="tiles"',
        )
    ]
    assert places == sorted(places)
    table = re.search(r'id="map".*?</table>', text, re.DOTALL)[0]
    assert (
        len(re.findall(r'class="case[^"]*best', table))
        == len(re.findall(r'scope="row"><button', table))
        == 15
    )
    assert "worst share" in table and re.search(r"<b>\d+</b><small>\d+ of 15</small>", table)
    assert 'id="switches" hidden' in text and re.search(r'id="verdict">(\w+ is first of \d|A tie of)', text)


def test_templates_read_what_the_page_has_and_nothing_else():
    """Every name that they use is a field, and every field is used."""
    from jinja2 import meta, nodes

    used = set()
    set_here = set()
    todo = ["page.html.j2"]
    done = set()
    while todo:
        done.add(name := todo.pop())
        tree = page_templates().parse(
            (ROOT / "longca/lab/report/templates" / name).read_text(encoding="utf-8")
        )
        used |= meta.find_undeclared_variables(tree)
        set_here |= {node.target.name for node in tree.find_all(nodes.Assign)}
        todo += [other for other in map(str, meta.find_referenced_templates(tree)) if other not in done]
    own = {field.name for part in (Frame, PageData) for field in fields(part)} - {"frame"}
    assert used - own - set_here == {"ui"}, "the macros"
    assert own - used == set()
