"""`longca compare` as a user calls it, and the pages it writes."""

import json
from pathlib import Path

import pytest

from longca.lab.store.export import export
from longca.lab.studies.outcome import Failed
from tests.helpers.compare import H200, cell, failed, timed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of records; in the second one cell is slower, one broke with an error that holds markup."""
    folder = tmp_path_factory.mktemp("runs")
    masks = ("causal", "full", "prefix_lm")
    broken = failed(
        Failed(type="RuntimeError", message="<script>alert(1)</script> | in\n[place]"), cell(mask="prefix_lm")
    )
    export([timed(asked=cell(mask=mask)) for mask in masks], folder / "a")
    export([timed(1.5, asked=cell(mask="causal")), timed(asked=cell(mask="full")), broken], folder / "b")
    return folder / "a", folder / "b"


def test_a_check_that_compares_nothing_does_not_pass(longca, runs, tmp_path):
    """Without conditions it is an answer like others."""
    export([timed(asked=cell(mask="shared_question"))], tmp_path / "other")
    for options, code in (((), 0), (("--fail-on", "broke"), 2), (("--fail-on", "new"), 1)):
        done = longca("compare", runs[0], tmp_path / "other", *options)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("Nothing was compared" in done.stderr) == (code == 2)
        assert len(done.stderr.strip().splitlines()) == (code == 2)
    assert longca("compare", runs[0], runs[0], "--fail-on", "broke").returncode == 0


def test_conclusion_first_and_80_columns(longca, runs):
    done = longca("compare", *runs, COLUMNS="80")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == "B is slower in 1 cell (worst 0.667×: fa3 causal 8K fwd), the same in 1; 1 broke."
    assert all(len(line) <= 80 for line in lines)
    assert "slower" in done.stdout and "RuntimeError: <script>" in done.stdout


def test_json_files_and_pages(longca, runs, tmp_path):
    a, b = (folder / name for folder, name in zip(runs, ("records.parquet", "records.json"), strict=True))
    html = tmp_path / "page" / "c.html"
    markdown = tmp_path / "c.md"
    done = longca(
        "compare",
        a,
        b,
        "--json",
        "--html",
        html,
        "--markdown",
        markdown,
        "--fail-on",
        "slower:10%,broke,gone",
    )
    assert done.returncode == 1, done.stderr
    content = json.loads(done.stdout)
    assert content["counts"] == {"slower": 1, "broke": 1, "same": 1}
    assert content["failed_on"] == ["slower:10%: 1 cell", "broke: 1 cell"]
    [slower] = [pair for pair in content["pairs"] if pair["outcome"] == "slower"]
    assert (
        slower["ratio"] == pytest.approx(2 / 3)
        and slower["a"]["time_ms"]["middle"] == 1.0
        and slower["b"]["device"] == H200
    )
    page = html.read_text()
    text = markdown.read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and "http" not in page.partition("<body>")[2]
    assert content["conclusion"] in page and "prefers-color-scheme: dark" in page
    assert (
        "<script" not in text
        and r"\| in \[place\]" in text
        and text.splitlines()[2].startswith("**B is slower")
    )


def test_filters_look_at_both_sides(longca, runs):
    content = json.loads(longca("compare", *runs, "-m", "full", "--json").stdout)
    assert content["counts"] == {"same": 1}
    assert longca("compare", *runs, "--fail-on", "broke", "-m", "!prefix_lm").returncode == 0


def test_several_files_and_published(longca, runs):
    files = f"{runs[0] / 'records.parquet'},{runs[0] / 'records.json'}"
    content = json.loads(longca("compare", files, runs[0], "--json").stdout)
    assert content["counts"] == {"same": 3} and content["conclusion"] == "B is the same in all 3 cells."
    done = longca("compare", runs[0], "published", COLUMNS="80")
    assert done.returncode == 0 and done.stdout.startswith("By share of peak, the published rate is")
    assert "MagiAttention: the page says H100" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["quik", "published"], ["Unknown study 'quik'", "'quick'"]),
        (["quick", "published"], ["There are no records in 'quick'", "longca run"]),
        (["published", "quick"], ["published numbers are no records"]),
        (["reports/h200/nosuch.parquet", "published"], ["nosuch.parquet"]),
        (["quick,reports/h200/h200-cp.parquet", "published"], ["'quick'", "only files go together"]),
        (["A", "published", "--fail-on", "slowr:3%"], ["Unknown condition 'slowr'", "'slower'"]),
        (["A", "published", "--tolerance", "much"], ["'much'", "percentage", "3%"]),
        (["A", "published", "-k", "nosuch"], ["nosuch", "fa3"]),
        (["A", "published", "--html", "."], ["Cannot write '.'"]),
    ],
)
def test_what_cannot_be(longca, runs, arguments, expected):
    done = longca("compare", *(str(runs[0]) if text == "A" else text for text in arguments))
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for part in expected:
        assert part in done.stderr
