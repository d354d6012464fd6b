"""The page in a real browser: nothing leaves it, nothing complains, and it does what it shows."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from longca.lab.report.build import build
from tests.helpers.chromium import LIVE, browser
from tests.helpers.report.cases import repeated, timed
from tests.helpers.report.few import few

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium is installed"),
]


def visit(address: str, folder: Path, *options: str) -> tuple[str, str]:
    """(the document after its scripts ran, what the browser logged)."""
    assert CHROMIUM is not None, "CI needs a Chromium"
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--disable-background-networking",
            "--no-first-run",
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=3000",
            "--window-size=1400,1000",
            *options,
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


def rows(document: str) -> list[str]:
    return re.findall(r'<tr class="row" id="cell-([0-9a-f-]+)"', document)


def requests(net_log: Path) -> set[str]:
    """The requests of pages to the network; the browser's own questions have no origin. Files are not the
    network's."""
    events = [
        event["params"]
        for event in json.loads(net_log.read_text())["events"]
        if isinstance(event.get("params"), dict)
    ]
    return {params["url"] for params in events if params.get("initiator", "not an origin") != "not an origin"}


@pytest.fixture(scope="module")
def seen(page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    document, log = visit(page.as_uri(), folder, "--dump-dom", f"--log-net-log={folder / 'net.json'}")
    return document, log, requests(folder / "net.json")


def test_nothing_leaves_the_page(seen):
    assert seen[2] == set()


def test_a_request_would_be_seen(tmp_path):
    leaky = tmp_path / "leaky.html"
    leaky.write_text('<img src="http://example.com/x.png"><script>console.error("seen")</script>')
    _, log = visit(leaky.as_uri(), tmp_path, "--dump-dom", f"--log-net-log={tmp_path / 'net.json'}")
    assert requests(tmp_path / "net.json") == {"http://example.com/x.png"} and "CONSOLE" in log


def test_the_console_is_clean(seen):
    assert "CONSOLE" not in seen[1]


def test_the_table_shows_every_record(seen):
    document, _, _ = seen
    assert "281 of 281 records" in document and len(rows(document)) == 25 and "1–25 of 281" in document


def same_first_picture(before: str, after: str) -> list[list[str]]:
    """The cells of the map and of the ranking are the same without a script and with one."""

    def numbers(text):
        parts = (re.search(rf'id="{name}".*?</table>', text, re.DOTALL)[0] for name in ("map", "ranking"))
        cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", part, re.DOTALL) for part in parts]
        return [[re.sub(r"<[^>]*>|\s", "", cell) for cell in part] for part in cells]

    def words(text, name):
        return re.search(rf'id="{name}"[^>]*>([^<]*)<', text)[1]

    def frames(text):
        return re.findall(r'<td class="(case[^"]*)"', text)

    assert numbers(before) == numbers(after) and frames(before) == frames(after)
    assert words(before, "verdict") == words(after, "verdict") and words(before, "map-setting") == words(
        after, "map-setting"
    )
    return numbers(after)


def test_the_first_picture_is_the_same_with_and_without_a_script(seen, page):
    """The script makes the map and the ranking again from its own data: not a number changes."""
    assert len(same_first_picture(page.read_text(encoding="utf-8"), seen[0])[0]) > 50


def test_so_it_is_with_lone_results_and_repeats(tmp_path):
    page = build([*repeated(), timed("flex", "full", 1.0, 1.0)], [], tmp_path / "page.html", study_title="x")
    document, log = visit(page.as_uri(), tmp_path, "--dump-dom")
    cells, ranking = same_first_picture(page.read_text(encoding="utf-8"), document)
    assert cells[-3:] == ["100", "50" + "33%with1papercompat;1of2", "–" + "0of2"] and "only" in cells
    assert ranking[-8:-7] == ["2"] and "CONSOLE" not in log
    document, _ = visit(page.as_uri() + "#decide?mask=full", tmp_path, "--dump-dom")
    ranking = re.search(r'id="ranking".*?</table>', document, re.DOTALL)[0]
    assert (
        re.findall(r'<td class="num">([^<]*)</td>', ranking)[0] == "–"
        and "first" not in ranking
        and "%</td>" not in ranking
    )


def act(page: Path, folder: Path, script: str, fragment: str = "") -> str:
    """The document after this script has run at the end of the page."""
    copy = folder / "acted.html"
    text = page.read_text(encoding="utf-8").replace(
        "</body>", f"<script>{LIVE}.then(() => {{{script}}})</script></body>"
    )
    copy.write_text(text, encoding="utf-8")
    document, log = visit(copy.as_uri() + fragment, folder, "--dump-dom")
    assert "CONSOLE" not in log
    return document.replace(script, "")


def test_two_clicks_answer_and_the_address_keeps_them(page, tmp_path):
    document = act(
        page,
        tmp_path,
        """
document.querySelector('[data-switch=direction][data-value=bwd]').click();
[...document.querySelectorAll('#map button')].find((one) => one.textContent === 'causal_document').click();
document.title = location.hash;""",
    )
    hash_ = unescape(re.search(r"<title>(.*?)</title>", document)[1])
    assert hash_.startswith("#decide?") and "direction=bwd" in hash_ and "mask=causal_document" in hash_
    verdict = re.search(r'id="verdict">(.*?)</p>', document)[1]
    assert re.match(r"\w+ is first of \d|A tie of", verdict)
    again, log = visit(page.as_uri() + hash_, tmp_path, "--dump-dom")
    assert (
        re.search(r'id="verdict">(.*?)</p>', again)[1] == verdict
        and "CONSOLE" not in log
        and 'id="notice" role="alert" hidden' in again
    )


def test_back_takes_a_switch_back(few_page, tmp_path):
    with browser(tmp_path) as tab:
        tab.open(few_page.as_uri(), 1400)
        seen = tab.run("""(async () => {
const told = () => document.querySelector('#map-setting').textContent;
const seen = [told()];
document.querySelector('[data-switch=direction][data-value=bwd]').click();
seen.push(told());
history.back();
await new Promise((done) => addEventListener('popstate', () => setTimeout(done, 50)));
return [...seen, told()];
})()""")
    assert "backward" in seen[1] and seen[0] == seen[2] and "forward" in seen[0]


def test_a_figure_can_be_saved(tmp_path):
    """A figure is saved where no files lie beside the page."""
    page = build(few(), [], tmp_path / "alone.html", study_title="x")
    with browser(tmp_path / "profile") as tab:
        tab.open(page.as_uri() + "#memory", 1400)
        saved = tab.run("""(async () => {
const saved = {};
HTMLAnchorElement.prototype.click = function () { saved[this.download] = this.href; };
for (const button of document.querySelectorAll('[data-figure=memory] button')) button.click();
for (let wait = 0; wait < 50 && !saved['memory.png']; wait++) await new Promise((done) => setTimeout(done, 100));
return saved;
})()""")  # noqa: E501
    svg, csv, png = (unquote(saved[f"memory.{ending}"].partition(",")[2]) for ending in ("svg", "csv", "png"))
    root = ElementTree.fromstring(svg)
    assert "var(" not in svg and "color-mix" not in svg and root.get("width"), "other programs show it, too"
    assert 'href="#m-full"' in svg and 'id="m-full"' in svg
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sdpa", "forward", "backward"} <= set(texts), (
        "it has the legend that stands beside it on the page"
    )
    top, height = (float(root.get("viewBox").split()[place]) for place in (1, 3))
    assert top < 0 and height == float(root.get("height"))
    head, *lines = csv.strip().split("\n")
    groups = [group for group in root.iter() if group.get("data-rows")]
    points = [mark for group in groups for mark in group.iter("{http://www.w3.org/2000/svg}use")]
    assert head.startswith("panel,method,mask,length") and len(lines) == len(points) > 1
    assert png.startswith("iVBOR")


