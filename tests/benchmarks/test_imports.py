"""Benchmarks stand apart: they import no tests, and nothing but their own tests imports them."""

import ast
from pathlib import Path

from tests.support import ROOT


def imported(path: Path) -> set[str]:
    """The top packages of all imports of a file, those inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_benchmarks_import_no_tests() -> None:
    assert [path for path in (ROOT / "benchmarks").rglob("*.py") if "tests" in imported(path)] == []


def test_only_their_tests_import_benchmarks() -> None:
    own = ROOT / "tests/benchmarks"
    others = [path for folder in ("longca", "tests", "tools") for path in (ROOT / folder).rglob("*.py") if own not in path.parents]
    assert [path for path in others if "benchmarks" in imported(path)] == []
