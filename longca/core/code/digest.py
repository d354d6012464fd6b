"""A digest of parsed code: the same wherever the files lie and however their comments are worded.

These do not count: paths and names of files, imports (names are followed to where they come from instead), comments, docstrings, blocks
under `if TYPE_CHECKING`, and annotations that nothing reads. Annotations are read in the bodies of classes (fields of a dataclass) and in
functions with a decorator (`tl.constexpr` of a Triton kernel, the schema of a Torch operator), so they count there.

These count: every statement and constant, texts in the code, and the names of functions, classes and variables.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from longca.core.code.source import PACKAGE, absolute, modules_of_package

DECORATORS_BLIND_TO_TYPES = {"abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "lru_cache", "override",
                             "property", "staticmethod"}
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Origin = tuple[str, str]  # module of the package, name in it: "" where the module itself is meant


class _Code(NamedTuple):
    """One file's code without its references."""

    digest: str  # "" where there is no code
    references: tuple[Origin, ...]  # names from other files of the package, in the order in which the code uses them
    exports: dict[str, Origin]  # names that the module only imports


def code_digest(files: Iterable[Path]) -> str:
    """64 hexadecimal digits over the code of these files, in whatever order.

    A file's part is made of its own code and of the code of the files that its names come from, as far as they are among `files`: so a
    name that is imported from another file than before counts, while a file that has moved does not. A file that is no Python counts by
    its bytes.
    """
    return _digest(frozenset((path, path.stat().st_mtime_ns) for path in files))


@functools.cache
def _digest(files: frozenset[tuple[Path, int]]) -> str:
    codes = {path: _parsed(path, mtime_ns) for path, mtime_ns in files}
    parts = set()
    for code in codes.values():
        used = (codes[origin].digest if (origin := _origin(reference)) in codes else "" for reference in code.references)
        if code.digest:
            parts.add(hashlib.sha256("\n".join([code.digest, *used]).encode()).hexdigest())
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _code(path: Path) -> _Code:
    return _parsed(path, path.stat().st_mtime_ns)


@functools.cache
def _parsed(path: Path, _mtime_ns: int) -> _Code:
    content = path.read_bytes()
    if path.suffix != ".py":
        return _Code(hashlib.sha256(content).hexdigest(), (), {})
    body, words = ast.parse(content).body, _Words(path)
    bound = words.bound(body, {})
    text = "".join(words.of_body(body, bound, typed=False))
    exports = {name: origins[0] for name, origins in bound.items() if isinstance(origins[0], tuple)}
    return _Code(hashlib.sha256(text.encode()).hexdigest() if text else "", tuple(words.references), exports)


def _origin(reference: Origin) -> Path | None:
    """The file that defines a name, also where a package's `__init__` or another module hands it on."""
    known = modules_of_package()
    for _ in range(10):  # a chain of modules that hand a name on is short
        module, name = reference
        path = known.get(module)
        handed_on = _code(path).exports.get(name) if path and name else None
        if handed_on is None:
            return path
        reference = handed_on
    return None


Bound = dict[str, list[str | Origin]]  # a name → all that it is imported as: a full name outside the package, or an origin inside


