"""Errors about user input, whose text is safe to print for any input, and checks of what users write: names,
whole numbers, lengths ("8K") and head counts ("64:8")."""

import difflib
import importlib.util
import operator
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from longca.core.secrets import without_secrets

MOST_OF_VALUE = 250  # characters of a value in quotes
MOST_OF_LINE = 2_000  # characters of one part of a message
MOST_PROBLEMS = 20  # lines of a message that names several problems
MOST_COMPARED = 100  # longest name for which similar names are searched
MOST_SHOWN = 80  # characters of a wrong length or head count

LAB = frozenset(
    {"jinja2", "matplotlib", "pandas", "psutil", "pyarrow", "pynvml", "rich", "snakemake", "typer"}
)
"""modules of the extra `lab` in pyproject.toml, which `pip install longca` leaves out"""

_LENGTH = re.compile(r"([0-9]{1,30})\s*([kKmM]?)")
_HEADS = re.compile(r"\s*([0-9]{1,30})\s*(?::\s*([0-9]{1,30})\s*)?")
_WAY = re.compile(r"\s*(.*?)\s*\+\s*(\w+)\s*", re.DOTALL)
_FACTOR = {"": 1, "k": 1024, "m": 1024 * 1024}
_QUOTED = re.compile(
    rf"(?<![^\s(=])'[^']{{{MOST_OF_VALUE + 1},}}'"
)  # not from the end of one value to the begin of the next


class UserError(Exception):
    """An error that the user can fix: the command prints this line and exits with code 2.

    Control characters are escaped and long values are shortened, so that the message is one line for any
    input.

    Args:
        what: the problem, with the offending value quoted.
        why: the violated rule, unless it is obvious.
        todo: the remedy.
        problems: texts of several problems of `what`. Each is printed on its own line, at most the first
            ones.
        num_more: number of problems that are not in that list.
    """

    exit_code = 2

    def __init__(
        self, what: str, *, why: str = "", todo: str = "", problems: Sequence[str] = (), num_more: int = 0
    ) -> None:
        self.what = shown(what)
        self.why = shown(why)
        self.todo = shown(todo)
        self.problems = tuple(shown(problem) for problem in problems[:MOST_PROBLEMS])
        self.num_problems = len(problems) + num_more
        super().__init__(what, why, todo)

    def __str__(self) -> str:
        if self.problems:
            more = self.num_problems - len(self.problems)
            lines = (*self.problems, *([f"… and {more:,} more"] if more else []))
            return f"{self.what} has {self.num_problems:,} problems:" + "".join(
                f"\n  {line}" for line in lines
            )
        sentence = f"{self.what}: {self.why}" if self.why else self.what
        stop = "" if sentence.endswith(("?", ".", "!")) else "."
        return f"{sentence}{stop} {self.todo}" if self.todo else sentence


def shown(text: str, most: int = MOST_OF_LINE) -> str:
    """The text on one line: control characters and unpaired surrogates are escaped, passwords are hidden, and
    long texts are shortened in the middle.

    Args:
        most: largest length of the result; a quoted value has at most `MOST_OF_VALUE` characters.
    """
    text = without_secrets(text)
    if len(text) > MOST_OF_VALUE:
        text = shortened(
            _QUOTED.sub(lambda match: f"'{shortened(match[0][1:-1], MOST_OF_VALUE)}'", text), most
        )
    return text if text.isprintable() else "".join(map(_printable, text))


def escaped(text: str) -> str:
    """The text with control characters and unpaired surrogates escaped; line ends and tabs are kept."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c == "\t" else _printable(c) for c in line)
        for line in text.split("\n")
    )


def storable(text: str, most: int) -> str:
    """The text in a form for records: unpaired surrogates are escaped, and long texts are shortened in the
    middle."""
    return shortened(text, most).encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """The text, or the beginning and end of a long text."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _printable(character: str) -> str:
    """Escapes characters that move the cursor or change the direction, and unpaired surrogates; other spaces
    are kept."""
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def raise_all(what: str, problems: Sequence[UserError]) -> None:
    """Raise the problem, or several problems as one error with a line for each; do nothing without problems.

    Args:
        what: the subject of the problems.
    """
    lines = list(dict.fromkeys(line for problem in problems for line in _lines(problem)))
    if len(lines) > 1:
        raise UserError(what, problems=lines)
    if lines:
        raise problems[0]


def _lines(error: UserError) -> list[str]:
    return [f"{error.what}: {problem}" for problem in error.problems] or [str(error)]


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names most similar to `name`, best first; empty if none is similar."""
    return (
        difflib.get_close_matches(name, list(known), n=count, cutoff=0.45)
        if len(name) <= MOST_COMPARED
        else []
    )


def unknown(
    kind: str, name: object, known: Iterable[str], todo: str = "", near: Sequence[str] = ()
) -> UserError:
    """The error for an unknown name: it suggests the most similar names, or all names if none is similar.

    Args:
        name: the given value, of any type.
        near: what is suggested in place of the known names that are similar.
    """
    known = sorted(known)
    close = near or (nearest(name, known) if isinstance(name, str) else [])
    if close:
        offer = "did you mean " + ", ".join(f"'{n}'" for n in close) + "?"
    else:
        offer = "known: " + ", ".join(known) if known else "there is none"
    given = f"'{name}'" if isinstance(name, str) else repr(name)
    return UserError(f"Unknown {kind} {given}", why=offer.rstrip("."), todo=todo)


def check_name(kind: str, name: object, known: Iterable[str], todo: str = "") -> None:
    """Raise the error of `unknown` for a value that is not one of the known names."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, name, known, todo)


