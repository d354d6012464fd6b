"""The layers hold, no circles, names used once, files of a good size; plug-ins start without torch, generated
pages are current."""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from longca.core.plugin import KINDS, Registry
from tools import architecture, layers, schema

MODULES = sorted(architecture.PACKAGE.rglob("*.py"))
PLUGIN_FOLDERS = {
    "lab.cli",
    *(kind.folder.replace("/", ".") for kind in KINDS.values()),
}  # a command is found by its name, too
MOST_LINES = 400
FEWEST_LINES = 60
MOST_MODULES = 14


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((architecture.ROOT / folder).rglob("*.py"))]


def _imports_from(paths: list[Path], package: str) -> set[str]:
    """Those of the files that import from this package."""
    return {
        path.relative_to(architecture.ROOT).as_posix()
        for path in paths
        if any(entry.name.partition(".")[0] == package for entry in architecture.imports(path))
    }


def test_every_package_has_its_layer_and_every_layer_its_package():
    packages = {
        architecture.package_of(name)
        for name, path in architecture.modules().items()
        if path.name == "__init__.py"
    }
    packages -= {"", "lab"}
    assert packages <= layers.ALLOWED.keys() <= architecture.modules().keys()
    named = {name for allowed in layers.ALLOWED.values() for name in allowed}
    assert named <= layers.ALLOWED.keys()


def test_every_subpackage_of_a_divided_package_is_a_layer():
    divided = {_folder(name) for name in layers.ALLOWED if "." in name}
    inside = {
        name
        for name, path in architecture.modules().items()
        if path.name == "__init__.py" and _folder(name) in divided - {"ops", "lab"}
    }
    assert inside <= layers.ALLOWED.keys()


def test_imports_go_one_way():
    assert architecture.forbidden() == {}


def test_the_library_imports_nothing_of_the_laboratory():
    """Imports for the type checker count, too."""
    library = {name for name in architecture.modules() if name and not architecture.is_inside(name, "lab")}
    assert {
        f"{name} → {other}"
        for name in library
        for other in architecture.imported_modules(name, typing=True)
        if architecture.is_inside(other, "lab") and name != "__main__"
    } == set()


def test_the_drawn_layers_have_no_circle():
    """Whatever a layer may import, may not import it, but for a package and its own parts."""
    for name, allowed in layers.ALLOWED.items():
        for other in allowed:
            back = {above for above in layers.ALLOWED[other] if architecture.is_inside(name, above)}
            assert not back or architecture.is_inside(other, name), (
                f"{name} and {other} may import each other"
            )


def test_no_import_circles():
    assert architecture.circles() == set()


def test_a_circle_through_the_whole_packages_file_is_found(tmp_path: Path):
    for name, text in {
        "__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from longca.face import advise",
        "face": "from longca.page import draw",
        "page": "def draw():\n    from longca import __version__",
        "plain": "import longca",
    }.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert architecture.circles(tmp_path) == {frozenset({"", "face", "page"})}


def test_an_import_from_a_face_is_one_of_the_module_that_defines_the_name(tmp_path: Path):
    face = "if TYPE_CHECKING:\n    from longca.{} import {}\n__all__ = ['{}']\n"
    for name, text in {
        "__init__": "",
        "low/__init__": face.format("low.tiles", "tile", "tile"),
        "low/tiles": "def tile():\n    from longca.high import page",
        "low/other": "from longca.high import page",
        "high/__init__": face.format("high.inner", "page", "page"),
        "high/inner/__init__": face.format("high.inner.deep", "page", "page"),
        "high/inner/deep": "from longca.low import tile",
    }.items():
        path = tmp_path / "longca" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    package = tmp_path / "longca"
    assert architecture.imported_modules("low.other", package=package) == {"high.inner.deep"}
    assert architecture.circles(package) == {frozenset({"low.tiles", "high.inner.deep"})}


def test_heavy_libraries_are_imported_inside_functions():
    wrong = []
    for path in MODULES:
        package = architecture.package_of(
            ".".join(path.relative_to(architecture.PACKAGE).with_suffix("").parts)
        )
        for entry in architecture.imports(path):
            library = entry.name.partition(".")[0]
            if (
                entry.at_import
                and not entry.typing_only
                and library in layers.HEAVY - layers.AT_TOP.get(package, set())
            ):
                wrong.append(f"{path.relative_to(architecture.PACKAGE)}: {library}")
    assert not wrong


def test_layers_without_torch_never_import_it():
    wrong = {
        name
        for name, path in architecture.modules().items()
        for entry in architecture.imports(path)
        if any(architecture.is_inside(name, layer) for layer in layers.NEVER_TORCH)
        and entry.name.partition(".")[0] in ("torch", "triton")
        and not entry.typing_only
    }
    assert not wrong


def test_public_classes_have_names_of_their_own():
    collected = Counter(
        node.name
        for path in MODULES
        for node in architecture.parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in collected.items() if count > 1} == set()


def test_no_module_is_shallow():
    """A short module that one neighbour imports is a part of it, but for plug-ins."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in architecture.modules():
        for other in architecture.imported_modules(module, typing=True):
            importers[other].add(module)
    shallow = {
        module
        for module, path in architecture.modules().items()
        if path.name != "__init__.py"
        and _folder(module) not in PLUGIN_FOLDERS
        and len(path.read_text(encoding="utf-8").splitlines()) < FEWEST_LINES
        and len(importers[module]) == 1
        and {_folder(other) for other in importers[module]} == {_folder(module)}
    }
    assert shallow == set()


def test_no_folder_is_full():
    counts = Counter(
        _folder(module) for module, path in architecture.modules().items() if path.name != "__init__.py"
    )
    assert {
        folder for folder, count in counts.items() if count > MOST_MODULES and folder not in PLUGIN_FOLDERS
    } == set()


def test_benchmarks_and_tests_stand_apart():
    tests = [
        path
        for path in _python_files("tests")
        if not path.is_relative_to(architecture.ROOT / "tests/benchmarks")
    ]
    assert _imports_from(_python_files("benchmarks"), "tests") == set()
    assert _imports_from([*_python_files("longca", "tools"), *tests], "benchmarks") == set()
    assert _imports_from(_python_files("longca"), "tests") == set()


def test_files_stay_small_and_say_what_they_are():
    texts = {
        path.relative_to(architecture.PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in MODULES
    }
    silent = [name for name, text in texts.items() if not text.startswith('"""')]
    assert not silent, "a module begins by saying what it is"
    long = [name for name, text in texts.items() if len(text.splitlines()) > MOST_LINES]
    assert not long, f"files have at most {MOST_LINES} lines"


def test_architecture_page_is_current():
    assert architecture.TARGET.read_text(encoding="utf-8") == architecture.page(), "run `make docs`"


def test_config_schema_is_current():
    assert schema.TARGET.read_text(encoding="utf-8") == schema.schema(), "run `make docs`"


def test_plugins_and_commands_load_without_torch():
    code = (
        "import sys; from longca.core.plugin import KINDS, Registry; from longca.lab.cli.main import "
        "build_app; build_app();[Registry(kind).load_all() for kind in KINDS];print([name for name in "
        "('torch', 'triton', 'pandas', 'matplotlib', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", KINDS)
def test_plugin_names_are_plain(kind: str):
    names = Registry(kind).names()
    assert names
    assert all(name == name.lower() and name.isidentifier() for name in names)
