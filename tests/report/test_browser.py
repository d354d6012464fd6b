"""The page in a real browser: nothing leaves it, nothing complains, and it does what it shows."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"),
                                                      reason="no Chromium is installed")]


def visit(address: str, folder: Path, *options: str) -> tuple[str, str]:
    """(the document after its scripts ran, what the browser logged)."""
    assert CHROMIUM is not None, "CI needs a Chromium"
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--no-first-run",
         "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=3000", "--window-size=1400,1000", *options, address],
        capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def rows(document: str) -> list[str]:
    return re.findall(r'<tr class="row" id="cell-([0-9a-f-]+)"', document)


def requests(net_log: Path) -> set[str]:
    """What pages asked the network for; the browser's own questions have no origin. Files are not the network's."""
    events = [event["params"] for event in json.loads(net_log.read_text())["events"] if isinstance(event.get("params"), dict)]
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
    assert "281 of 281 records" in document and len(rows(document)) == 150 and "Show all 281" in document


def test_the_address_holds_the_filters(page, tmp_path):
    document, log = visit(f"{page.as_uri()}#records?method=sdpa&direction=bwd&seqlen=1K&kind=kernel&sort=-Mask", tmp_path,
                          "--dump-dom")
    assert "15 of 281 records" in document and len(rows(document)) == 15 and "CONSOLE" not in log
    assert 'aria-sort="descending"' in document


def test_the_address_opens_a_record(page, tmp_path, seen):
    cell_id = re.search(r'href="#cell-([0-9a-f]{16})">[0-9a-f]{8}</a>', seen[0])[1]
    document, log = visit(f"{page.as_uri()}#cell-{cell_id}", tmp_path, "--dump-dom")
    opened = document.split('<tr class="opened">')[1].split("</tr>")[0]
    assert cell_id in opened and "out is off by 0.031" in opened and "CONSOLE" not in log


@pytest.mark.parametrize(("name", "size", "fragment"), [("light", "1400,1800", ""), ("dark", "1400,1800", "#theme=dark"),
                                                        ("telephone", "400,1800", "")])
def test_it_can_be_seen(page, tmp_path, name, size, fragment):
    picture = tmp_path / f"{name}.png"
    _, log = visit(page.as_uri() + fragment, tmp_path, f"--window-size={size}", f"--screenshot={picture}")
    assert picture.stat().st_size > 30_000 and "CONSOLE" not in log
