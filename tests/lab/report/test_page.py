"""The page is one whole, valid, repeatable file that hides nothing."""

import re
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser

import pytest

from longca.core.errors import UserError
from longca.core.hardware import load_hardware
from longca.lab.report import build as building
from longca.lab.report import rows, tables
from longca.lab.report.build import MAX_BYTES, build
from longca.lab.report.content.packing import compressed, page_data, unpacked
from longca.lab.report.content.page import Frame, PageData
from longca.lab.report.index import write_index
from longca.lab.report.look.masks import mask_drawings
from longca.lab.report.look.template import page_templates
from longca.lab.report.rows import anchors, rows_json
from longca.lab.report.series import labelled
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.store.table import derived, in_order
from longca.lab.studies.outcome import STATUSES, Unavailable
from longca.lab.studies.record import Record
from tests.helpers.records import gpu_study, quick_study, record
from tests.helpers.report import DAMAGED, few
from tests.helpers.support import ROOT

VOID = {"meta", "link", "br", "input", "hr", "img", "wbr"}


class Outline(HTMLParser):
    """Checks that elements close in order; gathers ids, links and what would be fetched."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.ids = []
        self.links = []
        self.fetched = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in named:
            self.ids.append(named["id"])
        if tag == "a":
            self.links.append(named["href"])
        else:
            self.fetched += [
                value
                for name, value in attributes
                if name in ("src", "href", "xlink:href", "data", "srcset") and value
            ]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(text):
    return Outline(text)


def test_it_is_small(page):
    assert page.stat().st_size < MAX_BYTES / 2


def test_it_is_well_formed(outline):
    assert len(set(outline.ids)) == len(outline.ids), "ids are unique"


def test_it_fetches_nothing(outline, text):
    assert all(value.startswith(("#", "data:")) for value in outline.fetched)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_links_lead_somewhere(outline, page):
    ids = set(outline.ids) | {
        f"cell-{entry.cell_id}" for entry in quick_study()
    }  # rows are made by the script
    for link in outline.links:
        if link.startswith("#"):
            assert link[1:].split("?")[0] in ids, link
        elif not link.startswith("http"):
            assert (page.parent / link).is_file(), link


def test_every_status_and_reason_is_told(text, outline):
    for status in STATUSES:
        assert f'href="#records?status={status}"' in text
    assert "FlexAttention has no backward on a CPU" in text and "stopped after 120 s" in text
    assert "Inplace &lt;update&gt; of an input" in text and "<update>" not in text


def test_damaged_files_are_named(text):
    assert f"<code>{DAMAGED.path}</code>: {DAMAGED.reason}" in text


def test_its_data_hold_every_record(text):
    data = page_data(text, "data")
    count = len(quick_study())
    assert len(set(unpacked(data["anchor"], count))) == count
    assert data["timer"]["names"] == ["monotonic", ""] and data["dtype"] == {"every": "bf16"}
    row = unpacked(data["status"], count).index("incorrect")
    numbers = {name: unpacked(data[name], count) for name in ("rate", "ms", "rate_order", "ms_order")}
    assert [values[row] for values in numbers.values()] == ["", "", None, None] and all(
        map(any, numbers.values())
    )


def test_it_says_whether_the_timer_can_be_trusted_and_what_the_device_can_do(text):
    timer, ceilings = re.search(r'id="timer">(.*?)id="ceilings">(.*?)</section>', text, re.DOTALL).groups()
    assert re.findall(r">([\d.]+ ms)</a>", timer) == ["0.5 ms", "1 ms", "2 ms"] and "matmul" not in timer
    assert re.findall(r">(\w+)</a>", ceilings) == ["matmul", "device_copy"]
    assert re.search(r"2K × 2K, bf16</td>.*?1\d\d\.\d GFLOP/s", ceilings, re.DOTALL)
    assert re.search(r"512 MiB read and written</td>.*?1[12]\.\d+ GB/s", ceilings, re.DOTALL)
    assert "Of the maker" not in ceilings, "no source says what this CPU can do"


@pytest.mark.usefixtures("no_figures")
def test_a_gpus_ceilings_are_held_against_its_maker(tmp_path):
    chosen = [
        entry
        for entry in gpu_study()
        if entry.work
        or (
            entry.cell.mask == "full"
            and entry.cell.seqlen == 8192
            and entry.cell.num_kv_heads == 8
            and entry.cell.direction == "fwd"
        )
    ]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    ceilings = re.search(r'id="ceilings">(.*?)</section>', text, re.DOTALL)[1]
    assert "Of the maker" in ceilings and len(re.findall(r">\d\d %</td>", ceilings)) == 3
    assert "% of ceiling" in text
    Outline(text)


def inside(entry: Record, image: str) -> Record:
    """The record as if it had been measured in an image, whose digest consists of these two letters; outside
    of any if empty."""
    assert entry.environment is not None
    contained = {"container": f"sha256:{image * 32}", "lock": f"sha256:{image[::-1] * 32}"} if image else {}
    software = entry.environment.software.model_copy(update=contained)
    return entry.model_copy(
        update={"environment": entry.environment.model_copy(update={"software": software})}
    )


@pytest.mark.parametrize(
    "images, finding",
    [
        (("", "", ""), ""),
        (("ab", "ab", "ab"), "3 cells were measured in 1 image"),
        (
            ("ab", "cd", "ab"),
            "3 cells were measured in 2 images: their software differs, and so can their numbers",
        ),
        (
            ("ab", "", ""),
            "1 cell was measured in 1 image, 2 outside of any: their software differs, and so can their "
            "numbers",
        ),
    ],
)
def test_records_of_several_images_are_told_apart(images, finding):
    used = tables.images(inside(entry, image) for entry, image in zip(gpu_study(), images, strict=False))
    assert tables.finding_of_images(used) == finding
    assert sum(use.num_cells for use in used) == (3 if finding else 0)


@pytest.mark.usefixtures("no_figures")
def test_a_page_of_several_images_warns_first_and_lists_them(tmp_path):
    chosen = [
        inside(entry, image) for entry, image in zip(gpu_study()[-9:], ("ab", "ab", "cd", ""), strict=False)
    ]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    warning, listed = re.search(
        r'<p class="warning"><svg.*?</svg>(.*?)</p>.*?id="images">(.*?)</table>', text, re.DOTALL
    ).groups()
    assert "3 cells were measured in 2 images, 1 outside of any" in warning and 'href="#images"' in warning
    assert re.findall(r"<td>(?:<code>)?(none|sha256:[a-d]{64})", listed)[:1] == [f"sha256:{'ab' * 32}"]
    assert listed.count("<tr>") == 4 and f"sha256:{'dc' * 32}" in listed
    Outline(text)


def test_without_controls_the_page_says_so(tmp_path):
    chosen = [entry for entry in gpu_study()[-9:] if entry.work is None]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    assert "nothing on this page validates the timer" in text and "shares of a ceiling are omitted" in text
    assert "of ceiling" not in text.split("<script", 2)[1] and 'href="#ceilings"' not in text
    Outline(text)


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
        "from tests.helpers.report import DAMAGED;"
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


@pytest.mark.long
def test_a_page_of_very_many_records_holds_some_of_them_and_says_so(tmp_path, monkeypatch):
    """Every record with twenty more draws: numbers are of all, the table has those that the page links to and
    some of each case."""
    monkeypatch.setattr(rows, "MOST_ROWS", 80)
    drawn = [entry for entry in few() if entry.cell.kind == "kernel" and entry.work is None]
    many = [*few(), *(_another_draw(entry, seed) for entry in drawn for seed in range(1, 21))]
    assert len(many) > 200
    page = build(many, [], tmp_path / "report.html", study_title="x")
    text = page.read_text(encoding="utf-8")
    data = page_data(text, "data")
    facts = page_data(text, "facts")
    held = set(unpacked(data["anchor"], 80))
    assert (
        len(held) == 80 and f"This page holds 80 of {len(many)} records" in text and facts["all"] == len(many)
    )
    assert {link.removeprefix("#cell-") for link in Outline(text).links if link.startswith("#cell-")} <= held
    assert {_case(entry) for entry in many} == {_case(entry) for entry in many if entry.cell_id in held}
    assert re.search(r"\d+\+?[\d+]*/21", " ".join(facts["rows"])), (
        "a point of 21 cells says how many of them are here"
    )
    assert "of them as dots" in text
    csv = (tmp_path / "figures/accuracy.csv").read_text().count("\n")
    assert csv - 1 == sum(entry.accuracy is not None and entry.work is None for entry in many), (
        "files have them all"
    )


def _case(entry):
    cell = entry.cell
    return cell.method, cell.mask, str(cell.mask_params), cell.direction, cell.seqlen, entry.outcome.status


def _another_draw(entry, seed):
    cell = entry.cell.model_copy(update={"seed": seed})
    cell.__dict__.pop("cell_id", None)
    return entry.model_copy(update={"cell": cell, "cell_id": cell.cell_id})


def test_it_decides_first(text):
    """Title, finding, map and ranking stand before all else, and without a script they show the default
    setting."""
    places = [
        text.index(part)
        for part in (
            "<h1>",
            '<p class="lead">',
            'id="map"',
            'id="ranking"',
            'class="statusbar"',
            'class="tiles"',
        )
    ]
    assert places == sorted(places)
    table = re.search(r'id="map".*?</table>', text, re.DOTALL)[0]
    assert (
        len(re.findall(r'class="case[^"]*best', table))
        == len(re.findall(r'scope="row"><button', table))
        == 15
    )
    assert "worst share" in table and re.search(r"<b>\d+</b><small>\d+ of 15</small>", table)
    assert 'id="switches" hidden' in text and re.search(r'id="verdict">(\w+ is first of \d|A tie of)', text)


def test_each_mask_is_drawn_once_and_used_everywhere(text, outline):
    drawn = set(re.findall(r'<symbol id="m-(\w+)"', text))
    assert drawn == {entry.cell.mask for entry in quick_study() if entry.work is None}
    assert {value[3:] for value in outline.fetched if value.startswith("#m-")} == drawn
    gallery = re.search(r'<section id="masks">.*?</section>', text, re.DOTALL)[0]
    assert gallery.count("<li>") == len(drawn) and "same document and j ≤ i" in gallery
    assert len(re.findall(r'<use href="#m-full"', text)) > 5


def test_a_mask_without_a_drawing_has_none():
    assert [drawing.name for drawing in mask_drawings(["causal", "of_a_plugin", "full"])] == [
        "causal",
        "full",
    ]


def test_a_cell_measured_twice_has_two_anchors():
    assert anchors(["a", "b", "a"]) == ["a", "b", "a-2"]


def test_data_cannot_end_their_script():
    entry = record(quick_study()[0].cell, notes=("</script><script>alert(1)</script>",))
    text = rows_json(in_order([entry]), labelled(derived([entry])))
    page = f'<script type="application/zlib" id="data">{compressed(text)}</script><b>'
    assert page.count("</script>") == 1
    assert page_data(page, "data")["notes"] == {"every": "</script><script>alert(1)</script>"}


def test_templates_read_what_the_page_has_and_nothing_else():
    """Every name that they use is a field, and every field is used."""
    from jinja2 import meta, nodes

    used = set()
    set_here = set()
    todo = ["page.html.j2"]
    done = set()
    while todo:
        done.add(name := todo.pop())
        tree = page_templates().parse(
            (ROOT / "longca/lab/report/templates" / name).read_text(encoding="utf-8")
        )
        used |= meta.find_undeclared_variables(tree)
        set_here |= {node.target.name for node in tree.find_all(nodes.Assign)}
        todo += [other for other in map(str, meta.find_referenced_templates(tree)) if other not in done]
    own = {field.name for part in (Frame, PageData) for field in fields(part)} - {"frame"}
    assert used - own - set_here == {"ui"}, "the macros"
    assert own - used == set()


def test_alike_machines_are_one_and_their_differences_are_kept():
    node = quick_study()[0].environment.nodes[0]
    nodes = [node.model_copy(update={"hostname": name}) for name in ("a", "b", "b")]
    chosen = [
        entry.model_copy(update={"environment": entry.environment.model_copy(update={"nodes": (own,)})})
        for entry, own in zip(quick_study(), nodes, strict=False)
    ]
    (group,) = tables.machines(chosen, load_hardware())
    assert group.differing == ("host",) and "CPU" in group.shared and group.num_cells == 3
    assert [(row.values, row.num_cells) for row in group.rows] == [(("a",), 1), (("b",), 2)]


def test_methods_say_what_they_are_without_being_imported(text):
    section = re.search(r'<section id="methods">.*?</section>', text, re.DOTALL)[0]
    assert 'id="about-sdpa"' in section and "torch.nn.functional.scaled_dot_product_attention" in section
    assert (
        re.search(r'id="about-ulysses".*?All-to-all', section, re.DOTALL) and section.count("All-to-all") == 1
    )
    about = page_data(text, "facts")["about"]
    assert "All-to-all" in about["ulysses+sdpa"] and "scaled_dot_product_attention" in about["ulysses+sdpa"]


@pytest.mark.long
def test_a_figure_that_raises_costs_only_itself(tmp_path, monkeypatch):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "broken.py").write_text("""
from longca.lab.report.contract import Figure

class Broken(Figure):
    label, section = "Broken", "noise"

    def data(self, table):
        raise KeyError("<no such column>")
""")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    text = build(few()[-4:], [], tmp_path / "out" / "report.html", study_title="").read_text()
    Outline(text)
    assert (
        "could not be drawn: KeyError" in text
        and "&lt;no such column&gt;" in text
        and 'id="fig-noise"' in text
    )
