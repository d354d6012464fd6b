"""A digest of parsed code: files that moved, other comments and other names of local variables do not change
it.

These do not count: paths and names of files, imports (names are followed to where they come from instead),
comments, docstrings, blocks under `if TYPE_CHECKING`, and annotations that nothing reads. Annotations are
read in the bodies of classes (fields of a dataclass) and in functions with a decorator (`tl.constexpr` of a
Triton kernel, the schema of a Torch operator), so they count there. Nor do these:

- names of local variables, of functions in functions, and of variables of comprehensions;
- names of parameters that no call in these files can give by name.

These count: every statement and constant, texts in the code, and the names of functions, classes, attributes,
keywords and variables of modules and classes. Local names count where something can read them: in a function
with a decorator that is neither Python's own nor a function of the package (Triton compiles by names), and in
one with `locals`, `eval` or `exec`; `longca.lab.code.facts` has the rest.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from longca.lab.code import facts
from longca.lab.code.facts import Facts, Names
from longca.lab.code.scopes import Origin
from longca.lab.code.source import modules_of_package
from longca.lab.code.text import Text


class _Code(NamedTuple):
    """One file's code without its references."""

    digest: str  # "" where there is no code
    references: tuple[
        Origin, ...
    ]  # names from other files of the package, in the order in which the code uses them
    exports: dict[str, Origin]  # names that the module only imports
    names: Names
    facts: int  # what the code does that lets names count, in any file
    asks: int  # on which of these facts it depends whether this file's names count


def code_digest(files: Iterable[Path]) -> str:
    """64 hexadecimal digits over the code of these files, in whatever order.

    A file's part is made of its own code and of the code of the files that its names come from, as far as
    they are among `files`: so a name that is imported from another file than before counts, while a file that
    has moved does not. A file that is no Python counts by its bytes.
    """
    return _digest(frozenset((path, path.stat().st_mtime_ns) for path in files))


@functools.cache
def _digest(files: frozenset[tuple[Path, int]]) -> str:
    codes = {path: _parsed(path, mtime_ns) for path, mtime_ns in files}
    known = _facts(codes.values())
    parts = set()
    for file in files:
        if (code := codes[file[0]]).digest:
            used = (
                codes[origin].digest if (origin := _origin(reference, codes)) in codes else ""
                for reference in code.references
            )
            parts.add(
                hashlib.sha256(
                    "\n".join([code.digest, _counting(*file, known & code.asks), *used]).encode()
                ).hexdigest()
            )
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _facts(codes: Iterable[_Code]) -> int:
    """The facts of these files together."""
    known = 0
    waiting: set[tuple[str, str]] = set()
    calls: set[tuple[str, str]] = set()
    for code in codes:
        known |= code.facts
        waiting.update(code.names.classes)
        calls.update(code.names.attribute_keywords)
    is_fact = Facts(known)
    is_any = facts.stored(facts.ANYONE) in is_fact
    sets = facts.SETS in is_fact
    known |= facts.bits_of(
        {
            facts.keyword(facts.UNKNOWN, name)
            for attribute, name in calls
            if is_any
            or facts.stored(attribute) in is_fact
            or (sets and facts.whole_text(attribute) in is_fact)
        }
    )
    while True:
        is_fact = Facts(known)
        derived = {
            (name, base)
            for name, base in waiting
            if facts.foreign(base) in is_fact or facts.is_class(base) not in is_fact
        }  # of a base that is not here, nobody knows
        if not derived:
            return known
        known |= facts.bits_of(facts.foreign(name) for name, _ in derived)
        waiting -= derived


@functools.cache
def _counting(path: Path, mtime_ns: int, known: int) -> str:
    """The names that count of those that the file's text has as numbers."""
    names = _parsed(path, mtime_ns).names
    return ",".join(f"{number}={names.names[number]}" for number in names.that_count(Facts(known)))


def _code(path: Path) -> _Code:
    return _parsed(path, path.stat().st_mtime_ns)


@functools.cache
def _parsed(path: Path, _mtime_ns: int) -> _Code:
    content = path.read_bytes()
    if path.suffix != ".py":
        return _Code(hashlib.sha256(content).hexdigest(), (), {}, facts.NO_NAMES, 0, 0)
    text = Text(content, path)
    digest = hashlib.sha256(text.text.encode()).hexdigest() if text.text else ""
    names = text.names
    return _Code(
        digest,
        text.references,
        text.exports,
        names,
        facts.bits_of(text.facts),
        facts.bits_of(names.questions()),
    )


def _origin(reference: Origin, codes: Mapping[Path, _Code]) -> Path | None:
    """The file that defines a name, also where a package's `__init__` or another module hands it on.

    Args:
        codes: what is parsed already.
    """
    known = modules_of_package()
    for _ in range(10):  # a chain of modules that hand a name on is short
        module, name = reference
        path = known.get(module)
        handed_on = (codes.get(path) or _code(path)).exports.get(name) if path and name else None
        if handed_on is None:
            return path
        reference = handed_on
    return None
