"""Faces: each offered name is loaded at its first use, from where type checkers see it."""

import subprocess
import sys
from pathlib import Path

import pytest

from longca.core.lazy import offers

FACE = '''"""A package."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from toy import whole
    from toy.deep import (  # a comment, with a comma
        LIMIT,
        first as renamed,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["LIMIT", "renamed", "whole"]
'''


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").write_text(FACE)
    (package / "whole.py").write_text("VALUE = 3\n")
    (package / "deep.py").write_text("print('deep is loaded')\nLIMIT = 4\n\n\ndef first(): return 5\n")
    return tmp_path


def _run(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_block_for_type_checkers_says_where_names_come_from():
    assert offers(FACE, "toy") == {
        "whole": ("toy.whole", ""),
        "LIMIT": ("toy.deep", "LIMIT"),
        "renamed": ("toy.deep", "first"),
    }


@pytest.mark.parametrize(
    "text", ['"""A package."""\n', "from toy.deep import LIMIT\n", FACE.replace("face(", "other(")]
)
def test_without_a_face_nothing_is_offered(text: str):
    assert offers(text, "toy") == {}


def test_names_are_loaded_at_their_first_use(toy: Path):
    code = "import toy; print(sorted({'toy.deep', 'toy.whole'} & {*sys.modules})); "
    assert _run(f"{code}print(toy.LIMIT, toy.renamed(), toy.whole.VALUE)", toy).split("\n") == [
        "[]",
        "deep is loaded",
        "4 5 3",
    ]
    assert _run("from toy import *; print(LIMIT, whole.VALUE)", toy).endswith("4 3")
    assert _run("import toy; print([name for name in dir(toy) if name[0] != '_'])", toy) == str(
        ["LIMIT", "renamed", "whole"]
    )


def test_a_name_replaced_where_it_is_defined_is_replaced_in_the_face(toy: Path):
    assert _run("import toy; toy.LIMIT; toy.deep.LIMIT = 9; print(toy.LIMIT)", toy).endswith("9")


def test_other_names_are_refused(toy: Path):
    code = "import toy\ntry: toy.first\nexcept AttributeError as error: print(error)"
    assert _run(f"\n{code}", toy) == "module 'toy' has no attribute 'first'"
    code = "try:\n from toy import first\nexcept ImportError as error: print(type(error).__name__)"
    assert _run(f"\n{code}", toy) == "ImportError"


def test_a_package_in_an_archive_has_its_face(toy: Path):
    import zipfile

    with zipfile.ZipFile(toy / "toy.zip", "w") as archive:
        for path in (toy / "toy").glob("*.py"):
            archive.write(path, f"toy/{path.name}")
    assert _run("import toy; print(toy.__file__, toy.LIMIT)", toy / "toy.zip").endswith("4")
