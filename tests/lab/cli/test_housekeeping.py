"""Commands around a study: settings, cleaning, the page in a browser, version and help."""

import io
import json
import webbrowser
from pathlib import Path

import pytest

from longca import __version__
from longca.lab.store.cells import CellStore
from longca.lab.studies.study import load_study
from tests.helpers.records import record


@pytest.fixture
def folder(longca, tiny, tmp_path) -> Path:
    """Results of a study with a page, logs and one record."""
    folder = tmp_path / "results" / "tiny"
    CellStore(folder).write(record(load_study(str(tiny)).cells()[0], study="tiny"))
    (folder / "logs/run").mkdir(parents=True)
    (folder / "logs/run/worker1.log").write_text("x" * 3000)
    (folder / "report.html").write_text("page")
    (folder / "notes.txt").write_text("somebody's own")
    return folder


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_clean_says_what_and_asks_and_leaves_records(longca, tiny, folder, monkeypatch):
    content = json.loads(longca("clean", tiny, "--json").stdout)
    assert {Path(path).name for path in content["would_remove"]} == {"logs", "report.html"} and content[
        "num_bytes"
    ] == 3004
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    refused = longca("clean", tiny)
    assert (
        refused.returncode == 1
        and "2.93 KiB" in refused.stdout
        and names(folder) == {"cells", "logs", "report.html", "notes.txt"}
    )
    done = longca("clean", tiny, "--yes")
    assert done.returncode == 0 and names(folder) == {"cells", "notes.txt"}
    assert "Nothing to remove" not in done.stdout and longca("clean", tiny, "--yes").returncode == 0


@pytest.mark.parametrize("stdin", [None, io.StringIO(""), io.StringIO("y\n")])
def test_clean_without_a_terminal_needs_yes(longca, tiny, folder, monkeypatch, stdin):
    before = names(folder)
    monkeypatch.setattr("sys.stdin", stdin)
    done = longca("clean", tiny)
    assert done.returncode == 2 and names(folder) == before
    assert done.stderr == (
        "longca: Nothing is removed: there is no terminal to ask at. Give `--yes` to remove without a "
        "question\n"
    )


def test_clean_removes_records_only_when_told(longca, tiny, folder):
    assert longca("clean", tiny, "--records", "--yes").returncode == 0
    assert names(folder) == {"notes.txt"}


def test_clean_waits_for_no_run(longca, tiny, folder):
    with CellStore(folder).lock():
        done = longca("clean", tiny, "--yes")
    assert done.returncode == 2 and "Another run" in done.stderr and "logs" in names(folder)


def test_report_of_a_file_as_json_and_in_a_browser(longca, tiny, folder, tmp_path, monkeypatch):
    opened = []
    page = tmp_path / "json.html"
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert longca("export", tiny).returncode == 0
    content = json.loads(longca("report", folder / "records.json", "--out", page, "--json", "--open").stdout)
    assert (content["num_records"], content["problems"], content["page"]) == (1, [], str(page))
    assert opened == [page.as_uri()] and page.stat().st_size > 10_000


def test_settings_name_where_they_come_from(longca, tmp_path):
    content = json.loads(longca("config", "show", "--json").stdout)
    assert content["settings"]["device"] == {"value": "cpu", "origin": "LONGCA_DEVICE"}
    assert content["settings"]["study"]["origin"] == "config/config.yaml" and content["folders"][
        "results"
    ] == str(tmp_path / "results")
    assert "LONGCA_DEVICE" in longca("config", "show").stdout


def test_version_and_short_help(longca):
    assert longca("--version").stdout == f"longca {__version__}\n"
    assert "Commands:" in longca("-h").stdout and "--heads" in longca("plan", "-h").stdout
