"""Names of local variables and of parameters that something can observe, so that they count in a digest.

A local variable's name is seen by whoever reads frames or the code of functions; a parameter's name by
whoever calls its function with a keyword. Each file states facts about its own code, and names those facts of
any file on which its names depend. Facts are bits, since a study asks for hundreds of sets of files.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_NUMBERS = itertools.count()

FRAMES = "frames are read"  # all names count
CODE = "code of functions is read"  # names in functions that are passed as values count
NAMES = "names of functions are read"  # names of functions in functions count
COMPUTED = "attributes are read by computed names"  # parameters count that any keyword or text names
ANY_READ = "an unknown function is given to a compiler of sources"  # as CODE

SETS = "attributes are set whose names are values"  # some text is each such name, or has it between spaces

FRAME_READERS = {
    "sys._getframe",
    "sys._current_frames",
    "sys.settrace",
    "sys.setprofile",
    "inspect.currentframe",
    "inspect.stack",
    "inspect.trace",
    "inspect.getinnerframes",
    "inspect.getouterframes",
}
FRAME_ATTRIBUTES = {"f_locals", "f_back", "f_code", "tb_frame", "gi_frame", "cr_frame", "ag_frame"}
CODE_READERS = {
    f"inspect.{name}"
    for name in (
        "getsource",
        "getsourcelines",
        "signature",
        "Signature",
        "getfullargspec",
        "getclosurevars",
        "getcallargs",
        "getmembers",
    )
} | {"typing.get_type_hints", "inspect.get_annotations"}
CODE_ATTRIBUTES = {"__code__", "__closure__", "__annotations__", "__kwdefaults__", "gi_code", "cr_code"}
SOURCE_COMPILERS = ("triton.", "torch.jit.", "torch.library.", "numba.", "cutlass.", "cupy.")
COMPILING = {
    "CustomOpDef",
    "JITFunction",
    "autotune",
    "compile",
    "constexpr_function",
    "custom_op",
    "define",
    "heuristics",
    "impl",
    "jit",
    "kernel",
    "njit",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "script",
    "trace",
    "triton_op",
}


ANYONE = "*"  # as a function: any at all
UNKNOWN = "?"  # as a function: one that a variable or an attribute holds


class Facts:
    """A set of facts."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __contains__(self, fact: str) -> bool:
        return bool(self.bits >> _number(fact) & 1)


def bits_of(facts: Iterable[str]) -> int:
    """The facts as bits of a number."""
    bits = 0
    for fact in facts:
        bits |= 1 << _number(fact)
    return bits


@functools.cache
def _number(_fact: str) -> int:
    return next(_NUMBERS)


class Function(NamedTuple):
    """A function, and the numbers of all names in its text."""

    name: str  # "" of a lambda
    numbers: frozenset[int]


class Parameter(NamedTuple):
    """A parameter that can be given by its name."""

    number: int
    name: str
    function: str  # "" of a lambda
    base: str  # the class, where it has bases; "" elsewhere


class Names(NamedTuple):
    """Names that a file's text has as numbers, and what they depend on."""

    names: tuple[str, ...]
    counting: frozenset[int]  # whatever other files do
    parameters: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    decorated: tuple[
        Function, ...
    ]  # by a name of the package, which is in place of the function's: harmless if it is a function
    local_functions: frozenset[int]
    variables: tuple[str, ...]  # of the module: they may hold lambdas
    attribute_keywords: tuple[tuple[str, str], ...]  # an attribute that is called, and a keyword of the call
    classes: tuple[tuple[str, str], ...]  # class of this file, and its base from elsewhere in the package

    def questions(self) -> frozenset[str]:
        """The facts on which it depends whether a name counts."""
        asked = {FRAMES, CODE, NAMES, ANY_READ, COMPUTED, keyword(ANYONE, "**")}
        for parameter in self.parameters:
            asked.update(self._of_parameter(parameter))
        for function in self.functions:
            asked |= {passed(function.name), text(function.name), compiled(function.name)}
        asked.update(defined(function.name) for function in self.decorated)
        return frozenset(asked)

    def that_count(self, is_fact: Facts) -> list[int]:
        """The numbers of names that count, where these are the facts."""
        if FRAMES in is_fact:
            return list(range(len(self.names)))
        numbers = set(self.counting)
        if NAMES in is_fact:
            numbers |= self.local_functions
        reads_code = CODE in is_fact or ANY_READ in is_fact
        for function in self.functions:
            if compiled(function.name) in is_fact or (
                reads_code and (not function.name or _is_passed(function.name, is_fact))
            ):
                numbers |= function.numbers
        for function in self.decorated:
            if defined(function.name) not in is_fact:
                numbers |= function.numbers
        numbers.update(parameter.number for parameter in self.parameters if self._counts(parameter, is_fact))
        return sorted(numbers)

    def _counts(self, parameter: Parameter, is_fact: Facts) -> bool:
        """Tells whether something may give the parameter by its name."""
        name = parameter.name
        function = parameter.function
        is_named = keyword(ANYONE, name) in is_fact or text(name) in is_fact
        if not function:
            return any(keyword(holder, name) in is_fact for holder in (UNKNOWN, *self.variables)) or (
                keyword(ANYONE, "**") in is_fact and is_named
            )
        if COMPUTED in is_fact and (is_named or keyword(ANYONE, "**") in is_fact):
            return True
        return (
            called(function) not in is_fact
            or _is_passed(function, is_fact)
            or keyword(function, name) in is_fact
            or keyword(function, "**") in is_fact
            or (bool(parameter.base) and foreign(parameter.base) in is_fact)
        )

    def _of_parameter(self, parameter: Parameter) -> Iterator[str]:
        """All facts that `_counts` looks at, beside those that each file asks for."""
        name = parameter.name
        function = parameter.function
        yield from (keyword(ANYONE, name), text(name))
        if not function:
            yield from (keyword(holder, name) for holder in (UNKNOWN, *self.variables))
            return
        yield from (
            called(function),
            passed(function),
            text(function),
            keyword(function, name),
            keyword(function, "**"),
        )
        if parameter.base:
            yield foreign(parameter.base)


NO_NAMES = Names((), frozenset(), (), (), (), frozenset(), (), (), ())


def called(function: str) -> str:
    """A function of that name is called."""
    return f"{function}("


def keyword(function: str, name: str) -> str:
    """A function of that name is called with this keyword, or with "**"."""
    return f"{function}({name}"


def passed(name: str) -> str:
    """A function of that name may be used as a value."""
    return f"&{name}"


def text(name: str) -> str:
    """A text has a name, which may become a keyword or the name of an attribute."""
    return f"'{name}"


def whole_text(name: str) -> str:
    """A text is a name and nothing else."""
    return f"'{name}'"


def stored(attribute: str) -> str:
    """An attribute of that name is set: what it holds may be a lambda."""
    return f".{attribute}="


def compiled(function: str) -> str:
    """A function is given to what compiles its source."""
    return f"!{function}"


def defined(function: str) -> str:
    """A module has a function of that full name, by `def` alone."""
    return f"def {function}"


def is_class(name: str) -> str:
    """A file has a class of that name."""
    return f"class {name}:"


def foreign(name: str) -> str:
    """A class has a base outside the package, which may call its methods by keywords."""
    return f"class {name}"


def derived(name: str, base: str) -> str:
    """A class has a base from another file of the package."""
    return f"class {name}({base})"


def _is_passed(function: str, is_fact: Facts) -> bool:
    return passed(function) in is_fact or text(function) in is_fact
