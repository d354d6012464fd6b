"""Tests that the pages of results have a place for every table that a benchmark writes, each exactly once for
a GPU."""

import re

from tests.helpers.support import ROOT

TABLE = re.compile(r'Table\(\s*"(\w+)"|_table\(\s*"(\w+)"|^NAME = "(\w+)"', re.MULTILINE)
PAGES = (
    *sorted((ROOT / "docs/results").glob("*/*.md")),
    *(
        ROOT / "docs" / page
        for page in ("results/commands.md", "guide/context-parallel.md", "design/band.md")
    ),
)
# a page that says what is measured, a picture with a sentence, and what a page found, in sentences
NO_TABLES = {
    "finding",
    "campaign",
    "campaign_finding",
    "training_curves",
    "training_curves_gpus",
    "predict_conclusion",
    "many_gpus_setting",
    "many_gpus_conclusion",
    "many_gpus_rates",
    "many_gpus_claims",
    "fixed_order",
}  # the last five by tools


def test_each_table_has_one_place() -> None:
    sources = [path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")]
    written = {
        name
        for source in sources
        if "from tools.table" in source
        for entry in TABLE.findall(source)
        for name in entry
        if name
    }
    places = [
        (page.parent, name)
        for page in PAGES
        for name in re.findall(r"<!-- begin (\w+) -->", page.read_text())
    ]
    assert len(places) == len(set(places))
    assert sorted({name for _, name in places} - NO_TABLES) == sorted(written)


def test_commands_name_pages_that_exist() -> None:
    paths = [path for folder in ("benchmarks", "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in paths if path.suffix in (".py", ".md")]
    named = {page for text in texts for page in re.findall(r"--write\s+(docs/\S+?\.md)", text)}
    assert named and all((ROOT / page).exists() for page in named), named
