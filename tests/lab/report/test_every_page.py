"""Every committed page as it looks on a telephone and on a desk, in both themes, its links, and its use by
keys alone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.helpers.chromium import CHROMIUM, Browser, browser
from tests.helpers.support import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium is installed"),
]

REPORTS = ROOT / "reports"
PAGES = sorted(REPORTS.rglob("*.html"))
SMALL = ("index.html", "h200/power.html")  # each takes seconds; the others take up to a minute
AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
LINKS = "[...new Set([...document.links].map((link) => link.getAttribute('href')))]"
KEYBOARD = Path(__file__).with_name("keyboard.js").read_text(encoding="utf-8")
FOLLOW = Path(__file__).with_name("follow.js").read_text(encoding="utf-8")


def pages() -> list[object]:
    return [
        pytest.param(page, id=name, marks=[] if name in SMALL else pytest.mark.slow)
        for page in PAGES
        for name in [page.relative_to(REPORTS).as_posix()]
    ]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("chromium")
    with browser(folder) as tab:
        yield tab
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", pages())
@pytest.mark.parametrize("width", [390, 1280, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_cut_or_pale(tab: Browser, page: Path, width: int, dark: bool) -> None:
    assert tab.open(page.as_uri(), width, dark=dark) == []
    assert tab.run(AUDIT) == {}


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False), (1600, True)])
def test_so_it_is_on_a_new_page(tab: Browser, page: Path, width: int, dark: bool) -> None:
    assert tab.open(page.as_uri(), width, dark=dark) == []
    assert tab.run(AUDIT) == {}


@pytest.mark.parametrize("page", pages())
def test_no_link_is_dead(tab: Browser, page: Path) -> None:
    """Files, anchors, records and filters, here and on pages that this one links to. No other site."""
    tab.open(page.as_uri(), 1400)
    fragments: dict[Path, list[str]] = {}
    for address in tab.run(LINKS):
        parts = urlsplit(address)
        if parts.scheme:
            assert parts.scheme in ("http", "https", "data"), address
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{address}: there is no such file"
        if parts.fragment:
            fragments.setdefault(target, []).append(parts.fragment)
    for target, wanted in fragments.items():
        tab.open(target.as_uri(), 1400)
        assert tab.run(f"{FOLLOW}({wanted!r})") == [], target


HEAD = """<!doctype html><meta name="viewport" content="width=device-width">
<style>body { color: #000; background: #fff; margin: 0 }</style>
"""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("overflow", '<div style="width: 500px">wide</div>'),
        ("box", '<div style="width: 500px; height: 9px"></div>'),
        (
            "cut",
            '<p style="width: 50px; overflow: hidden; white-space: nowrap">more words than there is room '
            "for</p>",
        ),
        ("cut", '<p style="position: absolute; left: -30px">begins before the page</p>'),
        ("cut", '<input style="width: 40px" placeholder="more than fits">'),
        ("contrast", '<p style="color: #888">grey on white</p>'),
        ("contrast", '<p style="opacity: 0.5">half of it</p>'),
        (
            "contrast",
            '<svg width="90" height="30"><rect width="90" height="30" fill="#333"/><text y="20" x="5">on '
            "dark</text></svg>",
        ),
        (
            "narrow",
            '<table><tr><td style="width: 40px; max-width: 40px">one two three four five six seven eight '
            "nine ten</td></tr></table>",
        ),
        ("scroll", '<div style="overflow-x: auto; height: 20px"><p>one<p>two<p>three</div>'),
        ("keyboard", '<div style="cursor: pointer">click</div>'),
    ],
)
def test_what_is_wrong_is_seen(tab: Browser, tmp_path: Path, kind: str, body: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(HEAD + body, encoding="utf-8")
    tab.open(page.as_uri(), 390)
    assert kind in tab.run(AUDIT)


@pytest.mark.parametrize(
    "body",
    [
        '<div style="overflow-x: auto; width: 300px"><table style="width: 900px"><tr><td>a wide table that '
        "scrolls</td></tr></table></div>",
        '<svg width="90" height="30"><rect width="90" height="30" fill="#333"/><text y="20" x="5" '
        'fill="#fff">light on dark</text></svg>',
        '<div style="background: #000"><p style="color: #fff">white on black</p></div>',
    ],
)
def test_what_is_right_is_left_alone(tab: Browser, tmp_path: Path, body: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(HEAD + body, encoding="utf-8")
    assert tab.open(page.as_uri(), 390) == [] and tab.run(AUDIT) == {}


def keyboard_complaints(tab: Browser, page: Path, width: int) -> list[str]:
    """What is wrong when a reader goes through the page by Tab, and presses one control of each kind."""
    tab.open(page.as_uri(), width)
    count = tab.run(KEYBOARD)
    complaints = []
    pressed: set[str] = set()
    for _ in range(2 * count + 9):  # browsers also stop at what scrolls
        tab.press("Tab")
        stop = tab.run("stops.here()")
        if stop is None or stop["again"]:
            break
        complaints += [f"{stop['name']} {reason}" for reason in stop["wrong"]]
        for key in stop["keys"] if stop["kind"] not in pressed else []:
            tab.run("stops.watch()")
            tab.press(key)
            if not tab.run("stops.clicked()"):
                complaints.append(f"{stop['name']} is not pressed by {'Space' if key == ' ' else key}")
        pressed.add(stop["kind"])
    return complaints + [f"{name} is not reached by Tab" for name in tab.run("stops.missed()")]


def test_an_address_opens_its_chapter(tab: Browser, few_page: Path) -> None:
    """What is folded at first, from the navigation and from links within it."""
    assert tab.open(few_page.as_uri(), 1400) == []
    folded = tab.run("[...document.querySelectorAll('.chapter')].map((part) => part.parentElement.id)")
    assert {"accuracy", "noise", "methods", "provenance", "dictionary"} <= set(folded)
    assert tab.run("document.querySelectorAll('.chapter[open]').length") == 0
    for place, chapter in [*((id, id) for id in folded), ("timer", "noise"), ("environments", "provenance")]:
        tab.open(f"{few_page.as_uri()}#{place}", 1400)
        opened = tab.run(
            "[...document.querySelectorAll('.chapter[open]')].map((part) => part.parentElement.id)"
        )
        assert chapter in opened
        top = tab.run(f"document.getElementById('{place}').getBoundingClientRect().top")
        assert 0 <= top < 900, place


@pytest.mark.parametrize("page", pages())
@pytest.mark.parametrize("width", [390, 1280])
def test_all_controls_are_reached_and_pressed_by_keys(tab: Browser, page: Path, width: int) -> None:
    assert keyboard_complaints(tab, page, width) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_so_they_are_on_a_new_page(tab: Browser, page: Path, width: int) -> None:
    assert keyboard_complaints(tab, page, width) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<button tabindex="-1">a</button><button>b</button>', ""),
        ('<button style="outline: none">a</button>', 'button "a" has no visible focus'),
        (
            '<div style="overflow: hidden; width: 99px">'
            '<button style="width: 99px; outline: 3px solid">a</button></div>',
            'button "a" has an outline that is cut',
        ),
        ('<button onkeydown="event.preventDefault()">a</button>', 'button "a" is not pressed by Enter'),
        (
            "<button>a</button><button onfocus=\"document.querySelector('button').focus()\">b</button>",
            'button "b" is not reached by Tab',
        ),
        (
            '<header class="top" style="position: fixed; inset: 0 0 auto; height: 99px"></header>'
            "<button>a</button>",
            'button "a" is covered or out of the window',
        ),
    ],
)
def test_what_keys_do_not_reach_is_seen(tab: Browser, tmp_path: Path, body: str, said: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(HEAD + body, encoding="utf-8")
    complaints = keyboard_complaints(tab, page, 1280)
    assert said in complaints if said else complaints == []


def test_a_dead_anchor_and_a_message_are_seen(tab: Browser, few_page: Path) -> None:
    tab.open(few_page.as_uri(), 1400)
    dead = tab.run(f"{FOLLOW}(['nothing', 'records', 'records?method=nobody', 'cell-0123456789abcdef'])")
    assert [text.split(":")[0] for text in dead] == [
        "#nothing",
        "#records?method=nobody",
        "#cell-0123456789abcdef",
    ]
    noisy = few_page.with_name("noisy.html")
    noisy.write_text("<script>console.warn('heard'); nothing()</script>", encoding="utf-8")
    complaints = tab.open(noisy.as_uri(), 1400)
    assert complaints[0] == "heard" and "nothing is not defined" in complaints[1]
