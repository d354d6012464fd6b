"""The page is one small, repeatable file, beside which only its own files lie."""

import re
import subprocess
import sys

import pytest

from longca.core.errors import UserError
from longca.lab.report import build as building
from longca.lab.report.build import MAX_BYTES, build
from longca.lab.report.index import write_index
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.studies.outcome import Unavailable
from tests.helpers.records import quick_study, record
from tests.helpers.report.few import DAMAGED, few
from tests.helpers.report.outline import Outline
from tests.helpers.support import ROOT


def test_it_is_small(page):
    assert page.stat().st_size < MAX_BYTES / 2


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """Three pages side by side, by name: of strategies and kernels, of kernels alone, of kernels without a
    product."""
    folder = tmp_path_factory.mktemp("beside")
    parallel = next(entry.cell for entry in few() if entry.cell.kind == "cp")
    alone = [
        parallel.model_copy(update={"kind": "kernel", "strategy": None, "world": 1, "kernel": kernel})
        for kernel in ("sdpa", "naive")
    ]
    cells = [*(parallel.model_copy(update={"strategy": strategy}) for strategy in ("ulysses", "usp")), *alone]
    kernels = [entry for entry in few() if entry.cell.kind == "kernel" and entry.cell.mask == "full"]
    copy = [entry for entry in kernels if entry.cell.kernel != "matmul"]
    chosen = {"both": [record(cell) for cell in cells], "alone": kernels, "copy": copy}
    return {
        name: build(records, [], folder / f"{name}.html", study_title="x") for name, records in chosen.items()
    }


@pytest.mark.long
def test_kernels_and_strategies_have_rankings_of_their_own(text, beside):
    """The strategies' stands first; one strategy alone is ahead of nobody, and has none."""
    assert re.findall(r'<section id="(fastest[a-z-]*)">', text) == ["fastest"]
    both, alone, partial = (path.read_text(encoding="utf-8") for path in beside.values())
    assert (
        re.findall(r'<section id="(fastest[a-z-]*)">', both) == ["fastest-cp", "fastest"]
        and "The fastest strategies" in both
    )
    assert re.findall(r'<section id="(fastest[a-z-]*)">', alone) == ["fastest"] and "Who is fastest" in alone
    assert (
        "No product was measured" in partial
        and "its share of the" not in partial
        and "No product was measured" not in alone
    )


