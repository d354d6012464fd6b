"""A digest of parsed code changes with what runs, and not with where it lies or how it is worded."""

from pathlib import Path

import pytest

from longca.lab.code import code_digest
from tests.helpers.core.code_package import MAIN, OTHER, TILES, Package, plain


@pytest.mark.parametrize(
    "files",
    [
        {
            "cp/run/main.py": MAIN,
            "ops/tiles.py": TILES,
            "cp/__init__.py": '"""A package."""\n',
            "cp/run/__init__.py": "",
        },
        {
            "main_with_another_name.py": MAIN.replace("longca.ops.tiles", "longca.tables.rows"),
            "tables/rows.py": TILES,
        },
        plain(
            **{
                "main.py": MAIN.replace('"""A module."""', '"""A better sentence."""').replace(
                    '"""Runs."""', '"""It runs."""'
                )
            }
        ),
        plain(
            **{"main.py": MAIN.replace("  # of something", "").replace("LIMIT", "# Of something.\nLIMIT", 1)}
        ),
        plain(
            **{
                "main.py": MAIN.replace("import math\n", "").replace(
                    "import numpy as np\n", "import numpy as np\nimport math\nimport os\n"
                )
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace("import math\n", "from math import floor\n")
                .replace("math.floor", "floor")
                .replace("import numpy as np\n", "from numpy import sqrt as root\n")
                .replace("np.sqrt", "root")
            }
        )
        | {"ops/other.py": "", "never.py": "x = 1"},
        plain(
            **{
                "main.py": MAIN.replace("SIZE, tile\n", "SIZE as S, tile as t\n").replace(
                    "tile(rows) * SIZE", "t(rows) * S"
                )
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace("tiles import SIZE", "tiles import (\n    SIZE").replace(
                    ", tile\n", ",\n    tile,\n)\n"
                )
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace(
                    "mask: Mask, rows: int = 4) -> int", "mask: object, rows: float = 4) -> float"
                ).replace("LIMIT: int =", "LIMIT =")
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace(
                    "    from longca.masks import Mask\n", "    from longca.masks import Mask, band\n"
                )
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace("longca.ops.tiles", "longca.ops"),
                "ops/__init__.py": '"""Ops."""\nfrom longca.ops.tiles import SIZE, tile\n',
            }
        ),
        plain(
            **{
                "main.py": MAIN.replace("from longca.ops.tiles import SIZE, tile\n", "").replace(
                    '    """Runs."""', "    from longca.ops.tiles import SIZE, tile\n"
                )
            }
        ),
    ],
    ids=[
        "moved",
        "renamed",
        "docstrings",
        "comments",
        "order of imports",
        "way of import",
        "other names",
        "brackets",
        "types",
        "types' imports",
        "handed on",
        "imported inside",
    ],
)
def test_what_does_not_run_does_not_count(files: dict[str, str], package: Package):
    assert package(files) == package(plain())


@pytest.mark.parametrize(
    "files",
    [
        plain(**{"main.py": MAIN.replace("= 3", "= 4")}),
        plain(**{"main.py": MAIN.replace("= 3", "= 3.0")}),
        plain(**{"main.py": MAIN.replace("rows: int = 4", "rows: int = 5")}),
        plain(**{"main.py": MAIN.replace("    return", "    rows += 1\n    return")}),
        plain(**{"main.py": MAIN.replace(" * SIZE +", " + SIZE *")}),
        plain(**{"ops/tiles.py": TILES.replace("64", "128")}),
        plain(**{"main.py": MAIN.replace("longca.ops.tiles", "longca.ops.other")}),
        plain(**{"main.py": MAIN.replace("import numpy as np", "import torch as np")}),
        plain(**{"main.py": MAIN.replace("import math", "import cmath as math")}),
    ],
    ids=[
        "constant",
        "type of a constant",
        "default",
        "statement",
        "operator",
        "imported file",
        "other file",
        "other library",
        "other module",
    ],
)
def test_what_runs_counts(files: dict[str, str], package: Package):
    assert package(files) != package(plain())


FACE = """
from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.ops.tiles import SIZE, tile
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["SIZE", "tile"]
"""


