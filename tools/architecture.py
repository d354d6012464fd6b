"""Writes ARCHITECTURE.md from the packages' docstrings and imports, and knows which imports are allowed.

A layer is a package, a sub-package or a module that stands between packages. Each file belongs to the layer
with the longest name that begins its own.
"""

import ast
import functools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "longca"
TARGET = ROOT / "ARCHITECTURE.md"

_PLANNED = {"core", "masks", "kernels", "cp.partition", "cp.schedule", "cp.traffic_formula", "cp.contract"}
# layer → the layers of longca it may import, and all that they hold; whatever is not named is forbidden
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "masks": {"core", "data"},
    "store": {"core"},
    "environment": {"core"},
    "published": {"core"},
    "lowering": {"core", "masks"},
    "ops": {"core", "masks", "lowering"},
    "ops.band.tables": {"core", "masks", "ops.band.tables"},
    "ops.band.tables.backward_rule": {"masks"},
    "ops.band.config": {"core", "ops.band.tables"},
    "ops.band.launcher": set(),
    "ops.band.launches": {"ops.band.launcher"},
    "ops.transfer": set(),
    "ops.band.plan": {
        "core",
        "masks",
        "ops.transfer",
        "ops.band.tables",
        "ops.band.config",
        "ops.band.launches",
    },
    "ops.band.triton": {"ops.band.tables", "ops.band.config", "ops.band.launches"},
    "ops.band.sm90": {
        "ops.band.tables",
        "ops.band.triton",
        "ops.band.config",
        "ops.band.launches",
        "ops.band.plan",
    },
    "ops.band": {"core", "masks", "ops.band"},
    "kernels": {"core", "masks", "lowering", "ops"},
    "dispatch": {"core", "masks", "lowering", "ops", "kernels"},
    "predict": {"core", "masks", "lowering", "store", "ops.band.tables.backward_rule"},
    "ranking": {"core", "store"},
    "claims": {"core", "masks", "store", "ranking"},
    "report": {"core", "store", "ranking", "advice", "predict"},
    "paper": {
        "core",
        "ranking",
        "data",
        "masks",
        "store",
        "published",
        "claims",
        "report",
        "advice",
        "cp.partition",
        "cp.schedule",
    },
    "compare": {"core", "store", "ranking", "published", "report"},
    "archive": {"core", "store", "report"},
    "images": {"core", "store"},
    "cp": set(),
    "cp.comm": {"core"},
    "cp.partition": {"core", "masks"},
    "cp.schedule": {"core", "masks", "cp.partition"},
    "cp.traffic_formula": {"cp.partition"},
    "cp.contract": {"core", "kernels"},
    "cp.forecast": {"core", "masks", "kernels", "predict", "store", "cp.partition", "cp.schedule"},
    "cp.paper_style_forecast": {"core", "masks", "predict", "cp.baselines", "cp.schedule", "cp.forecast"},
    "cp.runtime": {*_PLANNED, "ops", "cp.comm"},
    "cp.kernel_support": {*_PLANNED, "cp.runtime"},
    "cp.planned": {*_PLANNED, "cp.comm", "cp.runtime", "cp.kernel_support"},
    "cp.baselines": {"core", "masks", "kernels", "cp.comm", "cp.partition", "cp.contract", "cp.runtime"},
    "cp.strategies": {*_PLANNED, "lowering", "cp.comm", "cp.runtime", "cp.planned", "cp.baselines"},
    "cp.api": {
        "core",
        "masks",
        "lowering",
        "kernels",
        "predict",
        "store",
        "cp.comm",
        "cp.contract",
        "cp.forecast",
        "cp.partition",
        "cp.runtime",
        "cp.schedule",
        "ops.transfer",
    },
    "cp.public": {"core", "masks", "cp.api", "cp.comm"},
    "advice": {
        "core",
        "masks",
        "kernels",
        "store",
        "ranking",
        "predict",
        "claims",
        "cp.contract",
        "cp.partition",
        "cp.schedule",
        "cp.forecast",
        "cp.paper_style_forecast",
    },
    "bench": set(),
    "bench.check": {"core", "masks", "kernels"},
    "bench.measure": {"core", "masks", "kernels", "cp.comm", "cp.partition", "cp.contract", "bench.check"},
    "bench.probe": {
        "core",
        "masks",
        "kernels",
        "predict",
        "store",
        "cp.comm",
        "cp.forecast",
        "bench.measure",
    },
    "bench.judge": {"core", "masks", "kernels", "store", "bench.check", "bench.measure"},
    "bench.playoff": {"core", "bench.check", "bench.measure", "bench.judge"},
    "bench.workers": {
        "core",
        "store",
        "environment",
        "cp.comm",
        "bench.measure",
        "bench.judge",
        "bench.playoff",
    },
    "bench.run": {"core", "data", "masks", "kernels", "store", "ranking", "bench.measure", "bench.workers"},
    "templates": {
        "core",
        "masks",
        "lowering",
        "kernels",
        "cp.partition",
        "cp.schedule",
        "cp.planned",
        "store",
        "report",
    },
    "cli": {
        "core",
        "data",
        "masks",
        "kernels",
        "cp",
        "store",
        "published",
        "ranking",
        "claims",
        "report",
        "paper",
        "compare",
        "archive",
        "images",
        "bench",
        "advice",
        "predict",
    },
}
# imported inside functions, where at all
HEAVY = {"torch", "triton", "pandas", "pyarrow", "matplotlib", "jinja2"}
# they only run beside them
AT_TOP = {"bench": {"torch"}, "dispatch": {"torch"}, "ops": {"torch", "triton"}, "templates": {"torch"}}
NEVER_TORCH = (
    "core",
    "data",
    "masks",
    "store",
    "environment",
    "published",
    "ranking",
    "claims",
    "report",
    "compare",
    "archive",
    "images",
    "predict",
    "advice",
    "cp.partition",
    "cp.schedule",
    "cp.forecast",
    "cp.paper_style_forecast",
)
DRAWN = {"": "Packages", "cp": "Context parallelism", "ops.band": "Band attention", "bench": "Measuring"}


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
    return max(fitting, key=len, default=module.partition(".")[0])


