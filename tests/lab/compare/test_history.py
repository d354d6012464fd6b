"""Histories of methods over versions: which cells are shared, and which records are never put together."""

import json
from pathlib import Path
from typing import Any

import pytest

from longca.lab.compare.history import HistorySource, histories
from longca.lab.compare.history_text import conclusion, history_blocks, history_lines
from longca.lab.compare.page import history_page
from longca.lab.compare.tables import Described
from longca.lab.compare.verdict import Rule
from longca.lab.store.export import export
from longca.lab.studies.outcome import OutOfMemory
from longca.lab.studies.record import Record
from tests.helpers.compare import H100, H200, cell, failed, timed

MASKS = ("causal", "full", "prefix_lm")


def ran_with(record: Record, *, rests: bool = False, **packages: str) -> Record:
    """The record with these packages' versions."""
    assert record.environment and record.samples
    versions = {name.replace("_", "-"): version for name, version in packages.items()}
    software = record.environment.software
    software = software.model_copy(update={"packages": {**software.packages, **versions}})
    return record.model_copy(
        update={
            "environment": record.environment.model_copy(update={"software": software}),
            "samples": record.samples.model_copy(update={"duty": 0.5 if rests else None}),
        }
    )


def version(torch: str, ms: float = 1.0, masks: tuple[str, ...] = MASKS, **fields: Any) -> list[Record]:
    rests = fields.pop("rests", False)
    asked = fields.pop("asked", {})
    return [
        ran_with(timed(ms, asked=cell(mask=mask, **asked), **fields), rests=rests, torch=torch)
        for mask in masks
    ]


def sources(*versions: list[Record]) -> list[HistorySource]:
    return [HistorySource(f"v{number}", records) for number, records in enumerate(versions, 1)]


def test_each_version_is_compared_with_the_first_over_the_cells_that_all_share():
    slow = version("2.9.1", 2.0)
    fast = version("2.11.0", 1.0)
    middle = [
        *version("2.10.0", 2.0, MASKS[:2]),
        failed(OutOfMemory(requested_bytes=1, where="fwd"), cell(mask=MASKS[2])),
    ]
    (history,) = histories(sources(slow, middle, fast)).entries
    assert (history.num_cells, history.num_unshared) == (2, 1)
    assert [dict(each.software)["torch"] for each in history.versions] == ["2.9.1", "2.10.0", "2.11.0"]
    assert history.changing == ("torch",) and history.versions[0].lead is None
    leads = [each.lead for each in history.versions[1:]]
    assert [lead and pytest.approx(lead.ratio) for lead in leads] == [1.0, 2.0]
    last = history.last.lead
    assert last and 1 < last.low < 2 < last.high and not last.is_tie
    assert leads[0] and leads[0].is_tie


def test_gpus_protocols_and_masks_are_never_put_together():
    first = [*version("2.9.1"), *version("2.9.1", 3.0, gpu=H100), *version("2.9.1", 5.0, rests=True)]
    second = [*version("2.10.0"), *version("2.10.0", 3.0, gpu=H100)]
    third = [*version("2.11.0"), *version("2.11.0", 5.0, ("causal",), rests=True)]
    comparison = histories(sources(first, second, third))
    letters = {
        (entry.device, entry.rests): "".join(each.letter for each in entry.versions)
        for entry in comparison.entries
    }
    assert letters == {(H200, False): "ABC", (H100, False): "AB", (H200, True): "AC"}
    leads = [each.lead for entry in comparison.entries for each in entry.versions if each.lead]
    assert len(leads) == 4 and all(lead.ratio == pytest.approx(1) for lead in leads)
    assert conclusion(comparison).count("tied with A") == 3
    others = [timed(asked=cell(mask=mask), digest="1" * 16) for mask in MASKS]
    drawn_anew = [ran_with(record, torch="2.11.0") for record in others]
    apart = histories(sources(version("2.9.1"), drawn_anew))
    assert not apart.entries and list(apart.alone) == [
        "no two versions timed the same cell under the same mask"
    ]
    assert conclusion(apart) == "No method has two versions that timed the same cell."


def test_a_source_with_two_versions_counts_as_two():
    """Cells measured again with a new torch do not stand for the old one; a version without a shared
    cell is left out, and named."""
    both = [
        *version("2.9.1", 2.0, started_at="2026-11-20T10:00:00Z"),
        *version("2.10.0", 1.0, started_at="2026-11-21T10:00:00Z"),
    ]
    (history,) = histories(sources(both, version("2.11.0", 1.0))).entries
    assert [each.letter for each in history.versions] == ["A1", "A2", "B"]
    stray = version("2.12.0", 1.0, ("full_document",))
    (history,) = histories(sources(both, version("2.11.0", 1.0), stray)).entries
    assert history.left_out == ("C",) and history.num_cells == 3 and history.num_unshared == 0


