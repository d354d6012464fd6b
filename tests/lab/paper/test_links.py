"""Links from the study's page to the records of the pages beside it."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from longca.lab.paper.build import exhibits
from longca.lab.paper.links import FILTERS, Link, links, run_pages
from longca.lab.report.content.packing import compressed
from longca.lab.report.rows import rows_json
from longca.lab.report.series import labelled
from longca.lab.store.table import derived
from longca.lab.studies.record import Record
from tests.helpers.records import gpu_study
from tests.helpers.report.few import few
from tests.helpers.support import ROOT


def _chosen(link: Link, records: list[Record]) -> list[str]:
    """The cells that the page's filters let pass."""
    asked: dict[str, set[str]] = {}
    for name, value in parse_qsl(urlsplit(link.address).fragment.partition("?")[2]):
        asked.setdefault(name, set()).add(value)
    assert asked.keys() <= FILTERS.keys()
    value = {
        "kind": lambda r: r.cell.kind,
        "method": lambda r: r.cell.method,
        "direction": lambda r: r.cell.direction,
        "status": lambda r: r.outcome.status,
        "world": lambda r: str(r.cell.world),
    }
    return [
        record.cell_id
        for record in records
        if all(value[name](record) in asked[name] for name in asked.keys() & value.keys())
    ]


def test_filters_let_the_cells_pass_and_hold_others_back(site: Path) -> None:
    pages = run_pages(site / "paper", ["quick"])
    records = few()
    wanted = [
        record.cell_id
        for record in records
        if record.cell.kind == "kernel"
        and record.cell.direction == "bwd"
        and record.outcome.status == "ok"
        and record.cell.method == "sdpa"
    ]
    (link,) = links(pages, wanted)
    assert (
        link.address.startswith("../runs/quick.html#records?")
        and link.text == f"{len(wanted)} records in quick"
    )
    assert sorted(_chosen(link, records)) == sorted(wanted)


def test_a_link_to_records_of_gpus_names_them() -> None:
    (page,) = run_pages(ROOT / "reports/paper", ["power"])
    assert page.gpus == "H200"
    (link,) = links([page], page.cell_ids[:1])
    assert link.text.startswith("1 record of H200 in power")


def test_a_link_says_among_how_many_its_records_stand(site: Path) -> None:
    """A filter knows no pairs: of two corners of a square it lets all four pass."""
    pages = run_pages(site / "paper", ["quick"])
    records = few()
    by = {
        (r.cell.method, r.cell.direction): r
        for r in records
        if r.cell.kind == "kernel" and r.cell.mask == "full" and r.outcome.status == "ok" and r.work is None
    }
    corners = [by["naive", "fwd"].cell_id, by["sdpa", "bwd"].cell_id]
    (link,) = links(pages, corners)
    assert re.fullmatch(r"2 records in quick, among \d+", link.text) and set(corners) < set(
        _chosen(link, records)
    )


def test_there_is_no_link_without_a_page_or_its_record(site: Path, tmp_path: Path) -> None:
    assert run_pages(tmp_path / "paper", ["quick"]) == [] and run_pages(site / "paper", ["h200", ""]) == []
    assert links(run_pages(site / "paper", ["quick"]), ["0" * 16]) == ()
    (tmp_path / "quick.html").write_text("<p>another's page")
    assert run_pages(tmp_path / "paper", ["quick"]) == []


def test_the_page_of_a_folder_of_results_is_found(site: Path, tmp_path: Path) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick/report.html").write_bytes((site / "runs/quick.html").read_bytes())
    (page,) = run_pages(tmp_path / "paper", ["quick"])
    assert page.address == "../quick/report.html" and set(page.cell_ids) == {
        record.cell_id for record in few()
    }


def test_a_study_has_a_page_for_each_model_of_gpu(site: Path, tmp_path: Path) -> None:
    """A contributed folder may hold the same study as another one. A model has one page of it."""
    for folder, gpu in (("h100", "NVIDIA H100"), ("x900", "NVIDIA X900"), ("x900-again", "NVIDIA X900")):
        records = [record for record in gpu_study(gpu)[:4] if record.environment]
        text = rows_json(records, labelled(derived(records)))
        (tmp_path / folder).mkdir()
        page = f'<script type="application/zlib" id="data">{compressed(text)}</script>'
        (tmp_path / folder / "dense.html").write_text(page, encoding="utf-8")
    pages = run_pages(tmp_path / "paper", ["dense"])
    assert [(page.address, page.gpus) for page in pages] == [
        ("../h100/dense.html", "H100"),
        ("../x900/dense.html", "X900"),
    ]


def test_exhibits_and_claims_link_to_their_records(text: str) -> None:
    found = [unescape(address) for address in re.findall(r'href="(\.\./runs/[^"]*#[^"]*)"', text)]
    ranked = [address for address in found if "#cell-" in address]  # of the chooser
    found = [address for address in found if address not in ranked]
    assert len(found) > 5 and all(address.startswith("../runs/quick.html#records?") for address in found)
    assert ranked and {address.partition("-")[2] for address in ranked} <= {one.cell_id for one in few()}
    table = derived(few())
    for exhibit in exhibits():
        data = exhibit.data(table)
        if len(data) and exhibit.needs_records and exhibit.cell_ids(data):
            part = text[text.index(f'<div class="exhibit" id="{exhibit.name}"') :].split(
                '<div class="exhibit"'
            )[1]
            assert "../runs/quick.html#records" in part, exhibit.name


def test_pages_of_runs_have_these_filters() -> None:
    report = ROOT / "longca/lab/report"
    assert (
        '<script type="application/zlib" id="data">{{ rows|safe }}</script>'
        in (report / "templates/page.html.j2").read_text()
    )
    script = (report / "static/records.js").read_text(encoding="utf-8")
    assert "facts.filters" in script, "it has no list of its own"