class _Words:
    """Turns the parsed code of one file into text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.references: dict[Origin, int] = {}

    def bound(self, body: list[ast.stmt], outer: Bound) -> Bound:
        """The names that the statements import, besides those of the scope around them."""
        own: Bound = {}
        for statement in _statements(body):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    top = alias.name.partition(".")[0]
                    name = alias.name if alias.asname else top
                    own.setdefault(alias.asname or name, []).append((name, "") if top == PACKAGE else name)
            elif isinstance(statement, ast.ImportFrom):
                module = absolute("." * statement.level + (statement.module or ""), self.path)
                inside = module.partition(".")[0] == PACKAGE
                for alias in statement.names:
                    origin = _inside(module, alias.name) if inside else f"{module}.{alias.name}"
                    own.setdefault(alias.asname or alias.name, []).append(origin)
        return {**outer, **own}

    def of_body(self, body: list[ast.stmt], bound: Bound, typed: bool) -> Iterator[str]:
        for statement in body:
            yield from self.of_statement(statement, bound, typed)

    def of_statement(self, node: ast.stmt, bound: Bound, typed: bool) -> Iterator[str]:
        """The words of a statement; none where it only imports, comments, or serves the type checker."""
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)) or _is_text(node) or _is_overload(node):
            return
        if _is_typing_only(node):
            assert isinstance(node, ast.If)
            yield from self.of_body(node.orelse, bound, typed)
        elif isinstance(node, Function):
            inner = self.bound(node.body, bound)
            reads = any(_last_name(decorator) not in DECORATORS_BLIND_TO_TYPES for decorator in node.decorator_list)
            yield f"({type(node).__name__} {node.name}"
            yield from self.of_value(node.decorator_list, bound, reads)
            yield from self.of_value([node.args, *([node.returns] if reads and node.returns else [])], bound, reads)
            yield from self.of_body(node.body, inner, reads)
            yield ")\n"
        elif isinstance(node, ast.ClassDef):
            yield f"(ClassDef {node.name}"
            yield from self.of_value([node.bases, node.keywords, node.decorator_list], bound, True)
            yield from self.of_body(node.body, bound, True)
            yield ")\n"
        elif isinstance(node, ast.AnnAssign) and not typed:
            if node.value is not None:
                yield from self.of_statement(ast.Assign(targets=[node.target], value=node.value), bound, typed)
        else:
            yield from self.of_node(node, bound, typed)
            yield "\n"

    def of_node(self, node: ast.AST, bound: Bound, typed: bool) -> Iterator[str]:
        if isinstance(node, (ast.Name, ast.Attribute)) and (origins := _origins(node, bound)):
            yield f" {'|'.join(self.name(origin) for origin in origins)}"
            return
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if (value is None and not isinstance(node, ast.Constant)) or value == [] or field in ("ctx", "kind", "type_comment"):
                continue
            if field == "annotation" and not typed:
                continue
            yield f" {field}="
            yield from self.of_value(value, bound, typed)
        yield ")"

    def of_value(self, value: Any, bound: Bound, typed: bool) -> Iterator[str]:
        if isinstance(value, list):
            yield "["
            for each in value:
                yield from self.of_value(each, bound, typed)
            yield "]"
        elif isinstance(value, ast.stmt):
            yield from self.of_statement(value, bound, typed)
        elif isinstance(value, ast.AST):
            yield from self.of_node(value, bound, typed)
        else:
            yield f" {value!r}"

    def name(self, origin: str | Origin) -> str:
        """A name as it was imported: in full from elsewhere, by a number from another file of the package."""
        if isinstance(origin, str):
            return origin
        number = self.references.setdefault(origin, len(self.references))
        return f"{number}:{origin[1]}"


def _origins(node: ast.expr, bound: Bound) -> list[str | Origin]:
    """All that a name, or an attribute of a module, is imported as; none where it was not imported."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, [])
    if not isinstance(node, ast.Attribute):
        return []
    of_module = [_member(origin, node.attr) for origin in _origins(node.value, bound)]
    return [origin for origin in of_module if origin is not None] if None not in of_module else []


def _member(origin: str | Origin, name: str) -> str | Origin | None:
    """That name in a module; None where the origin is a function, a class or a value of the package."""
    if isinstance(origin, str):
        return f"{origin}.{name}"
    module = ".".join(part for part in origin if part)
    return _inside(module, name) if module in modules_of_package() else None


def _inside(module: str, name: str) -> Origin:
    """A name in a module of the package, which may be a module itself."""
    return (f"{module}.{name}", "") if f"{module}.{name}" in modules_of_package() else (module, name)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a scope, without those of functions in it and those for the type checker."""
    for statement in body:
        yield statement
        if isinstance(statement, Function):
            continue
        if _is_typing_only(statement):
            yield from _statements(getattr(statement, "orelse", []))
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_typing_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"


def _is_overload(node: ast.stmt) -> bool:
    return isinstance(node, Function) and any(_last_name(decorator) == "overload" for decorator in node.decorator_list)


def _last_name(node: ast.expr) -> str:
    """"cache" of `@cache`, `@functools.cache` and `@functools.cache()`."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
