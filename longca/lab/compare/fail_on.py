"""Conditions under which a comparison fails: `--fail-on slower:3%,broke,incorrect`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from longca.core import UserError, unknown
from longca.lab.compare.comparison import Change, Comparison
from longca.lab.compare.verdict import OUTCOMES, Rule
from longca.lab.store.text import percent, plural
from longca.lab.studies import STATUSES

WITH_LIMIT = ("slower", "faster", "ambiguous")
NAMES = (
    *(outcome for outcome in OUTCOMES if outcome != "same"),
    *(status for status in STATUSES if status != "ok"),
)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%?")


@dataclass(frozen=True)
class FailCondition:
    """An outcome of a pair with an optional minimum difference, or a status of B."""

    name: str
    limit: float = 0.0
    """the larger speed over the smaller, minus 1; 0.03 is written 3%"""

    def __str__(self) -> str:
        return f"{self.name}:{100 * self.limit:g}%" if self.limit else self.name

    def matches(self, change: Change) -> bool:
        if self.name in STATUSES:
            return change.pair.b is not None and change.pair.b.status == self.name
        return change.verdict.outcome == self.name and change.size >= math.log1p(self.limit)


def parse_fail_on(text: str, rule: Rule) -> tuple[FailCondition, ...]:
    """The conditions of "slower:3%,broke".

    Raises:
        UserError: an unknown name, or a limit that is not a percentage, has no speed outcome, or is below the
            tolerance.
    """
    return tuple(_condition(part.strip(), rule) for part in text.split(",") if part.strip())


def parse_share(text: str, what: str, todo: str) -> float:
    """0.03 for "3%" or "3". Raises UserError with this text for other input."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise UserError(what, why=f"'{text}' is not a percentage", todo=todo)
    return float(match[1]) / 100


def _condition(text: str, rule: Rule) -> FailCondition:
    name, colon, limit = (part.strip() for part in text.partition(":"))
    if name not in NAMES:
        raise unknown("condition", name, NAMES, todo="Write `--fail-on slower:3%,broke`")
    if not colon:
        return FailCondition(name)
    if name not in WITH_LIMIT:
        raise UserError(
            f"'{text}' is not a condition", why=f"'{name}' has no limit", todo=f"Write `--fail-on {name}`"
        )
    share = parse_share(limit, f"'{text}' is not a condition", f"Write `--fail-on {name}:3%`")
    if rule.tolerance is not None and share < rule.tolerance:
        raise UserError(
            f"'{text}' can never match",
            why=f"speeds that differ by less than {percent(rule.tolerance)} are the same",
            todo=f"Lower that with `--tolerance {limit}`",
        )
    return FailCondition(name, share)


def matched(comparison: Comparison, conditions: Sequence[FailCondition]) -> list[str]:
    """One line for each condition that attention cells match; empty if none does."""
    counts = {condition: sum(map(condition.matches, comparison.attention)) for condition in conditions}
    return [f"{condition}: {plural(count, 'cell')}" for condition, count in counts.items() if count]
