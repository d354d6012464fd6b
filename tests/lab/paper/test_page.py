"""The study's page: every exhibit, claim, mask and repair, made from records alone."""

import csv
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.lab.claims.contract import AS_STUDY, REPAIRED, STUDY, all_claims
from longca.lab.claims.parts import MEANINGS
from longca.lab.paper.build import build_paper, exhibits
from longca.lab.paper.facts import gallery
from longca.lab.paper.repairs import REPAIRS
from longca.lab.report.index import write_index
from tests.helpers.report.few import few
from tests.helpers.support import ROOT


class Ids(HTMLParser):
    """The ids of a page, and the places in it that its links name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name == "href" and value:
                self.links.append(value)


def test_no_exhibit_fails(text: str) -> None:
    assert "could not be made" not in text


def test_it_begins_with_what_the_claims_say(text: str) -> None:
    lead = re.search(r'<p class="lead">([^<]*)', text)
    assert lead is not None and re.match(r"23 claims, as the study has it: .*open", lead[1])
    for claim in Registry("claim").load_all():
        assert f'id="claim-{claim.number}"' in text


def test_each_claim_has_both_verdicts_and_says_how_it_is_known(text: str, page: Path) -> None:
    section = text.partition('<section id="claims">')[2].partition("</section>")[0]
    assert f'href="{STUDY}"' in section and all(meaning in section for meaning in MEANINGS.values())
    articles = section.split("<article")[1:]
    for claim, article in zip(all_claims(), articles, strict=True):
        assert f"Source: {claim.source}.".replace("'", "&#39;") in article
        assert (
            "As the study has it: " in article and "With repaired code and today&#39;s kernels: " in article
        )
    with (page.parent / "data/claims.csv").open() as file:
        readings = [(row["number"], row["reading"]) for row in csv.DictReader(file)]
    assert readings[:2] == [("1", AS_STUDY), ("1", REPAIRED)] and len(readings) == 2 * len(articles)


def test_all_masks_and_repairs_are_there(text: str) -> None:
    assert len(gallery().masks) == 14 and all(
        f"<b>{mask.pattern.number}. {mask.pattern.label}</b>" in text for mask in gallery().masks
    )
    assert [repair.number for repair in REPAIRS] == list(range(1, 22))
    assert all(f'id="repair-{repair.number}"' in text for repair in REPAIRS)


def test_links_lead_somewhere(text: str, page: Path) -> None:
    ids = Ids(text)
    assert len(ids.ids) == len(set(ids.ids))
    for link in ids.links:
        if link.startswith("#"):
            assert link[1:] in ids.ids
        elif not link.startswith(("data:", "https:")):
            assert (page.parent / link.partition("#")[0]).is_file(), link


def test_nothing_is_fetched(text: str) -> None:
    assert "default-src 'none'" in text
    assert not re.search(r'(?:src|xlink:href)="(?!data:|#)', text)


def test_each_finding_names_its_subject(text: str) -> None:
    """No two headings of exhibits begin alike, and none begins with a direction or a number alone."""
    headings = [
        re.sub(r"<[^>]+>", "", heading) for heading in re.findall(r"<h3>(.*?)<a class", text, re.DOTALL)
    ]
    starts = [re.split(r":| on | at least ", heading.strip())[0] for heading in headings]
    assert len(starts) > 10 and len(set(starts)) == len(starts), starts
    assert not [start for start in starts if start in ("Forward", "Backward", "In numbers", "Of all")]
    assert any(start.startswith("Dense kernels, forward") for start in starts)


def test_an_exhibit_without_data_is_not_there(text: str) -> None:
    shown = set(Ids(text).ids)
    assert "corpora" in shown and "dense_heads" not in shown, "the records have one choice of heads"
    assert "dense_forward" in shown


def test_data_lie_beside_it(page: Path) -> None:
    with (page.parent / "data/dense_forward.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} >= {"naive", "sdpa"} and all(row["cell_ids"] for row in rows)
    assert (page.parent / "data/records.parquet").stat().st_size > 0


def test_files_that_no_clone_has_are_named_and_not_linked(text: str) -> None:
    assert "<code>records.parquet</code>" in text and "<code>make paper</code>" in text
    assert not re.search(r'href="data/records\.', text)


def test_no_mark_of_code_reaches_a_reader(text: str) -> None:
    words = re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>", "", text, flags=re.DOTALL)
    assert "`" not in words


@pytest.mark.long
def test_same_records_same_bytes_without_torch(page: Path) -> None:
    """In any order, in another process, which needs no torch."""
    folder = page.parent.parent / "again"
    code = (
        "import sys; from pathlib import Path; from tests.helpers.report.few import DAMAGED, few; "
        "from longca.lab.paper.build import build_paper;"
        f"build_paper(reversed(few()), [DAMAGED], Path({str(folder)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
    assert (folder / page.name).read_bytes() == page.read_bytes()
    for path in (page.parent / "data").iterdir():
        assert (folder / "data" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_damaged_file_is_named(text: str) -> None:
    assert "1 file or rows could not be read" in text and "ab12cd34.json" in text


def test_without_records_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no records"):
        build_paper([], [], tmp_path / "paper")


def test_a_bad_exhibit_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paper_figures").mkdir()
    (tmp_path / "paper_figures/broken.py").write_text('''"""It fails."""
from longca.lab.paper.contract import PaperTable
class Broken(PaperTable):
    label, section, needs_records = "Broken", "beyond", False
    def data(self, table):
        raise ValueError("no such column")
''')
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    monkeypatch.setattr(
        "longca.lab.paper.build.exhibits",
        lambda: [exhibit for exhibit in exhibits() if exhibit.name == "broken"],
    )
    text = build_paper(few()[:1], [], tmp_path / "paper").read_text()
    assert "It could not be made: ValueError: no such column" in text


def test_every_exhibit_says_what_it_is() -> None:
    for exhibit in exhibits():
        assert exhibit.label and exhibit.section and (exhibit.caption or exhibit.name == "broken")


def test_an_index_names_the_pages(page: Path, tmp_path: Path) -> None:
    made = write_index(page.parent.parent)
    assert made is not None
    index = made.read_text()
    assert '<a href="paper/index.html">' in index and "23 claims" in index
    (tmp_path / "index.html").write_text("another's page")
    assert write_index(tmp_path) is None and (tmp_path / "index.html").read_text() == "another's page"


@pytest.mark.slow
def test_the_committed_records_make_it_whole(tmp_path: Path) -> None:
    from longca.lab.cli.records import open_runs

    loaded = open_runs([])
    assert not loaded.problems
    text = build_paper(loaded.records, [], tmp_path / "paper").read_text()
    shown = set(Ids(text).ids)
    assert {exhibit.name for exhibit in exhibits()} <= shown and "could not be made" not in text
    assert len(text.encode()) < 4_000_000
