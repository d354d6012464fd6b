"""The study's page in a real browser."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from tests.helpers.chromium import browser
from tests.lab.report.test_browser import act, pytestmark, visit
from tests.lab.report.test_every_page import AUDIT
from tests.lab.report.test_narrow_windows import SCROLLING

__all__ = ["pytestmark"]  # a browser is needed here, too

SCRIPT = """
const figure = document.querySelector('#dense_forward figure');
const box = figure.querySelector('.drawing'), key = figure.querySelector('button.key');
const tip = () => document.querySelector('#tip').textContent;
const press = (name) => box.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
const wide = [...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth
  && !one.closest('.drawing, .wide')).length;
key.click();
const off = figure.querySelectorAll('.points.off').length;
key.click();
press('ArrowRight');
const told = tip();
press('+');
const panels = document.querySelectorAll('#large .panel').length;
document.querySelector('#large').close();
document.querySelector('#theme').click();
window.name = JSON.stringify([off, told, panels, wide, document.documentElement.dataset.theme]);
press('Enter');"""  # noqa: E501


def test_figures_are_alive_and_lead_to_their_records(page: Path) -> None:
    folder = page.parent.parent / "acted"
    folder.mkdir()
    document = act(page, folder, SCRIPT)
    title = re.search(r"<title>(.*?)</title>", document)
    assert title is not None
    name, hash_ = json.loads(unescape(title[1]))
    off, content, panels, wide, theme = json.loads(name)
    assert off > 0 and panels == 1 and wide == 0 and theme == "dark"
    assert "n = " in content and "of its budget" in content and "FLOP/s" in content and "forward" in content
    assert re.fullmatch(r"#cell-[0-9a-f]{16}", hash_)


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1400, True)])
def test_nothing_is_cut_or_pale(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(page.as_uri(), width, dark=dark) == []
        assert tab.run(AUDIT) == {}


def test_no_figure_scrolls_in_a_narrow_window(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(page.as_uri(), 390) == []
        tab.run("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        assert tab.run(SCROLLING.replace("'figure'", "'.exhibit'")) == []


WIDTHS = """
(() => {
  const least = (what) => Math.min(...[...document.querySelectorAll(what)].map((one) => one.offsetWidth));
  const most = (what) => Math.max(...[...document.querySelectorAll(what)].map((one) => one.offsetWidth));
  return [least('.meanings dd'), most('#methods tbody th')];
})()
"""


def test_words_have_room_in_a_narrow_window(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(page.as_uri(), 390) == []
        tab.run("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        meaning, name = tab.run(WIDTHS)
    assert meaning > 300 and name <= 120


@pytest.mark.slow
def test_a_wrong_address_is_told(page: Path, tmp_path: Path) -> None:
    document, log = visit(page.as_uri() + "#nothing", tmp_path, "--dump-dom")
    assert "which this page does not have" in document and "CONSOLE" not in log
