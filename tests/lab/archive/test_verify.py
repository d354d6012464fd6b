"""A bundle is checked: what is whole passes, each kind of change is named."""

import base64
import json
import re
import shutil
import zlib
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.archive import verify as checking
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.manifest import read_manifest
from longca.lab.archive.packing import opened
from longca.lab.archive.page import page_files
from longca.lab.archive.verify import verify
from longca.lab.store.rows.load import load_rows
from tests.helpers.archive import rehash

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made_again(bundle, tmp_path_factory) -> dict[str, Path]:
    """The page and its files, made from the bundle's records."""
    with opened(bundle.path) as (place, _):
        facts = json.loads((place / "provenance.json").read_text())
        return page_files(
            load_rows(place / "measured/records.parquet"),
            facts["title"],
            place / "config/hardware.yaml",
            (),
            tmp_path_factory.mktemp("page"),
        )


@pytest.fixture
def page_is_made(monkeypatch, made_again):
    """Records are those of the bundle, so their page need not be made once more."""
    monkeypatch.setattr(checking, "page_files", lambda *_: made_again)


@pytest.fixture
def folder(bundle, tmp_path) -> Path:
    with opened(bundle.path) as (place, _):
        return Path(shutil.copytree(place, tmp_path / "unpacked"))


def checks(folder: Path) -> dict[str, checking.Check]:
    return {check.name: check for check in verify(folder)}


def changed(folder: Path) -> tuple[str, ...]:
    return checking._files(folder, read_manifest((folder / MANIFEST).read_bytes())).differences


def test_a_whole_bundle_passes(folder):
    assert all(check.passed and not check.differences for check in verify(folder))


def test_use_leaves_nothing_to_complain_of(folder):
    for place in ("results/three/cells", ".venv/bin", ".snakemake/log", "longca/core/__pycache__"):
        (folder / place).mkdir(parents=True)
        (folder / place / "file").write_text("x")
    assert not changed(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: (folder / "Snakefile").write_text("rule all: input: 'x'"), "Snakefile was changed"),
        (lambda folder: (folder / "measured/records.csv").unlink(), "measured/records.csv is missing"),
        (lambda folder: (folder / "longca/more.py").write_text(""), "longca/more.py is not in the manifest"),
    ],
)
def test_changed_files_are_named(folder, change, expected):
    change(folder)
    assert changed(folder) == (expected,)


@pytest.mark.usefixtures("page_is_made")
def test_a_changed_page_is_found_behind_good_hashes(folder):
    page = folder / "measured/report.html"
    page.write_text(page.read_text().replace("Three cells", "Four cells"))
    rehash(folder)
    checked = checks(folder)
    assert checked["files"].passed and checked["records"].passed and not checked["page"].passed
    assert "report.html" in checked["page"].detail and "were changed" in checked["page"].differences[0]


@pytest.mark.usefixtures("page_is_made")
def test_a_page_whose_data_another_zlib_compressed_is_the_same(folder):
    page = folder / "measured/report.html"
    kept = page.read_text(encoding="utf-8")

    def compressed_less(match: re.Match[str]) -> str:
        content = zlib.decompress(base64.b64decode(match[2]))
        return match[1] + base64.b64encode(zlib.compress(content, 1)).decode()

    other = re.sub(r'(<script type="application/zlib" id="[a-z]+">)([^<]*)', compressed_less, kept)
    assert other != kept
    page.write_text(other, encoding="utf-8")
    rehash(folder)
    assert checks(folder)["page"].passed
    page.write_text(re.sub(r'(id="facts">)[^<]*', r"\1eJwDAAAAAAE=", other), encoding="utf-8")
    rehash(folder)
    assert not checks(folder)["page"].passed


@pytest.mark.usefixtures("page_is_made")
def test_provenance_that_says_other_things_than_the_records_is_found_behind_good_hashes(folder):
    place = folder / "provenance.json"
    facts = json.loads(place.read_text())
    facts["statuses"] = {"ok": 2, "error": 1}
    facts["nodes"][0]["what"]["cpu"] = "another CPU"
    place.write_text(json.dumps(facts))
    rehash(folder)
    checked = checks(folder)
    assert checked["files"].passed and [
        line.rpartition(" ")[2] for line in checked["records"].differences
    ] == ["statuses", "nodes"]


@pytest.mark.usefixtures("page_is_made")
def test_what_draws_otherwise_is_named(folder, monkeypatch):
    maker = checking.provenance.page_maker()
    other = maker.model_copy(update={"code": "0" * 12, "packages": maker.packages | {"matplotlib": "0.1"}})
    monkeypatch.setattr(checking.provenance, "page_maker", lambda: other)
    page = folder / "measured/report.html"
    page.write_text(page.read_text() + " ")
    causes = checks(folder)["page"].differences
    assert len(causes) == 2 and "other code of longca" in causes[0] and causes[1].endswith("0.1 here")


def test_a_damaged_table_of_records_is_no_crash(folder):
    (folder / "measured/records.parquet").write_bytes(b"PAR1")
    checked = checks(folder)
    assert [name for name, check in checked.items() if check.passed] == ["study"]


@pytest.mark.parametrize(
    ("name", "content"), [(MANIFEST, "no digest"), ("provenance.json", '{"bundle_version": 2}')]
)
def test_what_describes_the_bundle_must_be_readable(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        verify(folder)
