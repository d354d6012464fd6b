"""The text of one file's code: equal for equal code, whatever its local variables are called."""

import ast
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longca.lab.code.facts import Names
from longca.lab.code.notes import Notes, options_of
from longca.lab.code.numbers import Numbers
from longca.lab.code.scopes import (
    READERS,
    Comprehension,
    Function,
    Imported,
    LocalName,
    OfClass,
    Origin,
    Origins,
    Scope,
    Scopes,
    has_rarities,
    imports_of,
    is_typing_only,
    keeps_names,
    last_name,
    resolved,
    without_face,
)

BLIND_DECORATORS = {
    "abstractmethod",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "final",
    "lru_cache",
    "override",
    "property",
    "staticmethod",
    "wraps",
}  # these read neither annotations nor names
BLIND_CLASS_DECORATORS = {"dataclass", "final", "runtime_checkable", "total_ordering"}
WITH_NAMES = {
    ast.AnnAssign,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.MatchMapping,
    ast.MatchClass,
    ast.Global,
    ast.Nonlocal,
}
NOTED = {ast.JoinedStr, ast.BinOp, ast.Subscript}
NOT_WRITTEN = {"ctx", "kind", "type_comment", "type_ignores"}


class Text:
    """Turns the code of one file into text, and gathers the facts that say which names count."""

    def __init__(self, source: bytes, path: Path) -> None:
        tree = without_face(ast.parse(source))
        self._path = path
        self._out = list[str]()
        self._references: dict[Origin, int] = {}
        self._numbers = Numbers()
        self._class = ""  # at hand, if it has bases
        self._is_read = False  # names in annotations count where annotations do
        rare = list(ast.walk(tree)) if has_rarities(source) else []
        self._all_named = any(
            (isinstance(node, ast.Import) and any(alias.name == "builtins" for alias in node.names))
            or (isinstance(node, ast.ImportFrom) and node.module == "builtins")
            or (isinstance(node, ast.Name) and node.id == "__builtins__")
            for node in rare
        )
        self._keep_names = {
            id(node)
            for node in rare
            if isinstance(node, (*Function, ast.Lambda, *Comprehension)) and keeps_names(node)
        }
        self._scopes = Scopes(tree, source, path)
        top = self._scopes.top
        self._module = self._scopes.module
        functions = top.functions - top.stored - top.classes - top.imports.keys()
        self._notes = Notes(functions, top.classes, path)
        self._module.named = self._all_named
        self._body(tree.body, self._module, False)

    @property
    def text(self) -> str:
        return "".join(self._out)

    @property
    def references(self) -> tuple[Origin, ...]:
        """Names from other files of the package, in the order in which the code uses them."""
        return tuple(self._references)

    @property
    def exports(self) -> dict[str, Origin]:
        """Names that the module imports from the package."""
        imported = {
            name: token.origins[0] for name, token in self._module.items() if isinstance(token, Imported)
        }
        return {name: origin for name, origin in imported.items() if isinstance(origin, tuple)}

    @property
    def facts(self) -> set[str]:
        """The facts about this file's code."""
        return self._notes.facts()

    @property
    def names(self) -> Names:
        """The names that the text has as numbers."""
        notes = self._notes
        return self._numbers.names(self._scopes.top.stored, notes.attribute_keywords, notes.classes)

    def _body(self, body: Iterable[ast.stmt], scope: Scope, typed: bool) -> None:
        for statement in body:
            self._statement(statement, scope, typed)

    def _statement(self, node: ast.stmt, scope: Scope, typed: bool) -> None:
        """Writes a statement; nothing where it only imports, comments, or serves the type checker."""
        if isinstance(node, ast.ImportFrom):
            self._out += [
                f"(* {self._origins_text([origin])}\n"
                for name, origin in imports_of(node, self._path)
                if name == "*"
            ]
        elif isinstance(node, (ast.Import, ast.Pass)) or _is_text(node) or _is_overload(node):
            return
        elif isinstance(node, ast.If) and is_typing_only(node):
            self._body(node.orelse, scope, typed)
        elif isinstance(node, Function):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class_body(node, scope)
        elif isinstance(node, ast.AnnAssign) and not typed:
            if node.value is not None:
                self._node(ast.Assign(targets=[node.target], value=node.value), scope, typed)
                self._out.append("\n")
        else:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._notes.field(node.target.id)
            self._node(node, scope, typed)
            self._out.append("\n")

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        own, foreign = self._notes.decorators(node.decorator_list, BLIND_DECORATORS, scope)
        typed = bool(own) or foreign
        token = scope.get(node.name)
        self._out.append(f"({type(node).__name__}")
        self._written_name(node.name, scope)
        self._value(node.decorator_list, scope, typed)
        self._value(getattr(node, "type_params", []), scope, typed)
        before = self._numbers.begin()
        named = scope.named or foreign or id(node) in self._keep_names
        inner = self._scopes.of_function(scope.inside, node.args, node.body, named)
        self._arguments(node.args, scope, inner, typed)
        if typed and node.returns is not None:
            self._annotation(node.returns, scope)
        self._body(node.body, inner, typed)
        self._out.append(")\n")
        numbers = self._numbers.end(before)
        self._numbers.decorated(own, numbers)
        self._numbers.function(node, token, inner, numbers, self._class)
        if own:
            self._notes.passed(node.name, token)

    def _class_body(self, node: ast.ClassDef, scope: Scope) -> None:
        own, foreign = self._notes.decorators(node.decorator_list, BLIND_CLASS_DECORATORS, scope)
        self._out.append(f"(ClassDef ${node.name}")
        if isinstance(scope.get(node.name), LocalName):
            self._written_name(node.name, scope)
        self._value(
            [node.bases, node.keywords, node.decorator_list, getattr(node, "type_params", [])], scope, True
        )
        self._notes.class_of(node, own)
        has_bases = self._notes.bases(node, scope)
        before = self._numbers.begin()
        around = self._class
        self._class = node.name if has_bases else ""
        inner = self._scopes.of_class(scope, node.body, scope.named or foreign)
        for name, token in inner.items():
            if (
                isinstance(token, OfClass)
                and isinstance(token.outer, Imported)
                and token.outer is not self._module.get(name)
            ):
                self._out.append(f"(import ${name} {self._origins_text(token.outer.origins)})")
        self._body(node.body, inner, True)
        self._out.append(")\n")
        self._class = around
        self._numbers.decorated(own, self._numbers.end(before))

    def _arguments(self, node: ast.arguments, outer: Scope, inner: Scope, typed: bool) -> None:
        for field in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            value = getattr(node, field)
            self._out.append(f" {field}=[")
            for argument in value if isinstance(value, list) else [] if value is None else [value]:
                self._written_name(argument.arg, inner)
                if typed and argument.annotation is not None:
                    self._annotation(argument.annotation, outer)
            self._out.append("]")
        self._value([node.defaults, node.kw_defaults], outer, typed)

    def _annotation(self, node: ast.expr, scope: Scope) -> None:
        before = self._is_read
        self._is_read = True
        self._out.append(":")
        self._node(node, scope, True)
        self._is_read = before

    def _node(self, node: ast.AST, scope: Scope, typed: bool) -> None:
        kind = node.__class__
        if kind is ast.Name:
            self._name(node.id, scope, node.ctx.__class__ is ast.Load)  # type: ignore[attr-defined]
        elif kind is ast.Constant:
            self._constant(node.value)  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            self._attribute(node, scope, typed)  # type: ignore[arg-type]
        elif kind is ast.Call:
            self._call(node, scope, typed)  # type: ignore[arg-type]
        elif kind is ast.Lambda:
            self._lambda(node, scope, typed)  # type: ignore[arg-type]
        elif isinstance(node, Comprehension):
            self._comprehension(node, scope, typed)
        else:
            if kind in NOTED:
                self._notes.expression(node)
            self._fields(node, scope, typed)

    def _fields(self, node: ast.AST, scope: Scope, typed: bool) -> None:
        kind = node.__class__
        self._out.append(f"({kind.__name__}")
        special = kind in WITH_NAMES
        for field in _written_fields(kind):
            value = getattr(node, field, None)
            if value is None or value == []:
                continue
            self._out.append(f" {field}=")
            if special:
                self._special_field(node, field, value, scope, typed)
            else:
                self._value(value, scope, typed)
        self._out.append(")")

    def _special_field(self, node: ast.AST, field: str, value: Any, scope: Scope, typed: bool) -> None:
        """A field that may be an annotation, or names that the node has as texts."""
        if field == "annotation":
            self._annotation(value, scope)
        elif field in ("name", "rest"):
            self._written_name(value, scope)
        elif field == "names":
            for name in value:
                self._written_name(name, scope)
        else:
            if field == "kwd_attrs":
                for name in value:
                    self._notes.passed(name, None)
            self._value(value, scope, typed)

    def _value(self, value: Any, scope: Scope, typed: bool) -> None:
        if value.__class__ is list:
            self._out.append("[")
            for each in value:
                self._value(each, scope, typed)
            self._out.append("]")
        elif isinstance(value, ast.stmt):
            self._statement(value, scope, typed)
        elif isinstance(value, ast.AST):
            self._node(value, scope, typed)
        else:
            self._out.append(f" {value!a}")

    def _constant(self, value: Any) -> None:
        self._out.append(f" {value!a}")
        if isinstance(value, str):
            self._notes.text(value)

    def _written_name(self, name: str, scope: Scope) -> None:
        """A name that a node has as a text."""
        self._name(name, scope, False)

    def _name(self, name: str, scope: Scope, is_value: bool) -> None:
        token = scope.get(name)
        if is_value:
            self._notes.passed(name, token)
        if isinstance(token, OfClass):
            if not is_value:
                self._notes.stored.add(name)
            self._out.append(f" .{name}")
            token = token.outer
        if token is None:
            if is_value and name in READERS:
                self._notes.reader()
            self._out.append(f" ${name}")
        elif isinstance(token, LocalName):
            self._local(token, scope)
        elif isinstance(token, Imported):
            self._out.append(f" {self._origins_text(token.origins)}{f'${token.kept}' if token.kept else ''}")

    def _local(self, token: LocalName, scope: Scope) -> None:
        number = self._numbers.of(token)
        if scope.named or self._is_read:
            self._numbers.counting.add(number)
        self._out.append(f" %{number}{self._origins_text(token.origins) if token.origins else ''}")

    def _origins_text(self, origins: Origins) -> str:
        """Names as they were imported: in full from elsewhere, by a number from the package's other files."""
        texts = []
        for origin in origins:
            if isinstance(origin, str):
                texts.append(f"@{origin}")
                self._notes.function_of_module(origin)
            else:
                texts.append(f"#{self._references.setdefault(origin, len(self._references))}:{origin[1]}")
        return "|".join(texts)

    def _attribute(self, node: ast.Attribute, scope: Scope, typed: bool, is_value: bool = True) -> None:
        origins = resolved(node, scope)
        if is_value and node.ctx.__class__ is ast.Load:
            self._notes.passed(node.attr, None)
        if node.ctx.__class__ is not ast.Load:
            self._notes.stored.add(node.attr)
        if origins:
            self._out.append(f" {self._origins_text(origins)}")
            return
        if node.attr[:1] == "_" or node.attr[2:3] == "_":
            of_type = (
                isinstance(node.value, ast.Call) and last_name(node.value.func) == "type"
            ) or last_name(node.value) == "__class__"
            if not of_type:
                self._notes.attribute(node.attr)
        self._out.append("(.")
        self._node(node.value, scope, typed)
        self._out.append(f" {node.attr})")

    def _call(self, node: ast.Call, scope: Scope, typed: bool) -> None:
        self._notes.call(node, scope)
        self._out.append("(Call")
        function = node.func
        if isinstance(function, ast.Name):
            self._name(function.id, scope, False)
        elif isinstance(function, ast.Attribute):
            self._attribute(function, scope, typed, False)
        else:
            self._node(function, scope, typed)
        self._value(node.args, scope, typed)
        for keyword in node.keywords:
            self._out.append(f" {keyword.arg or '**'}=")
            if keyword.arg is None and options_of(keyword.value, scope) is not None:
                self._name(keyword.value.id, scope, False)  # type: ignore[attr-defined]
            else:
                self._node(keyword.value, scope, typed)
        self._out.append(")")

    def _lambda(self, node: ast.Lambda, scope: Scope, typed: bool) -> None:
        before = self._numbers.begin()
        named = scope.named or id(node) in self._keep_names
        inner = self._scopes.of_function(scope.inside, node.args, [node.body], named)
        self._out.append("(Lambda")
        self._arguments(node.args, scope, inner, False)
        self._node(node.body, inner, typed)
        self._out.append(")")
        self._numbers.of_lambda(node, inner, self._numbers.end(before))

    def _comprehension(self, node: Any, scope: Scope, typed: bool) -> None:
        targets = [generator.target for generator in node.generators]
        named = scope.named or id(node) in self._keep_names
        inner = self._scopes.of_function(scope.inside, None, targets, named)
        self._out.append(f"({type(node).__name__}")
        for number, generator in enumerate(node.generators):
            self._out.append(f" for{generator.is_async}")
            self._node(generator.target, inner, typed)
            self._node(generator.iter, inner if number else scope, typed)
            self._value(generator.ifs, inner, typed)
        self._value([node.key, node.value] if isinstance(node, ast.DictComp) else node.elt, inner, typed)
        self._out.append(")")


@functools.cache
def _written_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(field for field in kind._fields if field not in NOT_WRITTEN)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_overload(node: ast.stmt) -> bool:
    return isinstance(node, Function) and any(
        last_name(decorator) == "overload" for decorator in node.decorator_list
    )
