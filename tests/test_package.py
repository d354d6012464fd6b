"""The package's face: its names are seen by people and by tools, and cost nothing until they are used."""

import subprocess
import sys
import tomllib

import pytest
import yaml

import longca
from longca.core.version import VERSION
from tests.helpers.support import ROOT


def test_the_version_is_the_same_wherever_it_stands():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert longca.__version__ == VERSION == project["version"] == citation["version"]


def test_dir_has_the_names():
    assert set(longca.__all__) <= set(dir(longca))
    assert [name for name in dir(longca) if not name.startswith("_")] == sorted(longca.__all__)


@pytest.mark.parametrize("name", sorted(longca.__all__))
def test_each_name_is_there(name: str):
    assert callable(getattr(longca, name))


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
