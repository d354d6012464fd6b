"""Blocks of documentation pages, between two markers."""

from pathlib import Path

import pytest

from tools.pages import with_blocks, write_blocks

TEXT = "# é\n<!-- begin a -->\nold\n<!-- end a -->\nkept\n<!-- begin b -->\n<!-- end b -->\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_blocks_are_written_and_all_else_is_kept(page: Path) -> None:
    made = "# é\n<!-- begin a -->\nnew\n<!-- end a -->\nkept\n<!-- begin b -->\n×\n<!-- end b -->\n"
    assert with_blocks(page, a="new", b="×") == made and page.read_text(encoding="utf-8") == TEXT
    write_blocks(page, a="new", b="×")
    assert page.read_text(encoding="utf-8") == made
    write_blocks(page, a="new")
    assert page.read_text(encoding="utf-8") == made, "again it changes nothing"


def test_a_page_without_a_place_stays_as_it_is(page: Path) -> None:
    with pytest.raises(ValueError, match="no place for 'c'"):
        write_blocks(page, a="new", c="x")
    assert page.read_text(encoding="utf-8") == TEXT
