"""Figures in a window of 390 px: their panels stand in fewer columns, and do there what they do elsewhere."""

from pathlib import Path

from tests.helpers.chromium import browser
from tests.lab.report.test_browser import pytestmark

__all__ = ["pytestmark"]  # a browser is needed here, too

SCROLLING = """
[...document.querySelectorAll('.drawing')].filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => box.closest('figure').id)
"""
POINT_AND_CLICK = """
(() => {
  const box = document.querySelector('#fig-throughput_forward .drawing');
  box.scrollIntoView();
  const panel = [...box.querySelectorAll('.panel')].at(-1), group = panel.querySelector('.points[data-rows]');
  const mark = group.querySelector('use').getBoundingClientRect();
  const middle = { clientX: mark.x + mark.width / 2, clientY: mark.y + mark.height / 2, bubbles: true };
  box.dispatchEvent(new PointerEvent('pointermove', middle));
  const ring = box.querySelector('.ring').getBoundingClientRect(), tip = document.querySelector('#tip').textContent;
  const away = Math.hypot(ring.x + ring.width / 2 - middle.clientX, ring.y + ring.height / 2 - middle.clientY);
  const title = panel.querySelector('.title').getBoundingClientRect();
  box.dispatchEvent(new PointerEvent('pointerleave'));
  box.dispatchEvent(new MouseEvent('click', { clientX: title.x + 2, clientY: title.y + 2, bubbles: true }));
  const large = document.querySelector('#large');
  return { shift: new DOMMatrix(getComputedStyle(panel).transform).f, away, right: tip.includes(group.dataset.method),
    title: large.querySelector('h3').textContent, panel: panel.dataset.panel, panels: large.querySelectorAll('.panel').length };
})()
"""  # noqa: E501


def test_no_figure_scrolls_and_moved_panels_are_alive(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(page.as_uri(), 390) == []
        assert tab.run(SCROLLING) == []
        seen = tab.run(POINT_AND_CLICK)
    assert seen["shift"] > 100 and seen["away"] < 2 and seen["right"]
    assert seen["title"] == seen["panel"] and seen["panels"] == 1
