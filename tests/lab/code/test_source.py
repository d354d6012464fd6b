"""Digests of the program's own files, and the files that a module runs."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longca.core import plugin
from longca.core.plugin import PACKAGE_ROOT
from longca.lab.code import source
from longca.lab.code.source import files_digest, modules_of_package, reached, source_digest
from tools import architecture

RULES = PACKAGE_ROOT.parent / "workflow/rules"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package, which the digests are made of."""
    root = shutil.copytree(PACKAGE_ROOT, tmp_path / "longca", ignore=shutil.ignore_patterns("__pycache__"))
    for module in (plugin, source):
        monkeypatch.setattr(module, "PACKAGE_ROOT", root)
    for cached in (modules_of_package, source._names_of_files):
        cached.cache_clear()
    yield root
    for cached in (modules_of_package, source._names_of_files):
        cached.cache_clear()


def _rule_digests() -> dict[str, str]:
    """The digest that each rule of the workflow asks for."""
    text = (RULES / "common.smk").read_text()
    code = text[text.index("def code_of") :]
    names: dict[str, Callable[..., str]] = {"source_digest": source_digest}
    exec(code[: code.index("\n\n\n")], names)
    asked = {path.stem: re.findall(r"\bcode=(.*),\n", path.read_text()) for path in RULES.glob("*.smk")}
    return {rule: eval(actual[0], names) for rule, actual in asked.items() if actual}


def _parsed_imports(path: Path) -> set[str]:
    """The modules that a file imports from the package while it runs, by the parser. None of them is
    relative."""
    imports = (each for each in architecture.imports(path) if not each.typing_only)
    return {
        ".".join(part for part in source.definition(*each.name.rpartition(".")[::2]) if part)
        for each in imports
        if each.name.startswith("longca.")
    }


def test_content_and_name_count_and_order_does_not(tmp_path: Path):
    first = tmp_path / "one.py"
    two = tmp_path / "two.py"
    first.write_text("a")
    two.write_text("b")
    before = files_digest([first, two])
    assert before == files_digest([two, first])
    assert before != files_digest([first])
    two.write_text("changed")
    assert files_digest([first, two]) != before
    assert files_digest([two.rename(tmp_path / "three.py"), first]) != before


def test_the_folder_of_a_plugin_does_not_count(tmp_path: Path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("a")
    assert files_digest([tmp_path / "here" / "mine.py"]) == files_digest([tmp_path / "there" / "mine.py"])


@pytest.mark.long
def test_the_pattern_finds_what_the_parser_finds():
    modules = modules_of_package()
    processes = (
        "longca.lab.bench.workers.worker",
        "longca.lab.bench.workers.judge",
        "longca.core.children.trial_child",
    )
    started = {parent for name in processes for parent in source._with_parents(name)}  # no import says so
    for path in modules.values():
        parsed = {
            parent for name in _parsed_imports(path) for parent in source._with_parents(name)
        } & modules.keys()
        actual = source.imported_modules(path)
        assert parsed <= actual <= parsed | started, path


def test_imports_in_every_form_are_found(copy: Path):
    file = copy / "kernels/backends/mine.py"
    file.write_text("""
from __future__ import annotations
import os, longca.masks.grid as grid
from ...ops import (
    sinks,  # one, two
    spin as turn)
from . import naive
if TYPE_CHECKING:
    from longca.lab.report.build import build

    import longca.lab.report.look.svg
class Plugin:
    def prepare(self):
        from longca.lowering.flex import x as y
        import longca.data.sampler
""")
    modules_of_package.cache_clear()
    source._names_of_files.cache_clear()
    actual = {name for name in source._text(file).modules if name in modules_of_package()} - {"longca"}
    assert actual == {
        "longca.masks",
        "longca.masks.grid",
        "longca.ops",
        "longca.ops.sinks",
        "longca.ops.spin",
        "longca.kernels",
        "longca.kernels.backends",
        "longca.kernels.backends.naive",
        "longca.lowering",
        "longca.lowering.flex",
        "longca.data",
        "longca.data.sampler",
    }


def test_packages_on_the_way_are_reached():
    actual = {
        path.relative_to(PACKAGE_ROOT).as_posix()
        for path in reached([PACKAGE_ROOT / "kernels/backends/naive.py"])
    }
    assert {
        "__init__.py",
        "kernels/__init__.py",
        "kernels/backends/__init__.py",
        "kernels/contract.py",
        "masks/__init__.py",
    } <= actual
    assert not any(name.startswith(("lab/report/", "lab/bench/")) for name in actual)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "ops/band/plan.py",
            {"kernels", "playoff", "cp", "report"},
        ),  # the page predicts times, by the same plans
        ("ops/fa2_sparse.py", {"kernels", "playoff", "cp", "report"}),
        ("lowering/flex.py", {"kernels", "playoff", "cp", "report"}),
        ("kernels/backends/naive.py", {"kernels", "playoff", "cp", "report"}),
        ("lab/bench/workers/worker.py", {"kernels", "playoff", "cp"}),
        ("cp/strategies/ring_p2p.py", {"cp", "report"}),
        ("lab/bench/measure/cp.py", {"cp"}),
        ("lab/report/build.py", {"report"}),
        ("lab/report/figures/memory.py", {"report"}),
        ("lab/report/static/report.css", {"report"}),
        ("lab/report/templates/page.html.j2", {"report"}),
        ("data/build.py", set()),
        (
            "masks/patterns/causal.py",
            {"corpora", "masks", "kernels", "playoff", "cp", "collect", "report"},
        ),  # a study asks for parameters
        ("data/corpora/pile.json", {"corpora", "masks", "kernels", "playoff", "cp", "collect", "report"}),
        ("lab/store/columns.py", {"collect", "report"}),
        ("lab/studies/cell.py", {"corpora", "masks", "kernels", "playoff", "cp", "collect", "report"}),
    ],
)
def test_an_edited_file_makes_again_what_runs_it(name: str, changed: set[str], copy: Path):
    before = _rule_digests()
    assert before.keys() == {"corpora", "masks", "kernels", "playoff", "cp", "collect", "report"}
    (copy / name).write_text((copy / name).read_text() + "\n# edited\n")
    after = _rule_digests()
    assert {rule for rule in before if after[rule] != before[rule]} == changed


def test_a_plugin_of_the_user_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = _rule_digests()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine.py").write_text("from longca.kernels.contract import Kernel\n")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    after = _rule_digests()
    assert {rule for rule in before if after[rule] != before[rule]} == {"kernels", "playoff", "cp", "report"}


def test_the_digests_of_all_rules_are_quick():
    """Snakemake makes them in every job. A processor's time, since tests run side by side."""
    source._read.cache_clear()
    modules_of_package.cache_clear()
    source._names_of_files.cache_clear()
    start = time.process_time()
    _rule_digests()
    assert time.process_time() - start < 1
