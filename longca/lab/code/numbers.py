"""The numbers that a file's text has in place of the names of local variables, in the order of their first
use."""

import ast

from longca.lab.code.facts import Function, Names, Parameter
from longca.lab.code.scopes import LocalName, OfClass, Scope, Token


class Numbers:
    """Gives numbers to names, and keeps which of them are in which function."""

    def __init__(self) -> None:
        self.counting: set[int] = set()  # of names that count, whatever other files do
        self._names: list[str] = []
        self._parameters: list[Parameter] = []
        self._functions: list[Function] = []
        self._decorated: list[Function] = []
        self._local_parameters: list[tuple[LocalName, str, int]] = []  # the function, its parameter
        self._local_functions: list[tuple[LocalName, frozenset[int]]] = []
        self._first = 0  # of the function at hand
        self._outer: set[int] = set()  # below the first one, in the function at hand

    def of(self, token: LocalName) -> int:
        """The number of a name in the text that is being written."""
        if token.number < 0:
            token.number = len(self._names)
            self._names.append(token.name)
        elif token.number < self._first:
            self._outer.add(token.number)
        return token.number

    def begin(self) -> tuple[int, set[int]]:
        """Begins a function or a class. Returns what `end` needs."""
        before = self._first, self._outer
        self._first, self._outer = len(self._names), set()
        return before

    def end(self, before: tuple[int, set[int]]) -> frozenset[int]:
        """The numbers of all names in the text since `begin`."""
        numbers = frozenset((*range(self._first, len(self._names)), *self._outer))
        self._first, self._outer = before
        self._outer |= {number for number in numbers if number < self._first}
        return numbers

    def decorated(self, decorators: list[str], numbers: frozenset[int]) -> None:
        """Keep that functions of the package decorate what has these numbers.

        Args:
            decorators: their full names.
        """
        self._decorated += [Function(name, numbers) for name in decorators]

    def function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        token: Token,
        inner: Scope,
        numbers: frozenset[int],
        base: str,
    ) -> None:
        """Keep a function and its parameters.

        Args:
            token: what stands for its name.
            inner: its scope.
            numbers: of all names in its text.
            base: the class around it, where it has bases; else "".
        """
        for name in _given_by_name(node.args):
            parameter = inner.get(name)
            if not isinstance(parameter, LocalName):  # a name that stands for itself
                continue
            if name.startswith("__") or (node.name.startswith("__") and node.name.endswith("__")):
                self.counting.add(parameter.number)
            elif isinstance(token, LocalName):
                self._local_parameters.append((token, name, parameter.number))
            else:
                of_class = base if isinstance(token, OfClass) else ""
                self._parameters.append(Parameter(parameter.number, name, node.name, of_class))
        if isinstance(token, LocalName):
            self._local_functions.append((token, numbers))
        else:
            self._functions.append(Function(node.name, numbers))

    def of_lambda(self, node: ast.Lambda, inner: Scope, numbers: frozenset[int]) -> None:
        """Keep a lambda and its parameters."""
        self._functions.append(Function("", numbers))
        for name in _given_by_name(node.args):
            if isinstance(parameter := inner.get(name), LocalName):
                self._parameters.append(Parameter(parameter.number, name, "", ""))

    def names(
        self, variables: set[str], attribute_keywords: set[tuple[str, str]], classes: list[tuple[str, str]]
    ) -> Names:
        """All names, once the text is written.

        Args:
            variables: of the module.
            attribute_keywords: as of `Names`; likewise `classes`.
        """
        given = {
            number
            for function, name, number in self._local_parameters
            if function.is_passed or not function.keywords or function.keywords & {name, "**"}
        }
        passed = [Function("", numbers) for function, numbers in self._local_functions if function.is_passed]
        return Names(
            tuple(self._names),
            frozenset(self.counting | given),
            tuple(self._parameters),
            (*self._functions, *passed),
            tuple(self._decorated),
            frozenset(function.number for function, _ in self._local_functions),
            tuple(variables),
            tuple(attribute_keywords),
            tuple(classes),
        )


def _given_by_name(arguments: ast.arguments) -> list[str]:
    """Parameters that calls can give by their names."""
    return [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
