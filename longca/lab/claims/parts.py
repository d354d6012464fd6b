"""Parts of a claim: the observations of each part, the status that follows, and the words.

Three rules hold for every claim, in both directions. A part has a status only if enough settings were
observed (`LEAST`). One part that fails overturns the claim. It holds only if most of its parts have a status
(`MOSTLY`), and none of these fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from longca.lab.store.text import plural

MOSTLY = 0.75  # the least share of supporting observations, and of judged parts, of a claim that holds
LEAST = round(1 / (1 - MOSTLY))  # settings: among fewer a single one against a claim would overturn it

LONGEST = 240  # characters of a finding: three lines of a terminal
# of a finding: all; no ratios; what holds without numbers; its methods as a number; its parts as a number
DETAILS = (0, 1, 2, 3, 4)
MOST_NAMED = 2  # methods that are named even so
UNMEASURED = "not measured"
Status = Literal["holds", "holds with exceptions", "contradicted", "open"]
HOLDS: Status = "holds"
EXCEPTIONS: Status = "holds with exceptions"
CONTRADICTED: Status = "contradicted"
OPEN: Status = "open"
STATUSES: tuple[Status, ...] = (HOLDS, EXCEPTIONS, CONTRADICTED, OPEN)
MEANINGS: dict[Status, str] = {
    HOLDS: "all observations agree",
    EXCEPTIONS: "at least three observations in four agree, and the others are named",
    CONTRADICTED: "fewer than three observations in four agree",
    OPEN: "too little that decides it was measured, and the missing cells are named",
}


@dataclass(frozen=True)
class Observation:
    """One thing that the records say about a claim: with it, or against it."""

    text: str
    """what was compared, with its numbers"""
    holds: bool
    cell_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One of the things that a claim says, with the observations of it."""

    name: str
    """the part in a few words: "FA3 over cuDNN" """
    finding: str
    """what the observations say, with numbers; without any, the reason why the part is open"""
    observations: Sequence[Observation] = ()
    is_open: bool = False
    """the observations do not reach what the part is about, so that they decide nothing"""
    asked: int = LEAST
    """the settings that the sentence asks for; these decide where they are fewer than `LEAST`"""
    undecided: int = 0
    """cases measured in part, which may still go either way: they must not change the status"""
    topic: str = ""
    """what the parts of several methods say alike, so that a finding says it once"""
    method: str = ""
    """the method that a part with a topic is about"""
    ratios: str = ""
    """the least and the most of what a part with a topic compares"""
    absent: str = UNMEASURED
    """the reason why a part with a topic has no observations"""

    @property
    def num_settings(self) -> int:
        """The settings observed: one on two GPUs has the same cells, and is one setting."""
        known = [observation.cell_ids for observation in self.observations if observation.cell_ids]
        return len(set(known)) + len(self.observations) - len(known)

    @property
    def least(self) -> int:
        """The settings that decide."""
        return min(LEAST, self.asked)

    @property
    def is_few(self) -> bool:
        """True where there are observations, but of fewer settings than decide."""
        return 0 < self.num_settings < self.least

    @property
    def num_held(self) -> int:
        return sum(observation.holds for observation in self.observations)

    @property
    def status(self) -> Status:
        """Open as well where the cases measured in part could make it hold, or fail."""
        if self.is_open or self.is_few or not self.observations:
            return OPEN
        status = status_of(self.observations)
        needed = MOSTLY * (len(self.observations) + self.undecided)
        could_change = (
            self.num_held + self.undecided >= needed if status == CONTRADICTED else self.num_held < needed
        )
        return OPEN if could_change else status

    @property
    def told(self) -> str:
        """The finding, with the number of settings where these are too few."""
        few = f" ({self.num_settings} of the {self.least} that decide)"
        return f"{self.finding}{few if self.is_few and not self.is_open else ''}"

    def brief(self, detail: int) -> str:
        """The method with its numbers, for a sentence that begins with the topic; its ratios with the most
        detail."""
        ratios = f" ({self.ratios})" if self.ratios and detail == DETAILS[0] else ""
        return f"{self.method} {self.numbers}{ratios}" if self.observations else self.method

    @property
    def numbers(self) -> str:
        """The number of observations that hold: "4/5 and 2 undecided"."""
        undecided = f" and {self.undecided} undecided" if self.undecided else ""
        return f"{self.num_held}/{len(self.observations)}{undecided}"


def status_of(observations: Sequence[Observation]) -> Status:
    """The status of observations of one thing; there is at least one."""
    share = sum(observation.holds for observation in observations) / len(observations)
    return HOLDS if share == 1 else EXCEPTIONS if share >= MOSTLY else CONTRADICTED


def status_together(parts: Sequence[Part]) -> Status:
    """The status of a claim: the worst of its parts that are not open, if one of these fails or if they are
    most of all parts."""
    judged = [part.status for part in parts if part.status != OPEN]
    worst = STATUSES[max((STATUSES.index(status) for status in judged), default=0)]
    enough = bool(judged) and len(judged) >= MOSTLY * len(parts)
    return worst if enough or worst == CONTRADICTED else OPEN