def test_points_legends_and_panels_are_alive(page, tmp_path):
    document = act(
        page,
        tmp_path,
        """
const box = document.querySelector('#fig-throughput_forward .drawing'), key = document.querySelector('#fig-throughput_forward button.key');
key.click();
const off = document.querySelectorAll('#fig-throughput_forward .points.off').length;
const mark = box.querySelector('.points[data-rows]:not(.off) use').getBoundingClientRect();
const middle = { clientX: mark.x + mark.width / 2, clientY: mark.y + mark.height / 2 };
box.dispatchEvent(new PointerEvent('pointermove', { ...middle, bubbles: true }));
const pointed = document.querySelector('#tip').textContent;
box.dispatchEvent(new PointerEvent('pointerleave'));
const gone = document.querySelector('#tip').hidden;
box.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
const told = document.querySelector('#tip').textContent;
box.dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true }));
const panels = document.querySelectorAll('#large .panel').length, title = document.querySelector('#large h3').textContent;
document.querySelector('#large').close();
box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
document.title = JSON.stringify([off, pointed, gone, told, panels, title, location.hash]);""",  # noqa: E501
    )
    off, pointed, gone, content, panels, title, hash_ = json.loads(
        unescape(re.search(r"<title>(.*?)</title>", document)[1])
    )
    assert off > 5 and panels == 1 and title.startswith("full") and hash_.startswith("#cell-")
    assert gone and pointed and all("n = 5" in text for text in (pointed, content))
    assert "of its budget" in content and "FLOP/s (" in content and " ms" in content and "forward" in content
    assert f'id="{hash_[1:]}"' in document and 'class="opened"' in document


