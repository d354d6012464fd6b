"""Writes ARCHITECTURE.md from the packages' docstrings and imports, and knows which imports are allowed."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "longca"
TARGET = ROOT / "ARCHITECTURE.md"

# package → the packages of longca it may import; whatever is not named is forbidden
ALLOWED = {
    "core": set(),
    "data": {"core"},
    "masks": {"core", "data"},
    "store": {"core"},
    "lowering": {"core", "masks"},
    "ops": {"core", "masks", "lowering"},
    "kernels": {"core", "masks", "lowering", "ops"},
    "report": {"core", "store"},
    "archive": {"core", "store", "report"},
    "images": {"core", "store"},
    "cp": {"core", "masks", "lowering", "ops", "kernels"},
    "bench": {"core", "data", "masks", "kernels", "cp", "store"},
    "model": {"core", "masks", "cp", "store"},
    "cli": {"core", "data", "masks", "kernels", "cp", "store", "report", "archive", "images", "bench", "model"},
}
HEAVY = {"torch", "triton", "pandas", "pyarrow", "matplotlib", "jinja2"}  # imported inside functions, where at all
AT_TOP = {"bench": {"torch"}, "ops": {"torch", "triton"}}  # they only run beside them


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at import time?) for each import in a file; those under TYPE_CHECKING are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if node.module == "longca")]
        else:
            continue
        above, at_import, typing_only = getattr(node, "parent", None), True, False
        while above is not None:
            at_import &= not isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef))
            typing_only |= isinstance(above, ast.If) and "TYPE_CHECKING" in ast.dump(above.test)
            above = getattr(above, "parent", None)
        if not typing_only:
            found += [(name, at_import) for name in names]
    return found


def edges() -> dict[str, dict[str, set[str]]]:
    """package → package it imports → the files that do."""
    graph: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if len(relative.parts) == 1:
            continue
        for name, _ in imports(path):
            parts = name.split(".")
            if parts[0] == "longca" and len(parts) > 1 and parts[1] != relative.parts[0] and (PACKAGE / parts[1]).is_dir():
                graph[relative.parts[0]][parts[1]].add(relative.as_posix())
    return graph


def page() -> str:
    graph = edges()
    lines = ["# Architecture", "", "Made by `make docs` from the code; a test fails when it is stale.", "",
             "Imports go one way. An arrow says \"imports\".", "", "```mermaid", "graph LR"]
    present = [name for name in ALLOWED if (PACKAGE / name).is_dir()]
    lines += [f"  {name} --> {other}" for name in present for other in sorted(graph[name])]
    lines += ["```", "", "| package | what it holds | imports |", "|---|---|---|"]
    for name in present:
        doc = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        lines.append(f"| `{name}` | {' '.join(doc.split())} | {', '.join(sorted(graph[name])) or '–'} |")
    lines += ["", "Plug-in folders: a file there is a plug-in, listed nowhere else.", "",
              "| kind | folder | contract |", "|---|---|---|"]
    from longca.core.plugin import KINDS

    lines += [f"| {kind.name} | `longca/{kind.folder}` | `{kind.contract}` |" for kind in KINDS.values()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