def is_inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@functools.cache
def imported_modules(module: str, typing: bool = False, package: Path = PACKAGE) -> frozenset[str]:
    """Modules of longca that one imports.

    Args:
        typing: those under TYPE_CHECKING count, too.
    """
    known, imported = modules(package), set()
    for name, _, typing_only in imports(known[module]):
        top, _, inside = name.partition(".")
        if top == PACKAGE.name and (typing or not typing_only):
            # a name stands for the module that has it
            imported.add(inside if inside in known else inside.rpartition(".")[0])
    return frozenset(imported & known.keys() - {module})


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
        "Made by `make docs` from the code; a test fails when it is stale.",
        "",
        'An arrow means "imports"; imports never form a cycle. The diagram of a package shows only imports '
        "within "
        "that package.",
    ]
    graph = edges()
    for package, title in DRAWN.items():
        names = _names_in(package)
        arrows: dict[str, set[str]] = {name: set() for name in names}
        for here, others in graph.items():
            shown = _shown(here, names)
            arrows.get(shown, set()).update({_shown(other, names) for other in others} & set(names) - {shown})
        lines += ["", f"## {title}", "", "```mermaid", "graph LR"]
        lines += [
            f"  {_short(name, package)} --> {_short(other, package)}"
            for name in names
            for other in sorted(arrows[name])
        ]
        lines += [
            "```",
            "",
            f"| {'package' if not package else 'part'} | what it holds | imports |",
            "|---|---|---|",
        ]
        for name in names:
            outside = (
                []
                if not package
                else sorted({other for other in graph[name] if not is_inside(other, package)})
            )
            imported = [*(_short(other, package) for other in sorted(arrows[name])), *outside]
            lines.append(f"| `{name}` | {_summary(name)} | {', '.join(imported) or '–'} |")
        for name in names:
            lines += _details(name)
    lines += [
        "",
        "## Plug-ins",
        "",
        "A file in one of these folders is a plug-in. There is no other list of plug-ins.",
        "",
        "| kind | folder | contract |",
        "|---|---|---|",
    ]
    from longca.core.plugin import KINDS

    lines += [f"| {kind.name} | `longca/{kind.folder}` | `{kind.contract}` |" for kind in KINDS.values()]
    return "\n".join(lines) + "\n"


def _names_in(package: str) -> list[str]:
    """The layers that a drawing shows: the packages, or those inside one; itself too where it has modules of
    its own."""
    if not package:
        return [name for name in ALLOWED if "." not in name]
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
