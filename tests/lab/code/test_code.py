"""A digest of parsed code changes with what runs, and not with where it lies or how it is worded."""

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longca.lab.code import code_digest, source
from longca.lab.code.source import modules_of_package, reached
from longca.lab.code.text import Text
from tests.helpers.core.renamed import renamed

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
        (main,) = (path for path in modules_of_package().values() if path.name.startswith("main"))
        return code_digest(reached([main]))

    yield write
    forget()


def _plain(**changes: str) -> dict[str, str]:
    return {"main.py": MAIN, "ops/tiles.py": TILES, "ops/other.py": OTHER, **changes}


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
        _plain(
            **{
                "main.py": MAIN.replace('"""A module."""', '"""A better sentence."""').replace(
                    '"""Runs."""', '"""It runs."""'
                )
            }
        ),
        _plain(
            **{"main.py": MAIN.replace("  # of something", "").replace("LIMIT", "# Of something.\nLIMIT", 1)}
        ),
        _plain(
            **{
                "main.py": MAIN.replace("import math\n", "").replace(
                    "import numpy as np\n", "import numpy as np\nimport math\nimport os\n"
                )
            }
        ),
        _plain(
            **{
                "main.py": MAIN.replace("import math\n", "from math import floor\n")
                .replace("math.floor", "floor")
                .replace("import numpy as np\n", "from numpy import sqrt as root\n")
                .replace("np.sqrt", "root")
            }
        )
        | {"ops/other.py": "", "never.py": "x = 1"},
        _plain(
            **{
                "main.py": MAIN.replace("SIZE, tile\n", "SIZE as S, tile as t\n").replace(
                    "tile(rows) * SIZE", "t(rows) * S"
                )
            }
        ),
        _plain(
            **{
                "main.py": MAIN.replace("tiles import SIZE", "tiles import (\n    SIZE").replace(
                    ", tile\n", ",\n    tile,\n)\n"
                )
            }
        ),
        _plain(
            **{
                "main.py": MAIN.replace(
                    "mask: Mask, rows: int = 4) -> int", "mask: object, rows: float = 4) -> float"
                ).replace("LIMIT: int =", "LIMIT =")
            }
        ),
        _plain(
            **{
                "main.py": MAIN.replace(
                    "    from longca.masks import Mask\n", "    from longca.masks import Mask, band\n"
                )
            }
        ),
        _plain(
            **{
                "main.py": MAIN.replace("longca.ops.tiles", "longca.ops"),
                "ops/__init__.py": '"""Ops."""\nfrom longca.ops.tiles import SIZE, tile\n',
            }
        ),
        _plain(
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
    assert package(files) == package(_plain())


@pytest.mark.parametrize(
    "files",
    [
        _plain(**{"main.py": MAIN.replace("= 3", "= 4")}),
        _plain(**{"main.py": MAIN.replace("= 3", "= 3.0")}),
        _plain(**{"main.py": MAIN.replace("rows: int = 4", "rows: int = 5")}),
        _plain(**{"main.py": MAIN.replace("    return", "    rows += 1\n    return")}),
        _plain(**{"main.py": MAIN.replace(" * SIZE +", " + SIZE *")}),
        _plain(**{"ops/tiles.py": TILES.replace("64", "128")}),
        _plain(**{"main.py": MAIN.replace("longca.ops.tiles", "longca.ops.other")}),
        _plain(**{"main.py": MAIN.replace("import numpy as np", "import torch as np")}),
        _plain(**{"main.py": MAIN.replace("import math", "import cmath as math")}),
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
    assert package(files) != package(_plain())


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
    by_module = package(_plain(**{"ops/__init__.py": ""}))
    through = _plain(**{"ops/__init__.py": FACE, "main.py": MAIN.replace("longca.ops.tiles", "longca.ops")})
    assert package(through) == by_module
    as_attribute = MAIN.replace("from longca.ops.tiles import SIZE, tile", "import longca.ops as ops")
    for name in ("tile(rows)", "SIZE"):  # of a package that is imported as a module
        as_attribute = as_attribute.replace(name, f"ops.{name}")
    assert package({**through, "main.py": as_attribute}) == by_module
    assert package({**through, "ops/tiles.py": OTHER}) != by_module


def test_what_else_a_face_offers_does_not_count(package: Package):
    files = _plain(**{"ops/__init__.py": FACE, "main.py": MAIN.replace("longca.ops.tiles", "longca.ops")})
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
    files = _plain(**{"ops/__init__.py": at_once})
    assert package({**files, "ops/__init__.py": f"{at_once.partition('__all__')[0]}{later}"}) == package(
        files
    )


def test_a_name_from_another_file_counts_where_both_files_are_reached(package: Package):
    """Both have a function of that name, as kernels for several GPUs have."""
    both = (
        "from longca.ops import other, tiles\nfrom longca.ops.{} import tile\nprint(tile(1), other, tiles)\n"
    )
    digests = {package(_plain(**{"main.py": both.format(name)})) for name in ("tiles", "other")}
    swapped = package(_plain(**{"main.py": both.format("tiles").replace("other, tiles)", "tiles, other)")}))
    assert len({*digests, swapped}) == 3


def test_a_file_that_is_not_reached_does_not_count(package: Package):
    assert package(_plain(**{"ops/other.py": "x = 1\n"})) == package(_plain())


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

    assert package(_plain(**{"main.py": text("tiles", "other")})) != package(
        _plain(**{"main.py": text("other", "tiles")})
    )


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    before = code_digest([file])
    file.rename(tmp_path / "b.json").write_text("{} ")
    assert code_digest([tmp_path / "b.json"]) != before


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "step"), [(0, 5), *(pytest.param(seed, 1, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
def test_names_of_local_variables_do_not_count_in_the_packages_own_files(seed: int, step: int):
    """Each `step`-th file with other names for its locals has the same text. `symtable` says what is
    local."""
    number = 0
    for path in list(modules_of_package().values())[::step]:
        text = path.read_text()
        changed, more = renamed(text, seed)
        number += more
        assert Text(changed.encode(), path).text == Text(ast.unparse(ast.parse(text)).encode(), path).text, (
            path
        )
    assert number > 5000 // step


LOCALS = '''
def total(rows, limit=4):
    """Sums."""
    def add(x):
        nonlocal sum_
        sum_ += x
        return [y for y in range(x) if (last := y) < limit] and last
    sum_ = 0
    try:
        with open(rows) as file:
            for line in file:
                add(int(line))
    except ValueError as error:
        print(f"{error}")
    match rows:
        case [first, *rest]:
            sum_ += first
        case {"a": inner, **others}:
            sum_ -= inner
    return sorted([sum_], key=lambda item: -item)
print(total([1]))
'''
NAMES_OF_LOCALS = (
    "add",
    "x",
    "y",
    "last",
    "sum_",
    "file",
    "line",
    "error",
    "first",
    "rest",
    "inner",
    "others",
    "item",
    "rows",
)


@pytest.mark.parametrize("name", [*NAMES_OF_LOCALS, "limit"])
def test_the_name_of_a_local_variable_does_not_count(name: str, package: Package):
    """In each way in which a function binds names."""
    changed = re.sub(rf"\b{name}\b", "other", LOCALS)
    assert changed != LOCALS and package({"main.py": changed}) == package({"main.py": LOCALS})


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(("sum_", "file", "line"), 2)))
def test_another_variable_counts(old: str, new: str, package: Package):
    before, line, after = LOCALS.partition("                add(int(line))\n")
    assert line and package({"main.py": before + f"                add(int({old}))\n" + after}) != package(
        {"main.py": before + f"                add(int({new}))\n" + after}
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@triton.jit\ndef kernel(x):\n    y = x\n", "@triton.jit\ndef kernel(x):\n    z = x\n"),
        ("@triton.jit\ndef kernel(x):\n    return x\n", "@triton.jit\ndef kernel(y):\n    return y\n"),
        (
            "def body(x):\n    y = x\nkernel = triton.jit(body)\n",
            "def body(x):\n    z = x\nkernel = triton.jit(body)\n",
        ),
        ("def f(x):\n    return locals()\n", "def f(y):\n    return locals()\n"),
        ("def f(x):\n    y = x\n    return eval('y')\n", "def f(x):\n    z = x\n    return eval('y')\n"),
        ("def f():\n    y = 1\n    return vars()\n", "def f():\n    z = 1\n    return vars()\n"),
        (
            "names = locals\ndef f():\n    y = 1\n    return names()\n",
            "names = locals\ndef f():\n    z = 1\n    return names()\n",
        ),
        (
            "import sys\ndef f():\n    y = 1\n    return g()\ndef g():\n    return "
            "sys._getframe(1).f_locals\n",
            "import sys\ndef f():\n    z = 1\n    return g()\ndef g():\n    return "
            "sys._getframe(1).f_locals\n",
        ),
        (
            "import inspect\ndef f():\n    y = 1\nprint(inspect.getsource(f))\n",
            "import inspect\ndef f():\n    z = 1\nprint(inspect.getsource(f))\n",
        ),
        (
            "def f():\n    y = 1\nprint(f.__code__.co_varnames)\n",
            "def f():\n    z = 1\nprint(f.__code__.co_varnames)\n",
        ),
        (
            "def f():\n    def g():\n        return 1\n    return g\nprint(f().__name__)\n",
            "def f():\n    def h():\n        return 1\n    return h\nprint(f().__name__)\n",
        ),
        (
            "def f(a, b):\n    return a - b\nprint(f(a=1, b=2))\n",
            "def f(b, a):\n    return b - a\nprint(f(a=1, b=2))\n",
        ),
        (
            "def f(a, b):\n    return a - b\nprint(f(**{'a': 1, 'b': 2}))\n",
            "def f(b, a):\n    return b - a\nprint(f(**{'a': 1, 'b': 2}))\n",
        ),
        (
            "def f(a, b):\n    return a - b\ng = f\nprint(g(a=1, b=2), f(1, 2))\n",
            "def f(b, a):\n    return b - a\ng = f\nprint(g(a=1, b=2), f(1, 2))\n",
        ),
        ("f = lambda a, b: a - b\nprint(f(a=1, b=2))\n", "f = lambda b, a: b - a\nprint(f(a=1, b=2))\n"),
        (
            "x.f = lambda a, b: a - b\nprint(x.f(a=1, b=2))\n",
            "x.f = lambda b, a: b - a\nprint(x.f(a=1, b=2))\n",
        ),
        (
            "def g(f):\n    print(f(a=1, b=2))\ng(lambda a, b: a - b)\n",
            "def g(f):\n    print(f(a=1, b=2))\ng(lambda b, a: b - a)\n",
        ),
        (
            "def run():\n    def f(a, b):\n        return a - b\n    return f(a=1, b=2)\n",
            "def run():\n    def f(b, a):\n        return b - a\n    return f(a=1, b=2)\n",
        ),
        (
            "class A:\n    def f(self, a, b):\n        return a - b\nprint(A().f(1, b=2))\n",
            "class A:\n    def f(self, b, a):\n        return b - a\nprint(A().f(1, b=2))\n",
        ),
        (
            "class A(torch.nn.Module):\n    def f(self, a):\n        return a\nA().f(1)\n",
            "class A(torch.nn.Module):\n    def f(self, b):\n        return b\nA().f(1)\n",
        ),
        (
            "def f(a, b):\n    return a - b\nprint(getattr(here, 'f')(a=1, b=2), f(1, 2))\n",
            "def f(b, a):\n    return b - a\nprint(getattr(here, 'f')(a=1, b=2), f(1, 2))\n",
        ),
        (
            "def ff(a, b):\n    return a - b\nprint(getattr(here, 'f' + x)(a=1, b=2), ff(1, 2))\n",
            "def ff(b, a):\n    return b - a\nprint(getattr(here, 'f' + x)(a=1, b=2), ff(1, 2))\n",
        ),
        ("class A:\n    rows = 1\n", "class A:\n    cols = 1\n"),
        ("def f():\n    global x\n    x = 1\n", "def f():\n    global y\n    y = 1\n"),
        ("def f():\n    print(f'{(x := 1)=}')\n", "def f():\n    print(f'{(y := 1)=}')\n"),
        ("def f(a):\n    return [a for b in a]\n", "def f(a):\n    return [b for b in a]\n"),
        ("def f(a):\n    return lambda b: a\n", "def f(a):\n    return lambda b: b\n"),
        (
            "def f():\n    x = 1\n    def g():\n        x = 2\n    g()\n    return x\n",
            "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    g()\n    return x\n",
        ),
        ("x = 1\ndef f():\n    return x\n", "x = 1\ndef f():\n    x = 2\n    return x\n"),
        (
            "from m import f as g, f as h\ng = 1\nprint(h)\n",
            "from m import f as g, f as h\ng = 1\nprint(g)\n",
        ),
    ],
    ids=str,
)
def test_a_name_that_something_reads_counts(before: str, after: str, package: Package):
    assert package({"main.py": before}) != package({"main.py": after})


def test_a_call_by_keyword_from_another_file_counts(package: Package):
    """`tile(rows)` gives the parameter by its place; `tile(rows=rows)` by its name."""
    other = TILES.replace("rows", "lines")
    assert package(_plain(**{"ops/tiles.py": other})) == package(_plain())
    by_name = _plain(**{"main.py": MAIN.replace("tile(rows)", "tile(rows=rows)")})
    assert package(by_name | {"ops/tiles.py": other}) != package(by_name)
