"""The package's face: its names are seen by people and by tools, and cost nothing until they are used."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import longca
from longca.core.version import VERSION
from longca.lab.code.source import modules_of_package
from tests.support import ROOT

FACE = ast.parse(Path(longca.__file__).read_text(encoding="utf-8"))


def test_the_version_is_the_same_wherever_it_stands():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert longca.__version__ == VERSION == project["version"] == citation["version"]


def test_dir_has_the_names():
    assert set(longca.__all__) <= set(dir(longca))
    assert [name for name in dir(longca) if not name.startswith("_")] == sorted(longca.__all__)


def test_type_checkers_see_each_name_where_it_is_found():
    typed = {
        alias.name: node.module
        for branch in FACE.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == longca._PLACES and set(typed) == set(longca.__all__)


@pytest.mark.parametrize("name", sorted(longca.__all__))
def test_each_name_is_there(name: str):
    assert callable(getattr(longca, name))
    assert longca._PLACES[name] in modules_of_package()


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'longca' has no attribute 'atention'"):
        longca.atention  # noqa: B018


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, longca; early = set(sys.modules); longca.Mask, longca.build_mask, longca.load;"
        "heavy = {'torch', 'pandas', 'pyarrow', 'matplotlib', 'numpy', 'pydantic'};"
        "print(sorted(heavy & early), sorted({*heavy} & set(sys.modules) - {'numpy', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
