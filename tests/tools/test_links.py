"""Links of all committed pages lead somewhere, and those to other sites are well-formed and listed here."""

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tools.links import dead, external, malformed, pages

# a name that is not here is a typing error, or a site that somebody should have looked at
SITES = {
    "arxiv.org",
    "docs.flashinfer.ai",
    "docs.nvidia.com",
    "docs.pytorch.org",
    "download.pytorch.org",
    "github.com",
    "jedisct1.github.io",
    "keepachangelog.com",
    "pypi.org",
    "semver.org",
    "snakedeploy.readthedocs.io",
    "www.nvidia.com",
}


@pytest.mark.long
def test_every_link_of_every_page_leads_somewhere() -> None:
    every = pages()
    assert {".md", ".html", ".ipynb"} == {page.suffix for page in every} and len(every) > 60
    assert [link for page in every for link in dead(page)] == []


def test_other_sites_are_listed() -> None:
    assert {urlsplit(address).netloc for address in external()} == SITES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text("# One heading\n\n## `Twice`\n\n## Twice\n\n```\n# no heading\n```\n")
    record = "0123456789abcdef"
    page = f'<p id="records"></p><script type="application/json">["{record}"]</script>'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("page.md", ""),
        ("page.md#twice-1", ""),
        ("page.html#records?method=band", ""),
        ("page.html#cell-0123456789abcdef", ""),
        ("https://arxiv.org/abs/2510.17896", ""),
        ("#here", ""),
        ("pages.md", "is not there"),
        ("page.md#no-heading", "has nothing of that name"),
        ("page.md#twice-2", "has nothing of that name"),
        ("page.html#cell-fedcba9876543210", "has nothing of that name"),
        ("page.html#record", "has nothing of that name"),
        ("http://arxiv.org/abs/2510.17896", "is not https"),
        ("https://arxiv/abs/2510.17896", "has no proper host"),
        ("https://arxiv.org/abs/2510.17896.", "has signs that no address has"),
    ],
)
@pytest.mark.parametrize("ending", ["md", "html", "ipynb"])
def test_a_dead_link_is_seen(folder: Path, address: str, said: str, ending: str) -> None:
    text = {
        "md": f"# Here\n\n`[code](nowhere.md)` [words]({address})\n",
        "html": f'<h1 id="here">Here</h1><a href="{address}">words</a>',
        "ipynb": f'{{"cells": [{{"cell_type": "markdown", "source": ["# Here\\n", "[words]({address})"]}}]}}',
    }[ending]
    source = folder / f"source.{ending}"
    source.write_text(text, encoding="utf-8")
    assert [link.partition(f"{address} ")[2] for link in dead(source)] == ([said] if said else [])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_to_a_file_that_git_ignores_is_dead(tmp_path: Path, is_there: bool) -> None:
    """A clone lacks the file, whether or not it lies here."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("/made.*\n")
    for name in ("kept.csv", "made.csv")[: 1 + is_there]:
        (tmp_path / name).touch()
    page = tmp_path / "page.html"
    page.write_text('<a href="made.csv">words</a><a href="kept.csv">words</a><a href="../else.csv">words</a>')
    assert [link.partition("made.csv")[2] for link in dead(page) if "made.csv" in link] == [
        " is ignored by git, so that no clone has it"
    ]
    assert not any("kept.csv" in link for link in dead(page))


def test_mail_and_data_are_no_sites() -> None:
    assert malformed("mailto:a@b.org") == "" and malformed("data:,") == ""
