"""A digest of parsed code changes with what runs, and not with where it lies or how it is worded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longca.core.code import code_digest, source
from longca.core.code.source import modules_of_package, reached

MAIN = '''
"""A module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from longca.ops.tiles import SIZE, tile

if TYPE_CHECKING:
    from longca.masks import Mask

LIMIT: int = 3  # of something


def run(mask: Mask, rows: int = 4) -> int:
    """Runs."""
    return tile(rows) * SIZE + math.floor(np.sqrt(LIMIT))
'''
TILES = "SIZE = 64\n\n\ndef tile(rows):\n    return rows // SIZE\n"
OTHER = "SIZE = 32\n\n\ndef tile(rows):\n    return rows // SIZE + 1\n"

Package = Callable[[dict[str, str]], str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes files as the package, each time anew, and gives the digest of what its `main.py` runs."""
    written = 0

    def forget() -> None:
        modules_of_package.cache_clear()
        source._names_of_files.cache_clear()

    def write(files: dict[str, str]) -> str:
        nonlocal written
        written += 1
        root = tmp_path / str(written) / "longca"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(source, "PACKAGE_ROOT", root)
        forget()
        main, = (path for path in modules_of_package().values() if path.name.startswith("main"))
        return code_digest(reached([main]))

    yield write
    forget()


def _plain(**changes: str) -> dict[str, str]:
    return {"main.py": MAIN, "ops/tiles.py": TILES, "ops/other.py": OTHER, **changes}


@pytest.mark.parametrize("files", [
    {"cp/run/main.py": MAIN, "ops/tiles.py": TILES, "cp/__init__.py": '"""A package."""\n', "cp/run/__init__.py": ""},
    {"main_with_another_name.py": MAIN.replace("longca.ops.tiles", "longca.tables.rows"), "tables/rows.py": TILES},
    _plain(**{"main.py": MAIN.replace('"""A module."""', '"""A better sentence."""').replace('"""Runs."""', '"""It runs."""')}),
    _plain(**{"main.py": MAIN.replace("  # of something", "").replace("LIMIT", "# Of something.\nLIMIT", 1)}),
    _plain(**{"main.py": MAIN.replace("import math\n", "")
              .replace("import numpy as np\n", "import numpy as np\nimport math\nimport os\n")}),
    _plain(**{"main.py": MAIN.replace("import math\n", "from math import floor\n").replace("math.floor", "floor")
              .replace("import numpy as np\n", "from numpy import sqrt as root\n").replace("np.sqrt", "root")}
           ) | {"ops/other.py": "", "never.py": "x = 1"},
    _plain(**{"main.py": MAIN.replace("SIZE, tile\n", "SIZE as S, tile as t\n").replace("tile(rows) * SIZE", "t(rows) * S")}),
    _plain(**{"main.py": MAIN.replace("tiles import SIZE", "tiles import (\n    SIZE").replace(", tile\n", ",\n    tile,\n)\n")}),
    _plain(**{"main.py": MAIN.replace("mask: Mask, rows: int = 4) -> int", "mask: object, rows: float = 4) -> float")
              .replace("LIMIT: int =", "LIMIT =")}),
    _plain(**{"main.py": MAIN.replace("    from longca.masks import Mask\n", "    from longca.masks import Mask, band\n")}),
    _plain(**{"main.py": MAIN.replace("longca.ops.tiles", "longca.ops"),
              "ops/__init__.py": '"""Ops."""\nfrom longca.ops.tiles import SIZE, tile\n'}),
    _plain(**{"main.py": MAIN.replace("from longca.ops.tiles import SIZE, tile\n", "")
              .replace('    """Runs."""', "    from longca.ops.tiles import SIZE, tile\n")}),
], ids=["moved", "renamed", "docstrings", "comments", "order of imports", "way of import", "other names", "brackets", "types",
        "types' imports", "handed on", "imported inside"])
def test_what_does_not_run_does_not_count(files: dict[str, str], package: Package):
    assert package(files) == package(_plain())


@pytest.mark.parametrize("files", [
    _plain(**{"main.py": MAIN.replace("= 3", "= 4")}),
    _plain(**{"main.py": MAIN.replace("= 3", "= 3.0")}),
    _plain(**{"main.py": MAIN.replace("rows: int = 4", "rows: int = 5")}),
    _plain(**{"main.py": MAIN.replace("    return", "    rows += 1\n    return")}),
    _plain(**{"main.py": MAIN.replace(" * SIZE +", " + SIZE *")}),
    _plain(**{"ops/tiles.py": TILES.replace("64", "128")}),
    _plain(**{"main.py": MAIN.replace("longca.ops.tiles", "longca.ops.other")}),
    _plain(**{"main.py": MAIN.replace("import numpy as np", "import torch as np")}),
    _plain(**{"main.py": MAIN.replace("import math", "import cmath as math")}),
], ids=["constant", "type of a constant", "default", "statement", "operator", "imported file", "other file", "other library",
        "other module"])
def test_what_runs_counts(files: dict[str, str], package: Package):
    assert package(files) != package(_plain())


def test_a_name_from_another_file_counts_where_both_files_are_reached(package: Package):
    """Both have a function of that name, as kernels for several GPUs have."""
    both = "from longca.ops import other, tiles\nfrom longca.ops.{} import tile\nprint(tile(1), other, tiles)\n"
    digests = {package(_plain(**{"main.py": both.format(name)})) for name in ("tiles", "other")}
    swapped = package(_plain(**{"main.py": both.format("tiles").replace("other, tiles)", "tiles, other)")}))
    assert len({*digests, swapped}) == 3


def test_a_file_that_is_not_reached_does_not_count(package: Package):
    assert package(_plain(**{"ops/other.py": "x = 1\n"})) == package(_plain())


@pytest.mark.parametrize(("before", "after"), [
    ("@triton.jit\ndef kernel(x, TILE: tl.constexpr):\n    y = x\n", "@triton.jit\ndef kernel(x, TILE):\n    y = x\n"),
    ("@triton.jit\ndef kernel(x):\n    y: tl.constexpr = x\n", "@triton.jit\ndef kernel(x):\n    y = x\n"),
    ("@triton.jit\ndef kernel(x):\n    y = x\n", "@triton.jit(noinline=True)\ndef kernel(x):\n    y = x\n"),
    ("class Plan:\n    rows: int\n    cols: int\n", "class Plan:\n    cols: int\n    rows: int\n"),
])
def test_annotations_that_are_read_count(before: str, after: str, package: Package):
    assert package({"main.py": before}) != package({"main.py": after})


def test_annotations_of_a_property_do_not(package: Package):
    body = "class Plan:\n    @property\n    def rows(self) -> {}:\n        return 1\n"
    assert package({"main.py": body.format("int")}) == package({"main.py": body.format("float")})


def test_an_import_inside_one_function_stands_for_that_function(package: Package):
    def text(first: str, second: str) -> str:
        return "".join(f"def {name}():\n    from longca.ops.{module} import tile\n    return tile(1)\n"
                       for name, module in (("forward", first), ("backward", second)))
    assert package(_plain(**{"main.py": text("tiles", "other")})) != package(_plain(**{"main.py": text("other", "tiles")}))


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    before = code_digest([file])
    file.rename(tmp_path / "b.json").write_text("{} ")
    assert code_digest([tmp_path / "b.json"]) != before
