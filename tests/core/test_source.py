"""Digests of the program's own files."""

from pathlib import Path

from longca.core.plugin import PACKAGE_ROOT
from longca.core.source import files_digest, source_digest


def test_content_and_name_count_and_order_does_not(tmp_path: Path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a")
    two.write_text("b")
    before = files_digest([one, two])
    assert before == files_digest([two, one])
    assert before != files_digest([one])
    two.write_text("c")
    assert files_digest([one, two]) != before
    two.write_text("b")
    assert files_digest([one, two.rename(tmp_path / "three.py")]) != before


def test_the_folder_of_a_plugin_does_not_count(tmp_path: Path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("a")
    assert files_digest([tmp_path / "here" / "mine.py"]) == files_digest([tmp_path / "there" / "mine.py"])


def test_packages_are_told_apart():
    digests = {source_digest("core"), source_digest("data"), source_digest("core", "data")}
    assert len(digests) == 3
    assert source_digest("data") == files_digest(path for path in (PACKAGE_ROOT / "data").rglob("*")
                                                 if path.is_file() and path.suffix in (".py", ".json"))
