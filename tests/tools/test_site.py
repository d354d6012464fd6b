"""The web site: each page has its place, the API pages have each public name, and MkDocs finds nothing to
complain of."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import longca
from longca.core.plugin import KINDS
from tests.helpers.support import ROOT, cannot
from tools import site


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a function."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def _places(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [each for entry in (nav if isinstance(nav, list) else nav.values()) for each in _places(entry)]


def test_each_page_has_one_place():
    places = _places(yaml.load(site.SETTINGS.read_text(encoding="utf-8"), _Loader)["nav"])
    pages = [path.relative_to(ROOT).as_posix() for pattern in site.PAGES for path in ROOT.glob(pattern)]
    assert sorted(places) == sorted([*pages, *site.API])


def test_the_api_has_each_public_name_and_contract():
    assert [f"::: longca.{name}" in site.face_page() for name in longca.__all__] == [True] * len(
        longca.__all__
    )
    page = site.plugins_page()
    assert all(f"::: {kind.contract.replace(':', '.')}\n" in page for kind in KINDS.values())


def test_what_pages_link_to_lies_at_its_place(tmp_path: Path):
    site.gather(tmp_path / "source")
    for name in ("README.md", "LICENSE", "docs/pictures/heat-map-light.svg", "config/README.md"):
        assert (tmp_path / "source" / name).read_bytes() == (ROOT / name).read_bytes()
    page = "reports/paper/index.html"  # documents have other names on the site
    text = (ROOT / page).read_text(encoding="utf-8")
    is_same = (tmp_path / "source" / page).read_text(encoding="utf-8") == site.DOCUMENT.sub(r"\1.html", text)
    assert is_same, page  # the difference of long lines takes minutes


def test_the_lock_has_the_packages_of_the_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    lock = site.LOCK.read_text()
    assert all(f"{text.split('>=')[0].split('[')[0]}==" in lock for text in extras)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning():
    done = subprocess.run(
        [sys.executable, "-m", "tools.site", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "index" in done.stderr and "pip" in done.stderr:
        cannot("index", done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("site: ")[-1].split()[0]) > 60
