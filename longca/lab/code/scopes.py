"""Names that a scope of Python binds, and what stands for each of them in a digest.

A name that a function binds is written as a number, so a consistent renaming changes nothing. Names of
modules and classes stay.
"""

import ast
import bisect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeGuard

from longca.lab.code.source import PACKAGE, absolute, definition, modules_of_package

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
GLOBAL = re.compile(rb"^[ \t]*global[ \t]", re.MULTILINE)
RARE_TEXTS = (b"locals", b"eval", b"exec", b"vars", b"dir", b"builtins")
RARE = re.compile(rb"\b(?:locals|eval|exec|vars|dir|builtins|__builtins__)\b")
TYPE_PARAMETERS = re.compile(rb"^[ \t]*(?:async[ \t]+)?(?:def|class|type)[ \t]+\w+[ \t]*\[", re.MULTILINE)
SCOPE_READERS = {"locals", "eval", "exec"}  # a function that names one keeps the names in it
VALUE_READERS = {"vars", "dir"}  # as these do, without an argument
READERS = SCOPE_READERS | VALUE_READERS
IN_TARGETS = {ast.Tuple, ast.List, ast.Starred}
TARGETS = {ast.Name, *IN_TARGETS}  # expressions that may be a statement's targets
NO_EXPRESSIONS = (ast.stmt, ast.ExceptHandler, ast.match_case, ast.pattern, ast.withitem)
Origin = tuple[str, str]  # module of the package, name in it: "" where the module itself is meant
Origins = list[
    str | Origin
]  # all that a name is imported as: a full name outside the package, or an origin inside


@dataclass(eq=False)
class LocalName:
    """A name that a function binds."""

    name: str
    number: int = -1  # by the order in which the text names them
    origins: Origins = field(default_factory=list)  # where the function also imports the name
    is_function: bool = False
    is_options: bool = False  # the parameter of `**options`
    is_passed: bool = False  # as a value, beside being called
    keywords: set[str] = field(default_factory=set)  # that calls of the function have; "**" among them


class Imported(NamedTuple):
    """A name that a scope imports."""

    origins: Origins
    kept: str = ""  # the name, where the scope also binds it in another way


class OfClass(NamedTuple):
    """A name that the body of a class binds: an attribute."""

    name: str
    outer: "Token"  # what the body reads before that


Token = LocalName | Imported | OfClass | None  # None: the name itself


class Scope(dict[str, Token]):
    """The meaning of names: a name that is missing stands for itself."""

    named = False  # the names of its functions count, since something reads them
    inside: "Scope"  # where functions in it begin: names of a class are not seen in its methods

    def __init__(self, outer: "Scope | None" = None) -> None:
        super().__init__(outer or {})
        if outer is not None:
            self.named = outer.named
        self.inside = self


class Bound(NamedTuple):
    """The names that the nodes of one scope bind, without those of functions and classes in it."""

    stored: set[str]
    functions: set[str]
    classes: set[str]
    imports: dict[str, Origins]
    elsewhere: dict[str, bool]  # declared as global (True) or nonlocal