def of_methods(
    topic: str,
    observed: Mapping[str, Sequence[Observation]],
    *,
    ratios: Mapping[str, str] | None = None,
    undecided: Mapping[str, int] | None = None,
    asked: int = LEAST,
    is_open: bool = False,
) -> list[Part]:
    """A part for each method that a sentence names: methods are never counted together.

    Args:
        topic: what is said of each, so that its name can follow: "backward is slower at".
        observed: method → its observations, none where it is not measured.
        ratios: method → the least and the most of what is compared.
        undecided: method → as of `Part`.
        asked: as of `Part`.
        is_open: as of `Part`.
    """
    parts = []
    for method, observations in observed.items():
        part = Part(
            f"{topic} {method}",
            "",
            observations,
            is_open,
            asked,
            (undecided or {}).get(method, 0),
            topic,
            method,
            (ratios or {}).get(method, "") if observations else "",
        )
        compared = f" ({part.ratios})" if part.ratios else ""
        parts.append(replace(part, finding=f"{part.numbers}{compared}" if observations else part.absent))
    return parts


def finding_of(parts: Sequence[Part]) -> str:
    """The finding of all parts, as much as a line of `LONGEST` characters has room for. Where some fail
    and others do not, those that fail come first: "Fails: …; holds: …; open: …"."""
    texts = [_finding(parts, detail) for detail in DETAILS]
    return next((text for text in texts if len(text) <= LONGEST), texts[-1])


def _finding(parts: Sequence[Part], detail: int) -> str:
    known = [part for part in parts if part.status != OPEN]
    unknown = [part for part in parts if part.status == OPEN]
    if not known:
        return "; ".join(_phrases(unknown, detail)) or "no record says anything about it"
    texts = _by_status(known, detail)
    if unknown:
        few = counted(len(unknown), OPEN, "part") if detail == DETAILS[-1] else ""
        texts.append(few or f"open: {', '.join(_phrases(unknown, detail))}")
    return "; ".join(texts)


def _by_status(known: Sequence[Part], detail: int) -> list[str]:
    """The phrases; where some parts fail and others do not, those that fail first, and all with their
    status."""
    failing = [part for part in known if part.status == CONTRADICTED]
    if not failing or len(failing) == len(known):
        return _phrases(known, detail)
    rest: dict[Status, list[Part]] = {
        status: [part for part in known if part.status == status] for status in (EXCEPTIONS, HOLDS)
    }
    texts = [f"fails: {', '.join(_phrases(failing, detail))}"]
    for status, those in rest.items():
        if those:
            few = counted(len(those), status, "part") if detail == DETAILS[-1] else ""
            texts.append(few or f"{status}: {', '.join(_phrases(those, detail))}")
    return texts


def counted(count: int, status: Status, noun: str = "") -> str:
    """The number of verdicts of a status: "2 hold", "1 part is open"."""
    verbs = {
        HOLDS: ("holds", "hold"),
        EXCEPTIONS: ("holds with exceptions", "hold with exceptions"),
        CONTRADICTED: ("is contradicted", "are contradicted"),
        OPEN: ("is open", "are open"),
    }
    return f"{plural(count, noun) if noun else count} {verbs[status][count != 1]}"


def _phrases(parts: Iterable[Part], detail: int) -> list[str]:
    """The findings, those of one topic together."""
    of_topic: dict[str, list[Part]] = {}
    for part in parts:
        of_topic.setdefault(part.topic or part.name, []).append(part)
    phrases = []
    for those in of_topic.values():
        topic = those[0].topic
        phrases += [*_of_topic(topic, those, detail)] if topic else [those[0].told]
    return phrases


def _of_topic(topic: str, parts: Sequence[Part], detail: int) -> Iterable[str]:
    """The sentence of a topic about methods with observations, then those without: a reader of the beginning
    alone must not take a topic for a finding that nobody measured."""
    yield from (f"{topic} {text}" for text in _methods(parts, detail))
    absent = [part for part in parts if not part.observations]
    if absent:
        names = f"{topic} {_names(absent, detail)}"
        reason = absent[0].absent
        yield f"it is {reason} whether {names}" if reason == UNMEASURED else f"{names} ({reason})"


def _methods(parts: Sequence[Part], detail: int) -> Iterable[str]:
    """The methods of one topic: those that were observed enough, those of too few settings. With little
    detail, methods without exceptions are told together."""
    few = [part for part in parts if part.is_few]
    known = [part for part in parts if part.observations and not part.is_few]
    alike = [part for part in known if part.status == HOLDS] if detail > DETAILS[1] else []
    told = [part.brief(detail) for part in known if part not in alike]
    if alike:
        told.append(f"all {sum(len(part.observations) for part in alike)} of {_names(alike, detail)}")
    if told:
        yield ", ".join(told)
    if few:
        names = _names(few, detail) if detail > DETAILS[2] else ", ".join(part.brief(detail) for part in few)
        yield f"{names} ({few[0].least} settings decide)"


def _names(parts: Sequence[Part], detail: int) -> str:
    if detail > DETAILS[2] and len(parts) > MOST_NAMED:
        return f"{len(parts)} methods"
    return ", ".join(part.method for part in parts)
