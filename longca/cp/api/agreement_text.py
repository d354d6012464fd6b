"""Headers of calls as text, and the sentences that say in what they differ between ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from longca.core import UserError, shortened
from longca.cp.api.shard_calls import difference_of_shards

PART_LENGTHS = (800, 250, 60)
"""characters of the parts of a header that is too long for its place: the first that make it fit"""
SEPARATOR = "\x1f"  # of parts. No part but the last has it: JSON escapes it

CALL_ALIKE = "Make the same calls, with the same arguments and in the same order, on every rank"
NEW_CONTEXT = "this context has ended, so make a new one with context_parallel"
CLOSES = "close"
"""the kind of the last call"""

Failure = list[str]
"""the three parts of a UserError, or a text alone for another exception"""


class Header(NamedTuple):
    """The part of a call that ranks compare."""

    kind: str
    number: int
    """of the call among those of its kind, from 1"""
    arguments: str
    """a line each, in words, the most telling one first"""
    shards: str
    """the calls of `shard` since the header before: see `ShardCalls`"""
    waits: bool
    """no message of this call leaves before all headers are compared"""
    failure: Failure | None
    """the error that this rank raises instead of sending anything"""

    def packed(self, max_bytes: int) -> bytes:
        header = self._encoded()
        for length in PART_LENGTHS:
            if len(header) <= max_bytes:
                break
            parts = None if self.failure is None else [shortened(part, length) for part in self.failure]
            header = self._replace(arguments=shortened(self.arguments, length), failure=parts)._encoded()
        return header

    def _encoded(self) -> bytes:
        """By hand: JSON of all would take as long as everything else that a header costs."""
        kind, number, arguments, shards, waits, failure = self
        failed = "" if failure is None else json.dumps(failure, ensure_ascii=False)
        text = f"{kind}\x1f{number}\x1f{'1' if waits else ''}\x1f{shards}\x1f{failed}\x1f{arguments}"
        return text.encode("utf-8", "backslashreplace")

    @classmethod
    def unpacked(cls, header: bytes) -> Header:
        kind, number, waits, shards, failure, arguments = header.decode().split(SEPARATOR, 5)
        return cls(
            kind, int(number), arguments, shards, bool(waits), json.loads(failure) if failure else None
        )

    @property
    def call(self) -> str:
        if self.kind == CLOSES:
            return f"closes the context after {self.number} {'call' if self.number == 1 else 'calls'}"
        first = self.arguments.partition("\n")[0]
        return f"calls {self.kind} number {self.number}" + (f" with {first}" if first else "")


def failure_of(error: Exception) -> Failure:
    """The error as other ranks are to see it."""
    return list(error.args) if isinstance(error, UserError) else [f"{type(error).__name__}: {error}"]


def error_of_ranks(
    failures: Sequence[Failure | None], own: Exception | None, ending: str = ""
) -> Exception | None:
    """The error that this rank raises where one rank's own work has failed.

    Args:
        failures: by rank.
        own: the exception of this rank.
        ending: of the error, if it is not empty.

    Returns:
        The UserError of the first rank that has one, in the same words on every rank; otherwise this rank's
        own exception, or a RuntimeError that names the rank that failed. None if no rank failed.
    """
    alike = all(failure == failures[0] for failure in failures)
    for rank, failure in enumerate(failures):
        if failure is not None and len(failure) > 1:
            what, why, todo = failure
            return UserError(what if alike else f"Rank {rank}: {what}", why=why, todo=_joined(todo, ending))
        if failure is not None:
            reason = failure[0].partition("\n")[0]
            return own or RuntimeError(_joined(f"rank {rank} failed: {reason}", ending))
    return None


def disagreement(headers: Sequence[Header]) -> UserError | None:
    """The error where ranks call different things. None if they do not, or if one has an error of its own."""
    ending = ending_of(headers)
    if len({(header.kind, header.number) for header in headers}) > 1:
        return UserError(
            "Ranks call different things",
            why=_by_rank([header.call for header in headers]),
            todo=_joined(CALL_ALIKE, ending),
        )
    difference = difference_of_shards([header.shards for header in headers])
    if difference is not None:
        what, why, todo = difference
        return UserError(what, why=why, todo=_joined(todo, ending))
    first = headers[0]
    if any(header.failure is not None for header in headers) or all(
        header.arguments == first.arguments for header in headers
    ):
        return None
    own = [header.arguments.splitlines() for header in headers]
    common = set.intersection(*map(set, own))
    differences = [f"has {', '.join(line for line in lines if line not in common)}" for lines in own]
    return UserError(
        f"Ranks call {first.kind} number {first.number} with different arguments",
        why=_by_rank(differences),
        todo=_joined(CALL_ALIKE, ending),
    )


def ending_of(headers: Sequence[Header]) -> str:
    """The end of an error: what to do with results that were handed out, and with the context."""
    calls = {
        f"{header.kind} number {header.number}"
        for header in headers
        if header.kind != CLOSES and header.failure is None
    }
    if all(header.waits for header in headers) or not calls:
        return NEW_CONTEXT
    call = calls.pop() if len(calls) == 1 else "these calls"
    return f"do not use results of {call} and of later calls; {NEW_CONTEXT}"


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _by_rank(texts: Sequence[str]) -> str:
    """ "rank 0 has a, ranks 1 and 3 have …": ranks that say the same are named together."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return ", ".join(f"{ranks_in_words(of_text)} {text}" for text, of_text in ranks.items())


def ranks_in_words(ranks: Sequence[int]) -> str:
    *most, last = map(str, ranks)
    return f"each of ranks {', '.join(most)} and {last}" if most else f"rank {last}"
