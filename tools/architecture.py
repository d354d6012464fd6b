"""Writes ARCHITECTURE.md from the packages' docstrings and imports, and compares imports with `tools.layers`."""  # noqa: E501

import ast
import functools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tools.layers import ALLOWED, DRAWN, WAYS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "longca"
TARGET = ROOT / "ARCHITECTURE.md"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


class Import(NamedTuple):
    """One name that a file imports."""

    name: str  # of a module, or of something in it
    at_import: bool  # not inside a function
    typing_only: bool  # under TYPE_CHECKING


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    """All names that a file imports."""
    return tuple(_imports(parsed(path), True, False))


def _imports(node: ast.AST, at_import: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, at_import, typing_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (Import(f"{node.module}.{alias.name}", at_import, typing_only) for alias in node.names)
    else:
        at_import &= not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        typing_only |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, at_import, typing_only)


@functools.cache
def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Name without "longca." → file; a package's file is its `__init__`. The whole package's name is ""."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(package.rglob("*.py"))
    }


def layer(module: str) -> str:
    """The layer of a module, named without "longca."."""
    fitting = [name for name in ALLOWED if is_inside(module, name)]
    return max(fitting, key=len, default=package_of(module))


def package_of(module: str) -> str:
    """The package of a module, named without "longca."; one of the laboratory's is "lab.store"."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "lab" else 1])


def is_inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@functools.cache
def imported_modules(module: str, typing: bool = False, package: Path = PACKAGE) -> frozenset[str]:
    """Modules of longca that one imports. A name from a package's face stands for the module that defines it.

    Args:
        typing: those under TYPE_CHECKING count, too.
    """
    known = modules(package)
    imported = set()
    for name, _, typing_only in imports(known[module]):
        top, _, inside = name.partition(".")
        if top == PACKAGE.name and (typing or not typing_only):
            imported.add(defining_module(inside, package))
    return frozenset(imported & known.keys() - {module})


def defining_module(name: str, package: Path = PACKAGE) -> str:
    """The module that a name stands for: a module itself, or the one that has the name, through faces."""
    known = modules(package)
    while name not in known:
        module, _, attribute = name.rpartition(".")
        origin = face(module, package).get(attribute) if module in known else None
        if origin is None or origin == name:  # nothing has it, or a module that is gone
            return module
        name = origin
    return name


@functools.cache
def face(module: str, package: Path = PACKAGE) -> Mapping[str, str]:
    """Name that a package offers → the full name that its `__init__` imports for it, without "longca.".

    A module that is no package has no face, and neither has a package without `__all__`.
    """
    path = modules(package)[module]
    if path.name != "__init__.py":
        return {}
    tree = parsed(path)
    offered = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}".partition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE.name}.")
        for alias in node.names
        if (alias.asname or alias.name) in offered
    }


def edges() -> dict[str, dict[str, set[str]]]:
    """Layer → layer it imports → the imports between them."""
    graph: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in modules():
        for other in imported_modules(module):
            if layer(other) != layer(module):
                graph[layer(module)][layer(other)].add(f"{module} → {other}")
    return graph


def forbidden() -> dict[str, set[str]]:
    """ "layer → layer" → the imports between them, as far as they are not allowed."""
    return {
        f"{here} → {there}": between
        for here, others in edges().items()
        if here in ALLOWED
        for there, between in others.items()
        if not any(is_inside(there, name) for name in ALLOWED[here])
    }


def circles(package: Path = PACKAGE) -> set[frozenset[str]]:
    """Groups of modules that import each other, directly or not; imports for the type checker and inside
    functions count."""
    graph = {module: imported_modules(module, typing=True, package=package) for module in modules(package)}
    reach = {module: _reach(graph, module) for module in graph}
    return {
        frozenset(other for other in reach[module] if module in reach[other])
        for module in graph
        if module in reach[module]
    }


def _reach(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph[module]
    return reached


def page() -> str:
    lines = [
        "# Architecture",
        "",
        "longca is two things: a library of attention, and a laboratory that measures it. The laboratory imports the "  # noqa: E501
        "library; the library imports nothing of the laboratory, and a test holds it to that.",
        "",
        'Made by `make docs` from the code; a test fails when it is stale. An arrow means "imports"; imports never '  # noqa: E501
        "form a cycle. A drawing leaves out arrows that follow from others.",
    ]
    graph = edges()
    for package, title in DRAWN.items():
        lines += _drawing(package, title, graph)
        if package == "lab":
            lines += _ways()
    lines += [
        "",
        "## Plug-ins",
        "",
        "A file in one of these folders is a plug-in. There is no other list of plug-ins.",
        "",
        "| kind | folder | contract |",
        "|---|---|---|",
    ]
    from longca.core import KINDS

    lines += [f"| {kind.name} | `longca/{kind.folder}` | `{kind.contract}` |" for kind in KINDS.values()]
    return "\n".join(lines) + "\n"


def _drawing(package: str, title: str, graph: Mapping[str, Mapping[str, set[str]]]) -> list[str]:
    names = _names_in(package)
    arrows: dict[str, set[str]] = {name: set() for name in names}
    outside: dict[str, set[str]] = {name: set() for name in names}
    for here, others in graph.items():
        if shown := _shown(here, names):
            arrows[shown] |= {_shown(other, names) for other in others} & set(names) - {shown}
            outside[shown] |= {other for other in others if package and not is_inside(other, package)}
    lines = ["", f"## {title}", "", "```mermaid", "graph LR"]
    lines += [
        f"  {_short(name, package)} --> {_short(other, package)}"
        for name in names
        for other in sorted(_not_implied(arrows, name))
    ]
    lines += ["```", "", f"| {'part' if package else 'package'} | what it holds | imports |", "|---|---|---|"]
    for name in names:
        imported = [
            *(_short(other, package) for other in sorted(arrows[name])),
            *sorted({_within(other) for other in outside[name]} if package == "lab" else outside[name]),
        ]
        lines.append(f"| `{name}` | {_summary(name)} | {', '.join(imported) or '–'} |")
    if package != "lab":
        lines += [line for name in names for line in _details(name)]
    return lines


def _not_implied(arrows: Mapping[str, set[str]], name: str) -> set[str]:
    """The arrows of a layer that no longer way replaces."""
    graph = {layer: frozenset(others) for layer, others in arrows.items()}
    return {
        other
        for other in arrows[name]
        if not any(other in _reach(graph, between) for between in arrows[name] - {other})
    }


def _within(name: str) -> str:
    """The package of the library that has a layer."""
    return name.partition(".")[0]


def _ways() -> list[str]:
    """The files that a cell, a message and a claim pass through."""
    lines = ["", "## Three ways through the code", ""]
    for title, names in WAYS.items():
        lines += [f"**{title}**", ""]
        for number, name in enumerate(names, 1):
            folder = name.removesuffix(".{}")
            file = f"longca/{folder.replace('.', '/')}" + ("/…" if folder != name else ".py")
            sentence = _summary(folder).partition(". ")[0].rstrip(".")
            lines.append(f"{number}. `{file}`: {sentence}.")
        lines.append("")
    return lines[:-1]


def _names_in(package: str) -> list[str]:
    """The layers that a drawing shows: the packages, or those inside one; itself too where it has modules of
    its own."""
    if not package:
        return [name for name in ALLOWED if "." not in name]
    if package == "lab":
        return [name for name in ALLOWED if name.startswith("lab.") and name.count(".") == 1]
    own = [name for name, path in modules().items() if layer(name) == package and path.name != "__init__.py"]
    return [name for name in ALLOWED if is_inside(name, package) and (name != package or own)]


def _shown(name: str, names: Iterable[str]) -> str:
    """The shown layer that a layer is part of; "" where none is."""
    return max((other for other in names if is_inside(name, other)), key=len, default="")


def _short(name: str, package: str) -> str:
    return name.removeprefix(f"{package}.") if name != package else name.rpartition(".")[2]


def _summary(name: str) -> str:
    """The first paragraph of a layer's docstring, or the whole docstring of a package without a drawing in
    it."""
    text = ast.get_docstring(parsed(modules()[name])) or ""
    whole = modules()[name].name == "__init__.py" and not _has_drawing(text)
    return " ".join((text if whole else text.partition("\n\n")[0]).split())


def _details(name: str) -> list[str]:
    """The docstring of a package with a drawing, which becomes a block of text; nothing for other layers."""
    text = ast.get_docstring(parsed(modules()[name])) or ""
    if modules()[name].name != "__init__.py" or not _has_drawing(text):
        return []
    lines = ["", f"### `{name}`"]
    for indented, paragraphs in groupby(
        text.split("\n\n")[1:], key=lambda paragraph: paragraph.startswith("    ")
    ):
        block = textwrap.dedent("\n\n".join(paragraphs))
        lines += ["", *(["```text", *block.splitlines(), "```"] if indented else block.splitlines())]
    return lines


def _has_drawing(text: str) -> bool:
    return "\n\n    " in text


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
