"""Names of local variables do not count in a digest, but for those that something can observe."""

import itertools
import re

import pytest

from tests.helpers.core.code_package import MAIN, TILES, Package, plain

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
    assert package(plain(**{"ops/tiles.py": other})) == package(plain())
    by_name = plain(**{"main.py": MAIN.replace("tile(rows)", "tile(rows=rows)")})
    assert package(by_name | {"ops/tiles.py": other}) != package(by_name)
