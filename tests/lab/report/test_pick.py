"""The choice of methods to compare: all figures and tables follow it, and the address alone holds it."""

import json
from pathlib import Path
from typing import Any

from longca.lab.report.build import build
from tests.helpers.chromium import Browser, browser
from tests.helpers.report.cases import both
from tests.lab.report.test_browser import pytestmark

__all__ = ["pytestmark"]

SEEN = """(() => {
const seen = (part) => part.checkVisibility();
const words = (selector) => [...document.querySelectorAll(selector)].filter(seen).map((part) => part.textContent.trim());
for (const folded of document.querySelectorAll("details:not(.filter)")) folded.open = true;
return {
  hash: location.hash,
  map: words("#map thead a"),
  squares: new Set([...document.querySelectorAll("#map tbody tr")].map((row) => row.cells.length)).size,
  ranking: words("#ranking tbody .method").sort(),
  support: words(".matrix thead .method"),
  tiles: document.querySelectorAll(".matrix tbody tr")[0].querySelectorAll("td:not(.unpicked)").length,
  lines: [...new Set([...document.querySelectorAll("#fig-throughput_forward .points")].filter((group) => getComputedStyle(group).display !== "none").map((group) => group.dataset.method))].sort(),
  keys: words("#fig-throughput_forward button.key").sort(),
  records: [...new Set(words("#table tbody .method"))].filter((name) => !["control", "device_copy", "matmul"].includes(name)).sort(),
  accuracy: [...new Set(words("#accuracy tbody th .method"))].sort(),
  chips: words("#picked [data-drop]").length,
  count: words("#pick summary b").join(""),
};
})()"""  # noqa: E501
BACK = """(async () => {
history.back();
await new Promise((done) => addEventListener("hashchange", () => setTimeout(done, 50), { once: true }));
})()"""


def tick(tab: Browser, method: str) -> None:
    tab.run(f"document.querySelector('#pick input[value=\"{method}\"]').click()")


def lists(seen: dict[str, Any]) -> list[list[str]]:
    return [
        sorted(seen[name]) for name in ("map", "ranking", "support", "lines", "keys", "records", "accuracy")
    ]


def test_every_list_follows_and_back_takes_a_step_back(few_page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open(few_page.as_uri() + "#decide?ranks=alone", 1400)
        every = tab.run(SEEN)
        assert len(every["support"]) > 2 and every["chips"] == 0 and every["count"] == ""
        tick(tab, "sdpa")
        one = tab.run(SEEN)
        tick(tab, "naive")
        two = tab.run(SEEN)
        assert all(names == ["sdpa"] for names in lists(one)) and one["tiles"] == 2
        assert one["hash"].startswith("#decide?") and one["hash"].endswith("&methods=sdpa")
        assert set(two["records"]) == {"naive", "sdpa"} and two["chips"] == 2 and two["squares"] == 1
        assert two["count"].startswith("2 of ")
        tab.run(BACK)
        assert tab.run(SEEN) == one
        tab.run(BACK)
        assert tab.run(SEEN) == every
        assert tab.run("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_an_address_restores_it_and_links_keep_it(few_page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(few_page.as_uri() + "#methods=sdpa", 1400) == []
        assert all(names == ["sdpa"] for names in lists(tab.run(SEEN))[2:])
        tab.run("document.querySelector('nav a[href=\"#records\"]').click()")
        assert tab.run("location.hash") == "#records?methods=sdpa"
        tab.run("document.querySelector('[data-switch=direction][data-value=bwd]').click()")
        assert "direction=bwd" in tab.run("location.hash") and "methods=sdpa" in tab.run("location.hash")
        tab.run("document.querySelector('#picked [data-all]').click()")
        assert "methods" not in tab.run("location.hash") and len(tab.run(SEEN)["support"]) > 2
        tab.open(few_page.as_uri() + "#records?methods=nobody,sdpa", 1400)
        assert "nobody; this page does not have it" in tab.run(
            "document.querySelector('#notice').textContent"
        )
        assert tab.run(SEEN)["records"] == ["sdpa"]


def test_a_link_to_a_record_shows_it_whatever_was_chosen(few_page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open(few_page.as_uri() + "#records?method=naive", 1400)
        cell = tab.run("document.querySelector('#table tbody tr.row').id")
        tab.open(f"{few_page.as_uri()}#{cell}?methods=sdpa", 1400)
        assert tab.run("document.querySelector('#table tr.opened') !== null")
        assert tab.run("location.hash") == f"#{cell}"


def test_cells_with_a_tip_are_reached_by_keys(tmp_path: Path) -> None:
    page = build([*both("causal"), *both("full")[:1]], [], tmp_path / "page.html", study_title="x")
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: '%s', bubbles: true }))"
    with browser(tmp_path / "profile") as tab:
        tab.open(page.as_uri(), 1400)
        assert tab.run("document.querySelectorAll('#map td[tabindex=\"0\"]').length") == 1
        tab.run("document.querySelector('#map td[tabindex=\"0\"]').focus()")
        tips = [tab.run("document.querySelector('#tip').textContent")]
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
            tab.run(press % key)
            tips.append(tab.run("document.querySelector('#tip').textContent"))
        assert len(set(tips)) == 4 and any("not asked" in tip for tip in tips), json.dumps(tips)


def test_a_figure_without_the_chosen_methods_says_so(few_page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open(few_page.as_uri(), 1400)
        strategy = tab.run(
            "[...document.querySelectorAll('#pick input')].find((box) => box.value.includes('+')).value"
        )
        tick(tab, strategy)
        said = "document.querySelector('#fig-throughput_forward .none-picked')?.textContent"
        assert "None of the chosen methods" in tab.run(said)
        tick(tab, strategy)
        assert tab.run(said) is None
