"""Pages that tools write are current, and paths of pages in code and settings lead somewhere."""

import re
from pathlib import Path

import pytest

from longca.core.plugin import Registry
from longca.lab.report.look.masks import mask_drawings
from tests.helpers.support import ROOT
from tools import fixed_order, heat_map, mask_pictures, new_tokens, reference
from tools.pages import put

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(
    path
    for folder in ("longca", "tests", "tools", "benchmarks", "workflow", "config", "containers", "slurm")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".smk", ".yaml", ".sh", ".j2", ".toml")
)
SOURCES += [
    ROOT / name for name in ("Makefile", "Snakefile", "pyproject.toml", ".ci/run") if (ROOT / name).exists()
]
PATH_OF_DOCS = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.(?:md|svg|png)\b")
LIMITS = {"guide": 120, "design": 150, "results": 60}  # lines that no tool writes; of results prose alone


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_paths_of_pages_in_code_are_there():
    wrong = [
        f"{_name(source)}: {path}"
        for source in (*SOURCES, *PAGES)
        for path in PATH_OF_DOCS.findall(source.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert not wrong


def _length(page: Path, folder: str) -> int:
    text = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", "", page.read_text(encoding="utf-8"), flags=re.S)
    return sum(folder != "results" or bool(line and not line.startswith("|")) for line in text.splitlines())


def test_pages_keep_their_length():
    folders = {page: page.relative_to(ROOT / "docs").parts[0] for page in PAGES if page.parent != ROOT}
    lengths = {page: _length(page, folder) for page, folder in folders.items()}
    assert {
        _name(page): length for page, length in lengths.items() if length > LIMITS.get(folders[page], 1000)
    } == {}


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_reference_is_current(page: Path):
    assert page.read_text(encoding="utf-8") == reference.PAGES[page](), "run `make docs`"


def test_reference_names_every_setting_and_command():
    page = reference.settings()
    assert all(
        f"`{name}`" in page
        for name in ("shard_minutes", "gpus_per_node", "timeout_s", "num_global", "LONGCA_PLUGINS")
    )
    page = reference.command_line()
    assert all(
        part in page
        for part in ("## longca data build", "`--kernel`, `-k`", "`[STUDY]`", "| 3 | this machine cannot |")
    )


def test_pictures_of_masks_are_current():
    current = mask_pictures.pictures()
    assert len(current) == len(Registry("mask").names())
    assert {path.name for path in mask_pictures.FOLDER.iterdir()} == {path.name for path in current}
    for path, content in current.items():
        assert path.read_text(encoding="utf-8") == content, "run `make docs`"
        assert len(content.encode()) < 10_000
    assert mask_pictures.FILE.read_text(encoding="utf-8") == mask_pictures.symbols(), "run `make docs`"
    names = Registry("mask").names()
    assert [drawing.name for drawing in mask_drawings(names)] == names, "pages have a drawing of each mask"
    page = mask_pictures.PAGE.read_text(encoding="utf-8")
    assert page == put(page, "masks", mask_pictures.table()), "run `make docs`"
    assert page == put(page, "other_masks", mask_pictures.other_table()), "run `make docs`"


@pytest.mark.parametrize("name", ["causal", "shared_question", "block_sparse_variable"])
def test_a_picture_fills_what_is_visible(name: str):
    visible = mask_pictures.small_mask(Registry("mask").load(name)).dense()
    filled = 0
    for x, y, end, bottom in re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H", mask_pictures.picture(visible, "")):
        assert visible[int(y) : int(bottom), int(x) : int(end)].all()
        filled += (int(end) - int(x)) * (int(bottom) - int(y))
    assert filled == visible.sum()


def test_the_table_of_fixed_orders_follows_from_the_records():
    league = fixed_order.league()
    for path, content in fixed_order.pages(league).items():
        assert path.read_text(encoding="utf-8") == content, "run `make docs`"
    assert len(league.standings) == 24 and league.kernels[0] == "band"
    assert all(len(case.entries) > 1 for case in league.standings.values())


def test_the_rates_of_new_tokens_follow_from_the_records():
    assert new_tokens.PAGE.read_text(encoding="utf-8") == new_tokens.page(new_tokens.rates()), (
        "run `make docs`"
    )


def test_heat_map_and_its_sentence_follow_from_the_records():
    finding = heat_map.finding()
    for path, content in heat_map.pictures(finding).items():
        assert path.read_text(encoding="utf-8") == content, "run `make docs`"
    on_h200 = heat_map.finding(heat_map.RECORDS_H200)
    for path, block in (
        (heat_map.PAGE, heat_map.block(finding, on_h200)),
        (heat_map.PAGE_H200, on_h200.sentence()),
    ):
        page = path.read_text(encoding="utf-8")
        assert page == put(page, "finding", block), "run `make docs`"
    assert len(finding.standings) == 2 * len(finding.masks)
    for mask, direction in finding.standings:
        assert max(finding.share(kernel, mask, direction) or 0 for kernel in finding.kernels) == 1


def test_a_page_without_a_place_says_so():
    with pytest.raises(ValueError, match="no place for 'finding'"):
        put("# A page", "finding", "text")


def test_licence_is_named_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "license: Apache-2.0" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_guard_of_the_threat_model_is_there():
    page = (ROOT / "docs/reference/security.md").read_text(encoding="utf-8")
    tests = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    named = re.findall(r"`(tests/[\w/]+\.py)`|`(test_\w+)`", page)
    assert len(named) > 30
    assert [file for file, _ in named if file and file not in tests] == []
    assert [
        name for _, name in named if name and not any(f"def {name}(" in text for text in tests.values())
    ] == []
    untrusted = page.partition("## What is not trusted")[2].partition("\n## ")[0]
    rows = [line for line in untrusted.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20 and [row for row in rows if "`test_" not in row] == [], (
        "each line is tried by a test"
    )
    listening = [
        line for line in page.partition("## What listens where")[2].splitlines() if line.startswith("| ")
    ][2:]
    at_home = [line for line in listening if "nowhere" in line or "loopback" in line]
    assert len(at_home) >= 6 and [line for line in at_home if "test" not in line.rsplit("|", 2)[1]] == []
