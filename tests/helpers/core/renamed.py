"""Code with its local variables renamed, by the scopes that Python's own `symtable` finds."""

import ast
import itertools
import random
import symtable
from collections import defaultdict

COMPREHENSIONS = {
    ast.ListComp: "listcomp",
    ast.SetComp: "setcomp",
    ast.DictComp: "dictcomp",
    ast.GeneratorExp: "genexpr",
}
BLIND = {"cached_property", "classmethod", "contextmanager", "property", "staticmethod"}


def renamed(text: str, seed: int) -> tuple[str, int]:
    """A file's code with other names for locals, and the number of names that changed.

    Names stay of parameters that have defaults or may be given by name, of functions with decorators that may
    read them, and of imports.
    """
    text = ast.unparse(ast.parse(text))  # one line a statement
    top = symtable.symtable(text, "file", "exec")
    renamer = _Renamer(top, random.Random(seed))
    tree = renamer.visit(ast.parse(text))
    return ast.unparse(tree), renamer.number


class _Renamer(ast.NodeTransformer):
    def __init__(self, top: symtable.SymbolTable, chance: random.Random) -> None:
        self._chance = chance
        self.number = 0
        self._fresh = (f"renamed_{number}" for number in itertools.count())
        self._scopes: list[tuple[symtable.SymbolTable, dict[str, str]]] = [(top, {})]
        self._tables: dict[int, dict[tuple[str, int], list[symtable.SymbolTable]]] = {}
        self._keeping = 0

    def _table(self, name: str, line: int) -> symtable.SymbolTable:
        parent = self._scopes[-1][0]
        if parent.get_id() not in self._tables:
            tables = self._tables[parent.get_id()] = defaultdict(list)
            for child in parent.get_children():
                tables[child.get_name(), child.get_lineno()].append(child)
        return self._tables[parent.get_id()][name, line].pop(0)

    def _enter(self, table: symtable.SymbolTable, parameters: bool) -> None:
        new = {}
        if isinstance(table, symtable.Function) and not self._keeping:
            names = sorted(
                symbol.get_name()
                for symbol in table.get_symbols()
                if symbol.is_local()
                and not symbol.is_imported()
                and (parameters or not symbol.is_parameter())
                and not symbol.is_global()
                and not symbol.is_nonlocal()
            )
            classes = {child.get_name() for child in table.get_children() if child.get_type() == "class"}
            for name in names:
                if not name.startswith((".", "__")) and name not in classes and self._chance.random() < 0.7:
                    new[name] = next(self._fresh)
        self._scopes.append((table, new))
        self.number += len(new)

    def _new(self, name: str) -> str:
        for number, (table, new) in enumerate(reversed(self._scopes)):
            if table.get_type() == "class" and number:
                continue
            try:
                symbol = table.lookup(name)
            except KeyError:
                continue
            if symbol.is_declared_global() or (symbol.is_global() and not symbol.is_free()):
                return name
            if symbol.is_local():
                return new.get(name, name)
        return name

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        self._visit_defaults(node.args)
        old = node.name
        node.name = self._new(node.name)
        reads = any(getattr(each, "id", "") not in BLIND for each in node.decorator_list)
        self._keeping += reads
        self._enter(self._table(old, node.lineno), False)
        self._inside(node.args)
        node.body = [self.visit(each) for each in node.body]
        self._scopes.pop()
        self._keeping -= reads
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def _visit_defaults(self, arguments: ast.arguments) -> None:
        arguments.defaults = [self.visit(each) for each in arguments.defaults]
        arguments.kw_defaults = [each and self.visit(each) for each in arguments.kw_defaults]

    def _inside(self, arguments: ast.arguments) -> None:
        for each in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if each is not None:
                each.arg = self._new(each.arg)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_defaults(node.args)
        self._enter(self._table("lambda", node.lineno), True)
        self._inside(node.args)
        node.body = self.visit(node.body)
        self._scopes.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for field in ("decorator_list", "bases", "keywords"):
            setattr(node, field, [self.visit(each) for each in getattr(node, field)])
        reads = any(not ast.unparse(each).startswith("dataclass") for each in node.decorator_list)
        self._keeping += reads
        self._enter(self._table(node.name, node.lineno), False)
        node.body = [self.visit(each) for each in node.body]
        self._scopes.pop()
        self._keeping -= reads
        return node

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> ast.AST:
        node.generators[0].iter = self.visit(node.generators[0].iter)
        self._enter(self._table(COMPREHENSIONS[type(node)], node.lineno), False)
        for number, generator in enumerate(node.generators):
            generator.target = self.visit(generator.target)
            if number:
                generator.iter = self.visit(generator.iter)
            generator.ifs = [self.visit(each) for each in generator.ifs]
        for field in ("value", "key", "elt"):  # in the order of Python's compiler
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self._scopes.pop()
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._new(node.id)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.name = node.name and self._new(node.name)
        return node

    def _pattern(self, node: ast.MatchAs | ast.MatchStar) -> ast.AST:
        self.generic_visit(node)
        node.name = node.name and self._new(node.name)
        return node

    visit_MatchAs = visit_MatchStar = _pattern

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self._new(name) for name in node.names]
        return node
