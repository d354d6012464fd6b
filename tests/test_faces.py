"""Each package says what others may import from it, and nobody reaches past that.

A face is the `__all__` of a package. Code of one package imports from another package only the names of its
face. A face may also offer a module or a sub-package as a whole: then names come from that module, or from
the sub-package's own face. Packages are the library's (`masks`, `cp`, …) and the laboratory's (`lab.store`,
…); inside its own package, code imports from the modules. `lab.bench` measures the inside of other packages,
so it may reach past their faces, and so may tests, tools and benchmarks.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longca.core.lazy import offers
from tools import architecture

IMPORT = re.compile(r"from (longca[.\w]*) import (\([^)]*\)|[^\n]*)")
# they offer no name to Python code: commands and scaffolds are files that are found by their names
WITHOUT = {"lab", "lab.templates"}
PACKAGES = {name for name, path in architecture.modules().items() if path.name == "__init__.py"}
FACES = sorted(name for name in PACKAGES if architecture.face(name))
PARTS = {architecture.package_of(name) for name in PACKAGES} - WITHOUT
MAY_REACH_PAST = "lab.bench"


def _passes(name: str, modules: dict[str, Path]) -> bool:
    """Tells whether each package on the way to a name, from its part on, offers the next step."""
    here = architecture.package_of(name)
    for step in name.removeprefix(here).split(".")[1:]:
        if here not in modules or modules[here].name != "__init__.py":
            return True
        if step not in architecture.face(here, _root(modules)):
            return False
        here = f"{here}.{step}"
    return True


def _root(modules: dict[str, Path]) -> Path:
    return modules[""].parent


def _past_faces(package: Path = architecture.PACKAGE) -> set[str]:
    modules = architecture.modules(package)
    return {
        f"{module} → {name}"
        for module, path in modules.items()
        if not architecture.is_inside(module, MAY_REACH_PAST)
        for top, _, name in (found.name.partition(".") for found in architecture.imports(path))
        if top == "longca" and architecture.package_of(name) in modules
        if architecture.package_of(name) not in ("", architecture.package_of(module))
        if not _passes(name, modules)
    }


def test_every_package_has_a_face():
    assert PARTS - set(FACES) == set()


def test_nobody_reaches_past_a_face():
    assert _past_faces() == set()


def test_an_import_past_a_face_is_found(tmp_path: Path):
    face = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from longca{} import {}\n__all__ = ['{}']\n"
    )
    for name, text in {
        "__init__": "",
        "masks/__init__": face.format(".masks", "band", "band"),
        "masks/band": "LO = 1",
        "masks/deep": "from longca.masks.band import LO",
        "ops/__init__": face.format(".ops.merge", "merge_parts", "merge_parts"),
        "ops/merge": "def merge_parts():\n    from longca.masks.deep import LO",
        "cp": "from longca.masks.band import LO\nfrom longca.ops import merge, merge_parts",
        "data": "import longca.masks.deep",
    }.items():
        path = tmp_path / "longca" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert _past_faces(tmp_path / "longca") == {
        "ops.merge → masks.deep.LO",
        "cp → ops.merge",
        "data → masks.deep",
    }


@pytest.mark.parametrize("package", FACES)
def test_no_offered_name_hides_a_module(package: str):
    """Python binds an imported module in its package, so it would replace a name that is loaded later."""
    modules = architecture.modules()
    for name, origin in _at_first_use(package).items():
        full = f"{package}.{name}".lstrip(".")
        assert full not in modules or origin == full


@pytest.mark.parametrize("package", FACES)
def test_running_code_and_the_parser_read_the_same_face(package: str):
    face = architecture.face(package)
    at_once = {
        alias.name
        for node in architecture.parsed(architecture.modules()[package]).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert _at_first_use(package) == {name: face[name] for name in face if name not in at_once}


def _at_first_use(package: str) -> dict[str, str]:
    """Name that a package loads at its first use → its full name without "longca."."""
    text = architecture.modules()[package].read_text(encoding="utf-8")
    return {
        name: ".".join(part for part in origin if part).partition(".")[2]
        for name, origin in offers(text, f"longca.{package}".rstrip(".")).items()
    }


def test_faces_offer_only_what_others_use():
    """The names of the whole package are for users."""
    used: set[str] = set()
    folders = ("longca", "tools", "benchmarks", "examples", "tests", "docs", "workflow")
    for path in (each for folder in folders for each in (architecture.ROOT / folder).rglob("*")):
        if path.suffix not in (".py", ".md", ".smk", ".ipynb"):
            continue
        package = _package_of_file(path)
        for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
            if architecture.package_of(module.partition(".")[2]) != package:
                listed = (part.split()[0] for part in names.strip("()").split(",") if part.strip())
                used |= {module, *(f"{module}.{name}" for name in listed)}
    offered = {f"longca.{package}.{name}" for package in FACES if package for name in _at_first_use(package)}
    assert {name for name in offered if not any(f"{each}.".startswith(f"{name}.") for each in used)} == set()


def _package_of_file(path: Path) -> str | None:
    """The package of a file of longca; None of other files."""
    if not path.is_relative_to(architecture.PACKAGE):
        return None
    return architecture.package_of(".".join(path.relative_to(architecture.PACKAGE).with_suffix("").parts))


def test_packages_load_nothing_heavy():
    names = [f"longca.{name}" for name in sorted(PACKAGES) if name and name != "transformers"]
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {names}];"
        "print({'torch', 'triton', 'pandas', 'pyarrow', 'matplotlib', 'jinja2'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