@pytest.mark.parametrize(
    ("fragment", "told"),
    [
        ("#cell-0000000000000000", "There is no record"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("#nothing", "which this page does not have"),
                ("#records?method=nobody", "method=nobody; there are none"),
                ("#decide?mask=nonsense", "mask=nonsense; this page does not have it"),
            )
        ),
    ],
)
def test_a_wrong_address_is_told(few_page, tmp_path, fragment, told):
    document, log = visit(few_page.as_uri() + fragment, tmp_path, "--dump-dom")
    assert told in re.search(r'id="notice"[^>]*>(.*?)</p>', document)[1] and "CONSOLE" not in log


def test_the_address_holds_the_filters(page, tmp_path):
    document, log = visit(
        f"{page.as_uri()}#records?method=sdpa&direction=bwd&seqlen=1K&kind=kernel&sort=-Mask",
        tmp_path,
        "--dump-dom",
    )
    assert "15 of 281 records" in document and len(rows(document)) == 15 and "CONSOLE" not in log
    assert 'aria-sort="descending"' in document


def test_the_address_opens_a_record(page, tmp_path, seen):
    cell_id = re.search(r'href="#cell-([0-9a-f]{16})">[0-9a-f]{8}</a>', seen[0])[1]
    document, log = visit(f"{page.as_uri()}#cell-{cell_id}", tmp_path, "--dump-dom")
    opened = document.split('<tr class="opened">')[1].split("</tr>")[0]
    assert cell_id in opened and "out is off by 0.031" in opened and "CONSOLE" not in log
    assert "longca run quick -k sdpa -c '!*' -m prefix_lm -s " in opened and " -d fwd --seed 0" in opened


@pytest.mark.parametrize(
    ("name", "size", "fragment"), [("light", "1400,1800", ""), ("dark", "1400,1800", "#theme=dark")]
)
def test_it_can_be_seen(page, tmp_path, name, size, fragment):
    picture = tmp_path / f"{name}.png"
    _, log = visit(page.as_uri() + fragment, tmp_path, f"--window-size={size}", f"--screenshot={picture}")
    assert picture.stat().st_size > 30_000 and "CONSOLE" not in log
