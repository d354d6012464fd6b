"""The layers hold, files stay small, plug-ins and the command line start without torch, generated pages are current."""

import subprocess
import sys
from pathlib import Path

import pytest

from longca.core.plugin import KINDS, Registry
from tools import architecture, schema

MODULES = sorted(architecture.PACKAGE.rglob("*.py"))


def test_every_package_has_its_layer():
    folders = {path.name for path in architecture.PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(architecture.ALLOWED)


def test_imports_go_one_way():
    wrong = {f"{name} → {other}": files for name, others in architecture.edges().items() for other, files in others.items()
             if other not in architecture.ALLOWED[name]}
    assert not wrong


def test_heavy_libraries_are_imported_inside_functions():
    wrong = []
    for path in MODULES:
        package = path.relative_to(architecture.PACKAGE).parts[0]
        for name, at_import in architecture.imports(path):
            library = name.split(".")[0]
            if at_import and library in architecture.HEAVY - architecture.AT_TOP.get(package, set()):
                wrong.append(f"{path.relative_to(architecture.PACKAGE)}: {library}")
    assert not wrong


def test_store_and_report_never_import_torch():
    wrong = [path for path in MODULES if path.relative_to(architecture.PACKAGE).parts[0] in ("core", "data", "masks", "store", "report")
             for name, _ in architecture.imports(path) if name.split(".")[0] in ("torch", "triton")]
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(architecture.PACKAGE).as_posix())
def test_files_stay_small_and_say_what_they_are(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""'), "a module begins by saying what it is"
    assert len(text.splitlines()) <= 400


def test_architecture_page_is_current():
    assert architecture.TARGET.read_text(encoding="utf-8") == architecture.page(), "run `make docs`"


def test_config_schema_is_current():
    assert schema.TARGET.read_text(encoding="utf-8") == schema.schema(), "run `make docs`"


def test_plugins_and_commands_load_without_torch():
    code = ("import sys; from longca.core.plugin import KINDS, Registry; from longca.cli.main import build_app; build_app();"
            "[Registry(kind).load_all() for kind in KINDS];"
            "print([name for name in ('torch', 'triton', 'pandas', 'matplotlib', 'pyarrow') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", KINDS)
def test_plugin_names_are_plain(kind: str):
    names = Registry(kind).names()
    assert names
    assert all(name == name.lower() and name.isidentifier() for name in names)