def test_a_name_from_a_face_counts_as_one_of_its_module(package: Package):
    by_module = package(plain(**{"ops/__init__.py": ""}))
    through = plain(**{"ops/__init__.py": FACE, "main.py": MAIN.replace("longca.ops.tiles", "longca.ops")})
    assert package(through) == by_module
    as_attribute = MAIN.replace("from longca.ops.tiles import SIZE, tile", "import longca.ops as ops")
    for name in ("tile(rows)", "SIZE"):  # of a package that is imported as a module
        as_attribute = as_attribute.replace(name, f"ops.{name}")
    assert package({**through, "main.py": as_attribute}) == by_module
    assert package({**through, "ops/tiles.py": OTHER}) != by_module


def test_what_else_a_face_offers_does_not_count(package: Package):
    files = plain(**{"ops/__init__.py": FACE, "main.py": MAIN.replace("longca.ops.tiles", "longca.ops")})
    before = package(files)
    more = FACE.replace("else:", "    from longca.ops.other import wide\nelse:").replace(
        '"tile"', '"tile", "wide"'
    )
    assert package({**files, "ops/__init__.py": more}) == before
    assert package({**files, "ops/__init__.py": more, "ops/other.py": "def wide(): return 1"}) == before
    assert package({**files, "ops/__init__.py": f"{FACE}\nLIMIT = 4\n"}) != before


def test_names_that_a_face_imports_at_once_count_as_before(package: Package):
    at_once = "from longca.ops.tiles import SIZE, tile\n\n__all__ = ['SIZE', 'tile']\n"
    later = FACE.replace("import SIZE, tile", "import rest").replace(
        '["SIZE", "tile"]', "['SIZE', 'rest', 'tile']"
    )
    files = plain(**{"ops/__init__.py": at_once})
    assert package({**files, "ops/__init__.py": f"{at_once.partition('__all__')[0]}{later}"}) == package(
        files
    )


def test_a_name_from_another_file_counts_where_both_files_are_reached(package: Package):
    """Both have a function of that name, as kernels for several GPUs have."""
    both = (
        "from longca.ops import other, tiles\nfrom longca.ops.{} import tile\nprint(tile(1), other, tiles)\n"
    )
    digests = {package(plain(**{"main.py": both.format(name)})) for name in ("tiles", "other")}
    swapped = package(plain(**{"main.py": both.format("tiles").replace("other, tiles)", "tiles, other)")}))
    assert len({*digests, swapped}) == 3


def test_a_file_that_is_not_reached_does_not_count(package: Package):
    assert package(plain(**{"ops/other.py": "x = 1\n"})) == package(plain())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "@triton.jit\ndef kernel(x, TILE: tl.constexpr):\n    y = x\n",
            "@triton.jit\ndef kernel(x, TILE):\n    y = x\n",
        ),
        (
            "@triton.jit\ndef kernel(x):\n    y: tl.constexpr = x\n",
            "@triton.jit\ndef kernel(x):\n    y = x\n",
        ),
        (
            "@triton.jit\ndef kernel(x):\n    y = x\n",
            "@triton.jit(noinline=True)\ndef kernel(x):\n    y = x\n",
        ),
        ("class Plan:\n    rows: int\n    cols: int\n", "class Plan:\n    cols: int\n    rows: int\n"),
    ],
)
def test_annotations_that_are_read_count(before: str, after: str, package: Package):
    assert package({"main.py": before}) != package({"main.py": after})


def test_annotations_of_a_property_do_not(package: Package):
    body = "class Plan:\n    @property\n    def rows(self) -> {}:\n        return 1\n"
    assert package({"main.py": body.format("int")}) == package({"main.py": body.format("float")})


def test_an_import_inside_one_function_stands_for_that_function(package: Package):
    def text(first: str, second: str) -> str:
        return "".join(
            f"def {name}():\n    from longca.ops.{module} import tile\n    return tile(1)\n"
            for name, module in (("forward", first), ("backward", second))
        )

    assert package(plain(**{"main.py": text("tiles", "other")})) != package(
        plain(**{"main.py": text("other", "tiles")})
    )


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    before = code_digest([file])
    file.rename(tmp_path / "b.json").write_text("{} ")
    assert code_digest([tmp_path / "b.json"]) != before
