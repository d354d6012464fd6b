"""Errors for the user: something that they gave cannot be used."""

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Something outside the program must change: the command prints this line and exits with code 2.

    Args:
        what: what happened, with the offending value quoted.
        why: the rule it broke, where the first part does not say so.
        todo: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, why: str = "", todo: str = "") -> None:
        self.what, self.why, self.todo = what, why, todo
        super().__init__(what, why, todo)

    def __str__(self) -> str:
        sentence = f"{self.what}: {self.why}" if self.why else self.what
        if "\n" in sentence:  # several problems, one a line
            return sentence
        stop = "" if sentence.endswith(("?", ".", "!")) else "."
        return f"{sentence}{stop} {self.todo}" if self.todo else sentence


def raise_all(what: str, problems: Sequence[UserError]) -> None:
    """Raise the problem, or all of several as one error with a line for each; nothing without any.

    Args:
        what: the thing that has them.
    """
    lines = list(dict.fromkeys(map(str, problems)))
    if len(lines) > 1:
        raise UserError(several(what, lines))
    if lines:
        raise problems[0]


def several(what: str, problems: Sequence[str]) -> str:
    """The text of several problems of one thing, a line for each."""
    return f"{what} has {len(problems)} problems:" + "".join(f"\n  {problem}" for problem in problems)


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names most like `name`, best first; empty where nothing is alike."""
    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.45)


def unknown(kind: str, name: str, known: Iterable[str], todo: str = "") -> UserError:
    """The error for a name that nothing bears: it offers the nearest names, or all of them if none is alike."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        offer = "did you mean " + ", ".join(f"'{n}'" for n in close) + "?"
    else:
        offer = "known: " + ", ".join(known) if known else "there is none"
    return UserError(f"Unknown {kind} '{name}'", why=offer.rstrip("."), todo=todo)
