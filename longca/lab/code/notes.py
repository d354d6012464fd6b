"""Facts about one file's code on which it depends which local names count, gathered while its text is
written."""

import ast
import re
from pathlib import Path

from longca.lab.code import facts
from longca.lab.code.scopes import READERS, Function, Imported, LocalName, Scope, Token, last_name, resolved
from longca.lab.code.source import module_name

BASES_THAT_CALL_NOTHING = {"ABC", "Generic", "NamedTuple", "Protocol", "object"}
COMPUTED_BY = {"getattr", "attrgetter", "methodcaller", "__getattribute__"}
TOKEN = re.compile(r"[^\W\d]\w*")
WORD = re.compile(r"\w+")


class Notes:
    """The facts about one file."""

    def __init__(self, functions: set[str], classes: set[str], path: Path) -> None:
        """
        Args:
            functions: of the module, by `def` alone.
            classes: of the module.
        """
        self._functions = functions
        self._own_classes = classes
        self._module = module_name(path) or ""
        self._facts = {facts.defined(f"{self._module}.{name}") for name in functions}
        self._reads_attributes = self._composes_names = False
        self._unpacked_into: set[str] = set()  # attributes that are called with "**", and "" for other values
        self._handed_on: list[
            tuple[LocalName, str]
        ] = []  # options of a function, and what they are unpacked into
        self.stored: set[str] = set()  # names of attributes that the code sets
        self.attribute_keywords: set[tuple[str, str]] = (
            set()
        )  # an attribute that is called, and a keyword of the call
        self.classes: list[tuple[str, str]] = []  # class of this file, and a base from the package

    def facts(self) -> set[str]:
        """All facts, once the text is written."""
        known = self._facts | set(map(facts.stored, self.stored))
        if self._reads_attributes and self._composes_names:
            known.add(facts.COMPUTED)
        unpacked = self._unpacked_into | {into for options, into in self._handed_on if options.is_passed}
        if facts.COMPUTED in known and unpacked & {*self.stored, ""}:
            known.add(facts.keyword(facts.ANYONE, "**"))
        return known

    def text(self, value: str) -> None:
        """Notes the names in a text."""
        tokens = TOKEN.findall(value)
        self._facts.update(map(facts.text, tokens))
        if len(tokens) == 1:
            self._facts.add(facts.whole_text(tokens[0]))
        for token in tokens:
            if token[:1] == "_" or token[2:3] == "_":
                self.attribute(token)

    def field(self, name: str) -> None:
        """Notes a variable with a type: in a dataclass it becomes a text."""
        self._facts.add(facts.text(name))

    def reader(self) -> None:
        """Notes that `locals` or its like is a value, which any function may call under another name."""
        self._facts.add(facts.FRAMES)

    def function_of_module(self, origin: str) -> None:
        """Notes a name of another package."""
        if origin in facts.FRAME_READERS or origin.removeprefix("builtins.") in READERS:
            self._facts.add(facts.FRAMES)
        elif origin in facts.CODE_READERS:
            self._facts.add(facts.CODE)

    def expression(self, node: ast.AST) -> None:
        """Notes what may make a name from parts, or read an attribute by such a name."""
        if isinstance(node, ast.Subscript):
            if last_name(node.value) in ("globals", "vars", "__dict__"):
                if isinstance(node.ctx, ast.Load):
                    self.computed(node.slice)
                else:
                    self._stored_by(node.slice)
        elif not self._composes_names:
            self._composes_names = _composes_a_name(node)

    def class_of(self, node: ast.ClassDef, decorators: list[str]) -> None:
        """Notes a class; what decorates it may use its methods as values."""
        self._facts.add(facts.is_class(node.name))
        if decorators:
            self._facts |= {facts.passed(method.name) for method in node.body if isinstance(method, Function)}

    def bases(self, node: ast.ClassDef, scope: Scope) -> bool:
        """Notes where the class's bases come from. Returns whether it has any that may call its methods."""
        has_bases = False
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            origins = resolved(base, scope)
            name = last_name(base)
            if (origins and all(isinstance(origin, tuple) for origin in origins)) or (
                not origins and name in self._own_classes
            ):
                names = {origin[1] for origin in origins if isinstance(origin, tuple)} or {name}
                self.classes += [(node.name, each) for each in names]
            elif name in BASES_THAT_CALL_NOTHING and isinstance(base, (ast.Name, ast.Attribute)):
                continue
            else:
                self._facts.add(facts.foreign(node.name))
            has_bases = True
        if any(keyword.arg in ("metaclass", None) for keyword in node.keywords):
            self._facts.add(facts.foreign(node.name))
            has_bases = True
        return has_bases

    def decorators(self, decorators: list[ast.expr], blind: set[str], scope: Scope) -> tuple[list[str], bool]:
        """Full names of the package's own decorators, and whether others read the code that they decorate."""
        own = list[str]()
        foreign = False
        for decorator in decorators:
            name = last_name(decorator)
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            origins = resolved(target, scope)
            if origins and all(isinstance(origin, tuple) for origin in origins):
                own += [".".join(origin) for origin in origins]
            elif (
                not origins
                and isinstance(target, ast.Name)
                and name in self._functions
                and scope.get(name) is None
            ):
                own.append(f"{self._module}.{name}")
            elif name not in blind:
                foreign = True
        return own, foreign

    def passed(self, name: str, token: Token) -> None:
        """Notes that a name is used as a value."""
        if isinstance(token, LocalName):
            token.is_passed = True
            origins = token.origins
        else:
            self._facts.add(facts.passed(name))
            origins = token.origins if isinstance(token, Imported) else []
        self._facts.update(facts.passed(origin[1]) for origin in origins if isinstance(origin, tuple))

    def attribute(self, name: str) -> None:
        """Notes what attributes of Python's own read."""
        if name in ("__name__", "__qualname__"):
            self._facts.add(facts.NAMES)
        elif name in facts.FRAME_ATTRIBUTES:
            self._facts.add(facts.FRAMES)
        elif name in facts.CODE_ATTRIBUTES:
            self._facts.add(facts.CODE)

    def call(self, node: ast.Call, scope: Scope) -> None:
        """Notes what is called, and by which keywords."""
        function = node.func
        given = [keyword.arg or "**" for keyword in node.keywords]
        unpacked = [keyword.value for keyword in node.keywords if keyword.arg is None]
        handed_on = [options for value in unpacked if (options := options_of(value, scope))]
        token = scope.get(function.id) if isinstance(function, ast.Name) else None
        origins = resolved(function, scope) or (
            token.origins if isinstance(token, (LocalName, Imported)) else []
        )
        called = {origin[1] for origin in origins if isinstance(origin, tuple)}
        is_unknown = False
        if isinstance(token, LocalName):
            is_unknown = not token.is_function
            token.keywords |= {"", *given}
        elif isinstance(function, ast.Name):
            called.add(function.id)
        elif isinstance(function, ast.Attribute):
            called.add(function.attr)
            is_unknown = not origins
        else:
            is_unknown = True
        noted = {facts.called(name) for name in called}
        for name in given:
            noted.update(facts.keyword(function, name) for function in called)
            if is_unknown and isinstance(node.func, ast.Attribute):
                self.attribute_keywords.add((node.func.attr, name))
            elif is_unknown:
                noted.add(facts.keyword(facts.UNKNOWN, name))
            if name != "**":
                noted.add(facts.keyword(facts.ANYONE, name))
        if called & COMPUTED_BY and node.args:
            self.computed(node.args[-1 if "getattr" not in called else min(1, len(node.args) - 1)])
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "split"
            and isinstance(node.func.value, ast.Constant)
        ):
            noted.update(map(facts.whole_text, TOKEN.findall(str(node.func.value.value))))
        if called == {"setattr"} and len(node.args) > 1:
            self._stored_by(node.args[1])
        self._facts |= noted
        if is_unknown and unpacked:
            into = function.attr if isinstance(function, ast.Attribute) else ""
            self._handed_on += [(options, into) for options in handed_on]
            if len(handed_on) < sum(
                not isinstance(value, ast.Dict) and not _is_global(value, scope) for value in unpacked
            ):
                self._unpacked_into.add(into)
        self._compiler(node, scope)

    def _stored_by(self, name: ast.expr) -> None:
        """Notes that an attribute is set whose name is a value."""
        if isinstance(name, (ast.JoinedStr, ast.BinOp, ast.Call)):
            self.stored.add(facts.ANYONE)
        elif isinstance(name, ast.Constant):
            self.stored.add(str(name.value))
        else:
            self._facts.add(facts.SETS)

    def computed(self, name: ast.expr) -> None:
        """Notes that an attribute is read by a name which no single text has."""
        if isinstance(name, (ast.JoinedStr, ast.BinOp, ast.Call)):
            self._facts.add(facts.COMPUTED)
        elif not isinstance(name, ast.Constant):
            self._reads_attributes = True

    def _compiler(self, node: ast.Call, scope: Scope) -> None:
        """Notes the functions that a call gives to what compiles their sources."""
        function = node.func.func if isinstance(node.func, ast.Call) else node.func
        name = last_name(function)
        if name not in facts.COMPILING:
            return
        origins = resolved(function, scope)
        if origins and not any(
            isinstance(origin, tuple) or origin.startswith(facts.SOURCE_COMPILERS) for origin in origins
        ):
            return
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if all(
                isinstance(part, (ast.Constant, ast.List, ast.Tuple, ast.expr_context))
                for part in ast.walk(argument)
            ):
                continue
            if isinstance(argument, ast.Name) and not isinstance(scope.get(argument.id), LocalName):
                names = {origin[1] for origin in resolved(argument, scope) if isinstance(origin, tuple)} | {
                    argument.id
                }
                self._facts.update(map(facts.compiled, names))
            else:
                self._facts.add(facts.ANY_READ)


def options_of(node: ast.expr, scope: Scope) -> LocalName | None:
    """The `options` of `**options` in a function that is called with them: its callers have the keywords."""
    token = scope.get(node.id) if isinstance(node, ast.Name) else None
    return token if isinstance(token, LocalName) and token.is_options else None


def _composes_a_name(node: ast.AST) -> bool:
    """Tells whether an expression may make the name of an attribute from parts."""
    parts = (
        node.values
        if isinstance(node, ast.JoinedStr)
        else [node.left, node.right]
        if isinstance(node, ast.BinOp)
        else []
    )
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    is_number = any(isinstance(part, ast.FormattedValue) and part.format_spec for part in parts)
    if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Mod)):
        return False
    is_whole = isinstance(node, ast.JoinedStr) and len(parts) > 1
    return (
        (is_whole or bool(texts))
        and not is_number
        and all(isinstance(text, str) and WORD.fullmatch(text) for text in texts)
    )


def _is_global(node: ast.expr, scope: Scope) -> bool:
    """Tells a variable of this module: the texts in its code have its keys."""
    return isinstance(node, ast.Name) and scope.get(node.id) is None