def test_only_software_that_the_method_runs_on_makes_a_version():
    rest = version("2.11.0", 1.0, MASKS[1:])
    records = [ran_with(version("2.11.0")[0], flashinfer_python="0.7"), *rest]
    (history,) = histories(sources(records, rest + version("2.11.0", masks=MASKS[:1]))).entries
    assert [each.letter for each in history.versions] == ["A", "B"] and history.changing == ()


def test_the_command_says_it_in_a_sentence_a_table_a_page_and_json(longca, tmp_path: Path):
    for name, torch, ms in (("a", "2.9.1", 2.0), ("b", "2.10.0", 2.0), ("c", "2.11.0", 1.9)):
        matmul = [ran_with(timed(ms, asked=cell(kernel="matmul", mask="full")), torch=torch)]
        export(
            [*version(torch, ms), *version(torch, ms, asked={"direction": "bwd"}), *matmul], tmp_path / name
        )
    html = tmp_path / "page.html"
    markdown = tmp_path / "page.md"
    files = [tmp_path / name / "records.parquet" for name in "abc"]
    done = longca("compare", *files, "--html", html, "--markdown", markdown, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fa3 forward: C is") and all(len(line) <= 80 for line in lines)
    assert "fa3 backward: 3 cells, TFLOP/s per device" in done.stdout and "●" in done.stdout
    told = json.loads(longca("compare", *files, "--json").stdout)
    assert {entry["direction"] for entry in told["histories"]} == {"fwd", "bwd"}
    last = told["histories"][0]["versions"][-1]
    assert last["software"]["torch"] == "2.11.0" and last["low"] < last["ratio"] < last["high"]
    page = html.read_text()
    assert (
        told["conclusion"] in page and "torch 2.10.0" in page and "<script" not in page and "matmul" in page
    )
    assert f"**{told['conclusion']}" in markdown.read_text().replace("\\", "")
    two = json.loads(longca("compare", *files[:2], "--history", "--json").stdout)
    assert [len(entry["versions"]) for entry in two["histories"]] == [2, 2]
    assert "histories" not in json.loads(longca("compare", *files[:2], "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["F", "F", "published"], "published numbers have no versions"),
        (["F", "F", "F", "--fail-on", "slower"], "'--fail-on' is not for several versions"),
        (["F", "F", "F", "--by-rate"], "'--by-rate'"),
        (["F", "F", "nosuch.parquet"], "nosuch.parquet"),
        (["F"], "Missing argument"),
    ],
)
def test_what_cannot_be(longca, tmp_path: Path, arguments, expected):
    export(version("2.9.1"), tmp_path / "a")
    done = longca("compare", *(str(tmp_path / "a") if text == "F" else text for text in arguments))
    assert done.returncode == 2 and expected in done.stderr


def test_figures_share_one_scale():
    comparison = histories(sources(version("2.9.1", 2.0), version("2.10.0", 1.0), version("2.11.0", 4.0)))
    (block,) = history_blocks(comparison, 80)
    first, fast, slow = (row.index("●") for row in block.splitlines()[1:])
    assert slow < first < fast and fast - first == first - slow
    assert conclusion(comparison).startswith("fa3 forward: C is 50 % slower than A (")


def test_versions_on_a_device_without_known_repeats_are_not_told_apart():
    """Not even by the repeats of another model; a tolerance stands in."""
    versions = [version("2.9.1", 2.0, gpu="NVIDIA Nameless"), version("2.11.0", 1.0, gpu="NVIDIA Nameless")]
    known = histories(sources(*versions))
    sides = [Described("A", "old"), Described("B", "new")]
    assert conclusion(known) == "fa3 forward: B is 2.00× A, not told apart, over 3 cells."
    text = "\n".join((*history_lines(known, sides), *history_blocks(known, 80)))
    assert "fewer than 20 repeats are known of one device in one run (NVIDIA Nameless)" in text
    assert "2.00× (too few repeats)" in text and "H200" not in text and "H100" not in text
    json.dumps(known.as_dict(), allow_nan=False)
    assert "2.00× (too few repeats)" in history_page(known, sides)
    (judged,) = histories(sources(*versions), rule=Rule(0.1)).entries
    assert judged.last.order(Rule(0.1)) == "faster"