class Scopes:
    """Makes the scopes of one file."""

    def __init__(self, tree: ast.Module, source: bytes, path: Path) -> None:
        self._path = path
        self._lines_with_walrus = (
            [number for number, line in enumerate(source.splitlines(), 1) if b":=" in line]
            if b":=" in source
            else []
        )
        self.top = self.bound(tree.body)
        declared = (
            {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
            if b"global " in source and GLOBAL.search(source)
            else set()
        )
        kept = self.top.stored | self.top.functions | self.top.classes | declared
        self.module = Scope()
        for name, origins in self.top.imports.items():
            self.module[name] = Imported(origins, name if name in kept else "")

    def of_function(
        self, outer: Scope, arguments: ast.arguments | None, body: Sequence[ast.AST], named: bool
    ) -> Scope:
        """The scope of a function, a lambda or a comprehension; with `named` its names stand for themselves.

        Args:
            outer: the scope where it begins.
            arguments: its parameters; None of a comprehension.
            body: statements, one expression, or the targets of a comprehension.
        """
        bound = self.bound(body)
        scope = Scope(outer)
        scope.named = named
        parameters = parameters_of(arguments) if arguments else ()
        options = arguments.kwarg.arg if arguments and arguments.kwarg else None
        given = {*parameters, *bound.stored, *bound.functions, *bound.classes}
        for name in given | bound.imports.keys():
            origins = bound.imports.get(name, [])
            if name in bound.elsewhere:
                continue
            if name not in given:
                scope[name] = Imported(origins)
            elif named:
                scope[name] = Imported(origins, name) if origins else None
            else:
                scope[name] = LocalName(
                    name,
                    origins=origins,
                    is_function=name in bound.functions,
                    is_options=name == options and name not in bound.stored,
                )
        for name, is_global in bound.elsewhere.items():
            if is_global:
                scope[name] = self.module.get(name)
        return scope

    def of_class(self, outer: Scope, body: list[ast.stmt], named: bool) -> Scope:
        """The scope of a class's body."""
        bound = self.bound(body)
        scope = Scope(outer)
        scope.inside = outer.inside
        scope.named = named
        for name in bound.stored | bound.functions | bound.classes | bound.imports.keys():
            scope[name] = OfClass(
                name, Imported(bound.imports[name]) if name in bound.imports else self.module.get(name)
            )
        for name, is_global in bound.elsewhere.items():
            scope[name] = self.module.get(name) if is_global else outer.get(name)
        return scope

    def bound(self, nodes: Sequence[ast.AST]) -> Bound:
        """The names that these nodes bind in the scope that they are a part of.

        Expressions bind names by `:=` alone, so they are looked through in statements that have it only.
        """
        bound = Bound(set(), set(), set(), {}, {})
        waiting = list(nodes)
        for node in waiting:  # grows meanwhile
            kind = node.__class__
            if kind is ast.Name:
                if node.ctx.__class__ is not ast.Load:  # type: ignore[attr-defined]
                    bound.stored.add(node.id)  # type: ignore[attr-defined]
            elif kind in IN_TARGETS:
                waiting += children(node)
            elif isinstance(node, ast.expr):
                self._assigned_in(node, node, bound)
            elif isinstance(node, Function):
                bound.functions.add(node.name)
                for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
                    self._assigned_in(part, node, bound)
            elif kind is ast.ClassDef:
                bound.classes.add(node.name)  # type: ignore[attr-defined]
                for part in (*node.decorator_list, *node.bases, *node.keywords):  # type: ignore[attr-defined]
                    self._assigned_in(part, node, bound)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for name, origin in imports_of(node, self._path):
                    bound.imports.setdefault(name, []).append(origin)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                bound.elsewhere.update(dict.fromkeys(node.names, kind is ast.Global))
            elif kind is ast.If and is_typing_only(node):
                waiting += node.orelse
            elif kind is ast.Expr or kind is ast.Return:
                self._assigned_in(node.value, node, bound)  # type: ignore[attr-defined]
            else:
                self._parts_of_statement(node, bound, waiting)
        return bound

    def _parts_of_statement(self, node: ast.AST, bound: Bound, waiting: list[ast.AST]) -> None:
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            if name:
                bound.stored.add(name)
        has_walrus = bool(self._lines_with_walrus) and self._has_walrus(node)
        for child in children(node):
            if isinstance(child, NO_EXPRESSIONS) or child.__class__ in TARGETS:
                waiting.append(child)
            elif has_walrus:
                self._assigned_in(child, child, bound)

    def _has_walrus(self, node: ast.AST) -> bool:
        first = getattr(node, "lineno", 0)
        last = getattr(node, "end_lineno", None) or sys.maxsize
        return bisect.bisect_left(self._lines_with_walrus, first) < bisect.bisect_right(
            self._lines_with_walrus, last
        )

    def _assigned_in(self, node: ast.AST | None, around: ast.AST, bound: Bound) -> None:
        """Adds the names that an expression binds by `:=`: in its comprehensions too, not in its lambdas."""
        if node is None or not self._lines_with_walrus or not self._has_walrus(around):
            return
        waiting = [node]
        for inner in waiting:
            if isinstance(inner, ast.NamedExpr):
                bound.stored.add(inner.target.id)
            if not isinstance(inner, ast.Lambda):
                waiting += children(inner)
            else:
                waiting += [
                    part for part in (*inner.args.defaults, *inner.args.kw_defaults) if part is not None
                ]


def imports_of(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, str | Origin]]:
    """Each name that an import binds, and what it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            name = alias.name if alias.asname else top
            yield alias.asname or name, (name, "") if top == PACKAGE else name
    else:
        module = absolute("." * node.level + (node.module or ""), path)
        is_inside = module.partition(".")[0] == PACKAGE
        for alias in node.names:
            yield (
                alias.asname or alias.name,
                definition(module, alias.name) if is_inside else f"{module}.{alias.name}",
            )


def parameters_of(arguments: ast.arguments) -> list[str]:
    """The names of all parameters."""
    named = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    return [argument.arg for argument in named if argument is not None]


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes right below a node, in their order."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (each for each in value if isinstance(each, ast.AST))
        elif isinstance(value, ast.AST):
            yield value


def is_typing_only(node: ast.AST) -> TypeGuard[ast.If]:
    """Tells a block for the type checker."""
    return isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING"


def without_face(tree: ast.Module) -> ast.Module:
    """The code of a package's `__init__` without the names that it loads at their first use.

    A method depends on those that it uses, not on all that are offered. So `__all__` keeps the names that the
    `__init__` imports at once, and goes where there are none.
    """
    face = next((node for node in tree.body if is_typing_only(node) and _is_face(node)), None)
    if face is None:
        return tree
    imports = (node for node in face.body if isinstance(node, ast.ImportFrom))
    offered = {alias.asname or alias.name for node in imports for alias in node.names}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and _is_all(node.targets[0]):
            names = [each for each in node.value.elts if getattr(each, "value", None) not in offered]
            if names:
                body.append(ast.Assign(targets=node.targets, value=ast.List(elts=names, ctx=ast.Load())))
        elif node is not face:
            body.append(node)
    return ast.Module(body=body, type_ignores=[])


def _is_face(node: ast.If) -> bool:
    return any(
        isinstance(part, ast.Assign) and isinstance(part.value, ast.Call) and last_name(part.value) == "face"
        for part in node.orelse
    )


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__all__"


def last_name(node: ast.expr) -> str:
    """ "cache" of `@cache`, `@functools.cache` and `@functools.cache()`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def resolved(node: ast.expr, scope: Scope) -> Origins:
    """All that a name, or an attribute of a module, is imported as; none where it is also bound in another
    way."""
    if isinstance(node, ast.Name):
        token = scope.get(node.id)
        return token.origins if isinstance(token, Imported) and not token.kept else []
    if not isinstance(node, ast.Attribute):
        return []
    of_module = [_member(origin, node.attr) for origin in resolved(node.value, scope)]
    return [origin for origin in of_module if origin is not None] if None not in of_module else []


def _member(origin: str | Origin, name: str) -> str | Origin | None:
    """That name in a module; None where the origin is a function, a class or a value of the package."""
    if isinstance(origin, str):
        return f"{origin}.{name}"
    module = ".".join(part for part in origin if part)
    return definition(module, name) if module in modules_of_package() else None


def has_rarities(source: bytes) -> bool:
    """Tells whether `keeps_names` may be true of something in a file."""
    return (any(rare in source for rare in RARE_TEXTS) and RARE.search(source) is not None) or (
        sys.version_info >= (3, 12) and TYPE_PARAMETERS.search(source) is not None
    )


def keeps_names(node: ast.AST) -> bool:
    """Tells whether something in a function reads its names as texts, or it has type parameters."""
    parts = list(ast.walk(node))
    with_value = {
        id(part.func) for part in parts if isinstance(part, ast.Call) and part.args
    }  # `vars(x)` reads x
    names = [part for part in parts if isinstance(part, ast.Name)]
    return any(
        name.id in SCOPE_READERS or (name.id in VALUE_READERS and id(name) not in with_value)
        for name in names
    ) or any(getattr(part, "type_params", None) for part in parts)