def whole_number(what: str, value: Any, least: int = 1) -> int:
    """The value as an int. Raises UserError if it is not an integer, or less than `least`.

    Args:
        what: the subject of the error: "Argument 'gpus'".
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise UserError(f"{what} is {value!r}", todo=f"Give a whole number of at least {least}")
    return number


def truth(what: str, value: Any) -> bool:
    """The value as a bool: True, False, 1, 0, or one of these of NumPy. Raises UserError for all else: the
    text "false" would count as true.

    Args:
        what: the subject of the error: "Argument 'causal'".
    """
    if isinstance(value, bool):
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    is_number = isinstance(value, int) or (kind in ("b", "i", "u") and getattr(value, "ndim", 1) == 0)
    if is_number and value in (0, 1):
        return bool(value)
    raise UserError(f"{what} is {value!r}", todo="Give True or False")


def parse_length(text: int | str) -> int:
    """Tokens: 8192, "8192" or "8K" (K = 1024, M = 1024²). Raises ValueError for anything else, and below
    1."""
    match = _LENGTH.fullmatch(str(text).strip())
    value = int(match[1]) * _FACTOR[match[2].lower()] if match and not isinstance(text, bool) else 0
    if value < 1:
        raise ValueError(
            f"{_given(text)} is not a length: use a whole number of at least 1, such as 4096 or 8K"
        )
    return value


def format_length(num_tokens: int) -> str:
    """4096 → "4K", 1500 → "1500"."""
    for factor, suffix in ((1024 * 1024, "M"), (1024, "K")):
        if num_tokens >= factor and num_tokens % factor == 0:
            return f"{num_tokens // factor}{suffix}"
    return str(num_tokens)


def parse_heads(text: str | int) -> tuple[int, int]:
    """(query heads, KV heads) from "64:8"; a lone number means as many KV heads. Raises ValueError."""
    match = _HEADS.fullmatch(str(text))
    num_q_heads, num_kv_heads = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not num_q_heads or not num_kv_heads:
        raise ValueError(f"{_given(text)} is not a head count: use QUERY:KV, such as '64:8'")
    if num_q_heads % num_kv_heads:
        raise ValueError(
            f"'{text}': {num_q_heads} query heads cannot be shared evenly among {num_kv_heads} KV heads"
        )
    return num_q_heads, num_kv_heads


def given_heads(num_q_heads: object, num_kv_heads: object, usual: str) -> tuple[int, int]:
    """The numbers of query and KV heads: the usual ones where both are None, and as many KV heads as query
    heads where only those are.

    Args:
        usual: "64:8".

    Raises:
        UserError: one is no positive whole number.
    """
    if num_q_heads is None:
        num_q_heads, usual_kv = parse_heads(usual)
        num_kv_heads = usual_kv if num_kv_heads is None else num_kv_heads
    queries = whole_number("The number of query heads", num_q_heads)
    return queries, queries if num_kv_heads is None else whole_number("The number of KV heads", num_kv_heads)


def parse_way(text: str) -> tuple[str, str]:
    """(strategy, kernel) from "usp+band" or "usp[heads=2]+band", as answers name a way to run a call. The
    kernel is "" where none is named."""
    match = _WAY.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def one_kernel(way: str, kernels: Sequence[str]) -> tuple[str, str]:
    """The same as `parse_way`, beside kernels that are given by themselves. Raises UserError: the way names
    another one.

    Args:
        kernels: () where none is given.
    """
    strategy, kernel = parse_way(way)
    if kernel and kernels and kernel not in kernels:
        given = " and ".join(f"'{name}'" for name in kernels)
        raise UserError(
            f"Strategy '{way}' names kernel '{kernel}', and kernel {given} is given",
            todo=f"Give strategy '{strategy}' with the kernel that you want",
        )
    return strategy, kernel


def by_numbers(text: str) -> tuple[tuple[str, int], ...]:
    """Sort key of a text by the numbers in it, lengths included: "64:8" precedes "64:64", and "256" precedes
    "1K"."""
    parts = re.split(r"([0-9]{1,30}[kKmM]?)(?![0-9A-Za-z])", text)
    return tuple(
        ("", int(part.rstrip("kKmM")) * _FACTOR[part.lstrip("0123456789").lower()])
        if index % 2
        else (part, 0)
        for index, part in enumerate(parts)
    )


def _given(text: int | str) -> str:
    return shortened(repr(text), MOST_SHOWN)


def missing(what: str, module: str) -> UserError:
    """The error for something that needs a module of the extra `lab`: "longca.load needs pandas, …"."""
    todo = '`pip install "longca[lab]"` brings it'
    return UserError(f"{what} needs {module}, which is not installed", todo=todo)


def check_installed(what: str, *modules: str) -> None:
    """Raise the error of `missing` for the first of these modules that is not installed."""
    for module in modules:
        if not _is_installed(module):
            raise missing(what, module)


def missing_of(error: ImportError, what: str) -> UserError | None:
    """The error of `missing` for a failed import; None where it asked for no module of the extra `lab`."""
    module = (error.name or "").partition(".")[0]
    return missing(what, module) if module in LAB and not _is_installed(module) else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a finder refuses it
        return False
