"""What a claim says, part by part: the observations of each part, the status that follows, and the words.

Three rules hold for every claim, in both directions. A part has a status only if enough settings were
observed (`LEAST`). One part that fails overturns the claim. It holds only if most of its parts have a status
(`MOSTLY`), and none of these fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MOSTLY = 0.75  # the least share of supporting observations, and of judged parts, of a claim that holds
LEAST = round(1 / (1 - MOSTLY))  # settings: among fewer a single one against a claim would overturn it

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
    topic: str = ""
    """what the parts of several methods say alike, so that a finding says it once"""
    method: str = ""
    """the method that a part with a topic is about, and its numbers"""

    @property
    def num_settings(self) -> int:
        """The settings observed: one on two GPUs has the same cells, and is one setting."""
        known = [observation.cell_ids for observation in self.observations if observation.cell_ids]
        return len(set(known)) + len(self.observations) - len(known)

    @property
    def is_few(self) -> bool:
        """True where there are observations, but of fewer settings than decide."""
        return 0 < self.num_settings < min(LEAST, self.asked)

    @property
    def status(self) -> Status:
        undecided = self.is_open or self.is_few or not self.observations
        return OPEN if undecided else status_of(self.observations)

    @property
    def told(self) -> str:
        """The finding, with the number of settings where these are too few."""
        return f"{self.finding}{self._few}"

    @property
    def brief(self) -> str:
        """The method with its numbers, for a sentence that begins with the topic."""
        return f"{self.method}{self._few}"

    @property
    def _few(self) -> str:
        few = f" ({self.num_settings} of the {min(LEAST, self.asked)} that decide)"
        return few if self.is_few and not self.is_open else ""


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
    asked: int = LEAST,
    is_open: bool = False,
) -> list[Part]:
    """A part for each method that a sentence names: methods are never counted together.

    Args:
        topic: what is said of each, so that its name can follow: "backward is slower at".
        observed: method → its observations, none where it is not measured.
        ratios: method → the least and the most of what is compared, if a finding is to have them.
        asked: as of `Part`.
        is_open: as of `Part`.
    """
    parts = []
    for method, observations in observed.items():
        num_held = sum(observation.holds for observation in observations)
        ratio = f" ({ratios[method]})" if ratios and observations else ""
        text = (
            f"{method} {num_held}/{len(observations)}{ratio}" if observations else f"{method} (not measured)"
        )
        parts.append(Part(f"{method}, {topic}", f"{topic} {text}", observations, is_open, asked, topic, text))
    return parts


def finding_of(parts: Sequence[Part]) -> str:
    """What the parts say together. Where some fail and others do not, those that fail come first: "Fails: …;
    holds: …; open: …"."""
    known = [part for part in parts if part.status != OPEN]
    unknown = _phrases([part for part in parts if part.status == OPEN])
    if not known:
        return "; ".join(unknown) or "no record says anything about it"
    return "; ".join([*_by_status(known), *([f"open: {', '.join(unknown)}"] if unknown else [])])


def _by_status(known: Sequence[Part]) -> list[str]:
    """The phrases; where some parts fail and others do not, those that fail first, and all with their
    status."""
    failing = [part for part in known if part.status == CONTRADICTED]
    if not failing or len(failing) == len(known):
        return _phrases(known)
    words = {CONTRADICTED: "fails", EXCEPTIONS: EXCEPTIONS, HOLDS: HOLDS}
    of_status = {status: [part for part in known if part.status == status] for status in words}
    return [f"{words[status]}: {', '.join(_phrases(those))}" for status, those in of_status.items() if those]


def _phrases(parts: Iterable[Part]) -> list[str]:
    """The findings, those of one topic together; methods without exceptions are told by their names alone."""
    of_topic: dict[str, list[Part]] = {}
    for part in parts:
        of_topic.setdefault(part.topic or part.name, []).append(part)
    phrases = []
    for those in of_topic.values():
        if not those[0].topic:
            phrases += [part.told for part in those]
            continue
        phrases.append(f"{those[0].topic} {', '.join(part.brief for part in those)}")
    return phrases