@pytest.mark.long
def test_the_archive_makes_it_again_in_any_order_without_torch(few_page, tmp_path):
    """In another process. The slow run has order and archive each by itself."""
    archive = few_page.parent / "records.parquet"
    again = tmp_path / "report.html"
    code = (
        "import sys; from pathlib import Path; from longca.lab.report.build import build; from "
        "longca.lab.store.load import load;"
        "from tests.helpers.report.few import DAMAGED;"
        f"build(load({str(archive)!r}).records[::-1], [DAMAGED], Path({str(again)!r}), study_title='Few & "
        f"<plain>');"
        "never = ('torch', 'triton', 'longca.masks', 'longca.kernels', 'longca.cp', 'longca.lab.bench');"
        "print([name for name in never if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    check_same_files(again, few_page)


@pytest.mark.slow
@pytest.mark.parametrize("archived", [False, True])
def test_the_whole_page_again(archived, page, tmp_path):
    records = load(page.parent / "records.parquet").records if archived else quick_study()[::-1]
    check_same(records, page, tmp_path, "Quick & <plain>")


def check_same(records, page, folder, title):
    check_same_files(build(records, [DAMAGED], folder / "report.html", study_title=title), page)


def check_same_files(again, page):
    assert again.read_bytes() == page.read_bytes()
    for figure in (page.parent / "figures").iterdir():
        assert (again.parent / "figures" / figure.name).read_bytes() == figure.read_bytes()


@pytest.mark.usefixtures("no_figures")
def test_other_records_beside_the_page_stay_and_are_not_offered(tmp_path):
    kept = export(quick_study()[:2], tmp_path)[0].read_bytes()
    text = build(quick_study()[:1], [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    assert (tmp_path / "records.parquet").read_bytes() == kept
    assert 'href="records.parquet"' not in text and "longca export" in text


def test_a_page_of_another_name_stands_alone(beside):
    """Two of them side by side would overwrite each other's figures, and links would lead to the other's."""
    assert sorted(path.name for path in beside["both"].parent.iterdir()) == [
        "alone.html",
        "both.html",
        "copy.html",
    ]
    for page in beside.values():
        assert all(
            link.startswith(("#", "https://")) for link in Outline(page.read_text(encoding="utf-8")).links
        )


@pytest.mark.long
def test_a_page_names_the_files_of_its_records_that_lie_beside_it_and_no_others(tmp_path):
    """By the names that they have, and itself by its own."""
    (tmp_path / "other").mkdir()
    files = [tmp_path / "h 200.parquet", tmp_path / "other" / "more.parquet"]
    for file in files:
        file.touch()

    def text(*sources):
        made = build(few()[-4:], [], tmp_path / "h200.html", study_title="x", sources=sources).read_text(
            encoding="utf-8"
        )
        assert "records.csv" not in made and "records.parquet" not in made and "report.html" not in made
        return made

    whole = text(files[0])
    assert (
        "h%20200.parquet" in Outline(whole).links
        and "the same rows are in h 200.parquet beside this page" in whole
    )
    assert (
        "longca report &#39;h 200.parquet&#39; --out h200.html" in whole
        and "columns of h 200.parquet" in whole
    )
    part = text(*files)
    assert (
        "h%20200.parquet" in Outline(part).links
        and "some of the records of this page" in part
        and "rebuilds this page" not in part
    )
    assert "the same rows are in the files that it was made from" in part and "more.parquet" not in part
    assert "no side files" in text(files[1]) and "no side files" in text()


@pytest.mark.long
def test_a_page_links_to_the_pages_above_it_that_are_there(tmp_path):
    def links():
        page = build(few()[-4:], [], tmp_path / "h200" / "h200.html", study_title="x")
        return [link for link in Outline(page.read_text(encoding="utf-8")).links if link.startswith("..")]

    assert links() == []
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "index.html").write_text("<p>A page of somebody else.</p>")
    assert write_index(tmp_path) and links() == ["../index.html"] * 2, (
        "what this project did not make is none of them"
    )
    (tmp_path / "paper" / "index.html").write_text('<meta name="generator" content="longca 1">')
    assert links() == ["../index.html", "../index.html", "../paper/index.html"], (
        "in the top bar, and both in the summary"
    )
    index = write_index(tmp_path)
    assert index is not None and Outline(index.read_text(encoding="utf-8")).links == [
        "paper/index.html",
        "h200/h200.html",
    ]


def test_a_folder_in_the_pages_place_is_told_before_anything_is_written(tmp_path):
    (tmp_path / "page").mkdir()
    with pytest.raises(UserError, match="folder"):
        build(quick_study()[:2], [], tmp_path / "page", study_title="x")
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_nothing_but_failures_is_a_page_too(tmp_path):
    cells = [entry.cell for entry in quick_study()]
    records = [
        record(cell, Unavailable(reason="no such thing"), environment=None) for cell in cells[:2] + cells[-2:]
    ]
    text = build(records, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    Outline(text)
    assert "0 of 4" in text and "no such thing" in text
    assert "<figure" not in text and 'id="decide"' not in text and 'id="views"' not in text
    assert not re.search(r'(id="|href="#)(dense|sparse|cp|memory|accuracy)"', text), (
        "empty sections and their menu entries vanish"
    )


def test_no_records_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no records"):
        build([], [], tmp_path / "report.html", study_title="x")
    with pytest.raises(UserError, match="ab12cd34"):
        build([], [DAMAGED], tmp_path / "report.html", study_title="x")


@pytest.mark.long
def test_a_large_study_leaves_out_what_it_must(few_page, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "MAX_BYTES", few_page.stat().st_size // 2)
    text = build(few(), [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    assert "left out to keep it small" in text
    Outline(text)
