"""The contract of claims. One file in `longca/lab/claims/study` is one claim, and judges itself by records.

Each claim of the study has two verdicts. The first takes the claim as the study has it: its GPU, its kernels
and code paths, the masks and documents that its released code draws (`longca.lab.claims.as_study`). The
second takes repaired code, true documents and today's kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from longca.core import Plugin, Registry
from longca.lab.claims.parts import (
    LEAST,
    OPEN,
    STATUSES,
    Observation,
    Part,
    Status,
    counted,
    finding_of,
    status_together,
)

if TYPE_CHECKING:
    import pandas as pd

Gpus = Literal["one GPU", "2–4 GPUs", "several nodes"]
Quantity = Literal["time", "memory", "time and memory", "bytes", "support", "error"]
Trust = Literal["paper", "second-hand", "reading of its code"]
AS_STUDY = "as the study has it"
REPAIRED = "with repaired code and today's kernels"
"""the names of a claim's two verdicts"""
READINGS = {
    AS_STUDY: "judged by its GPU, its kernels and code paths, and the masks and documents that its released "
    "code draws",
    REPAIRED: "judged by kernels without the defects of that code, true documents, and this project's "
    "operators, named ours",
}
TRUSTS: dict[Trust, str] = {
    "paper": "the paper's own text",
    "second-hand": "a text about the paper",
    "reading of its code": "its released code",
}
"""how a claim is known"""
STUDY = "https://arxiv.org/abs/2510.17896"


@dataclass(frozen=True)
class PartVerdict:
    """The judgement of one part of a claim."""

    name: str
    status: Status
    finding: str


@dataclass(frozen=True)
class Gaps:
    """The points that a claim asks for and the records do not have."""

    texts: tuple[str, ...] = ()
    """the points, neighbours together, and the hardware for them or the command that measures them"""
    absent: int = 0
    asked: int = 0

    @property
    def judged(self) -> str:
        """The part that is there: "45 of 96 points asked for"; "" where nothing is absent."""
        return f"{self.asked - self.absent} of {self.asked} points asked for" if self.absent else ""

    def __add__(self, other: Gaps) -> Gaps:
        return Gaps(self.texts + other.texts, self.absent + other.absent, self.asked + other.asked)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one claim by the records at hand."""

    status: Status
    finding: str
    """one plain sentence with the numbers"""
    exceptions: tuple[str, ...] = ()
    """observations against the claim, each with its numbers"""
    cell_ids: tuple[str, ...] = ()
    """the records behind the finding"""
    missing: tuple[str, ...] = ()
    """cells that the claim needs and the records do not have, and how to get them"""
    part: str = ""
    """the part of the claim that was judged; "" for all of it"""
    note: str = ""
    """what a reader must know, such as the GPU where it is not the study's"""
    gpu: str = ""
    """the model of GPU whose records decided; "" where the claim's own rule chose among several"""
    elsewhere: tuple[Verdict, ...] = ()
    """the verdicts by the records of other models of GPUs"""
    parts: tuple[PartVerdict, ...] = ()
    """the verdicts of a claim's parts; none for a claim that says one thing"""

    @property
    def told_elsewhere(self) -> tuple[str, ...]:
        """A sentence for each of the other GPUs: "On H200, contradicted: …"."""
        return tuple(
            other.finding.replace(f"On {other.gpu}: ", f"On {other.gpu}, {other.status}: ", 1)
            for other in self.elsewhere
        )


@dataclass(frozen=True)
class Verdicts:
    """The two verdicts of one claim."""

    as_study: Verdict
    repaired: Verdict

    @property
    def named(self) -> tuple[tuple[str, Verdict], ...]:
        """Both verdicts with their names, that which headlines count first."""
        return (AS_STUDY, self.as_study), (REPAIRED, self.repaired)


class Claim(Plugin, ABC):
    """A sentence that records can confirm or overturn. `label` is its short form."""

    number: int
    """its place in the list: 1 to 23 are the study's"""
    sentence: str
    """the claim in the project's own words, so that a measurement can contradict it"""
    source: str
    """where the claim is from"""
    trust: Trust
    """how sure it is that the study says so: "paper" is its own text, "second-hand" a text about it"""
    gpus: Gpus
    """the hardware that judging all of it needs"""
    overturned_by: str
    """the result that would flip the verdict"""
    quantity: ClassVar[Quantity] = "time"
    """what its verdict rests on: counted quantities come out the same again, times within a tolerance"""
    columns: ClassVar[tuple[str, ...]] = ()
    """the columns of the table that it reads besides those of `longca.lab.claims.evidence.points`"""

    @property
    def source_text(self) -> str:
        """The source, and how the claim is known where the source does not say that it is a text about the
        study."""
        if self.trust == "second-hand" and "text" in self.source.casefold():
            return self.source
        return f"{self.source} ({TRUSTS[self.trust]})"

    @abstractmethod
    def judge(self, table: pd.DataFrame) -> Verdict:
        """The verdict with repaired code and today's kernels, by records of one model of GPU.

        Args:
            table: `longca.lab.store.table.derived` of the records, of one study or of several; these columns
                at least.
        """

    def judge_as_study(self, table: pd.DataFrame) -> Verdict:
        """The verdict as the study has it. For a claim that is not the study's, that of `judge`.

        Args:
            table: as of `judge`, of all GPUs: `longca.lab.claims.as_study.of_study` takes the rows that
                count.
        """
        return self.judge(table)


def all_claims() -> list[Claim]:
    """Every claim there is, in the order of their numbers."""
    return sorted(Registry("claim").load_all(), key=lambda claim: (claim.number, claim.name))


def decided(
    finding: str,
    *parts: Sequence[Observation],
    missing: Gaps = Gaps(),
    part: str = "",
    note: str = "",
    is_open: bool = False,
    asked: int = LEAST,
) -> Verdict:
    """The verdict that follows from observations: all hold, most do (`MOSTLY`), or fewer; open where they are
    of too few settings (`LEAST`).

    Args:
        finding: what they say together; without observations it is replaced.
        parts: of a claim that says several things, the observations of each; one that fails decides.
        missing: what the claim asks for besides.
        part: the part of the claim that was judged; by default as much as is not missing.
        is_open: they do not reach what the claim is about, so that they decide nothing.
        asked: the settings that the claim asks for, where these are fewer than decide otherwise.
    """
    groups = [Part("", finding, group, is_open, asked) for group in parts if group]
    observations = [observation for group in groups for observation in group.observations]
    if not observations:
        return Verdict(OPEN, "No record says anything about it", missing=missing.texts, note=note)
    few = [group for group in groups if group.is_few]
    return Verdict(
        status_together(groups),
        few[0].told if few else finding,
        _against(observations),
        _cell_ids(observations),
        missing.texts,
        part or missing.judged,
        note,
    )


def decided_in_parts(*parts: Part, missing: Gaps = Gaps(), note: str = "", part: str = "") -> Verdict:
    """The verdict of a claim that says several things: one part that fails overturns it, and it holds if none
    fails and most have a status (`MOSTLY`).

    Where some parts fail and others do not, those that fail come first: "Fails: …; holds: …; open: …".

    Args:
        missing: what the claim asks for besides.
        part: the part of the claim that was judged; by default the parts that are not open, if any is, and
            as much of the points as is not missing.
    """
    judged = [part for part in parts if part.status != OPEN]
    observations = [observation for part in parts for observation in part.observations]
    return Verdict(
        status_together(parts),
        _capital(finding_of(parts)),
        _against(observations),
        _cell_ids(observations),
        missing.texts,
        part or "; ".join(filter(None, (_names(judged, parts), missing.judged if observations else ""))),
        note,
        parts=tuple(PartVerdict(part.name, part.status, part.told) for part in parts)
        if len(parts) > 1
        else (),
    )


def summary(claims: Iterable[Verdicts]) -> str:
    """The number of verdicts of each status: as the study has it first, then repaired for each model of GPU.

    "23 claims, as the study has it: 9 hold, 14 are open. With repaired code and today's kernels, on H100: 12
    hold, 11 are open; on H200: 14 hold, 9 are open"
    """
    judged = list(claims)
    if not judged:
        return "No claim"
    of_gpus: list[dict[str, Status]] = [
        {
            verdict.gpu: verdict.status
            for verdict in (one.repaired, *one.repaired.elsewhere)
            if verdict.gpu and verdict.cell_ids
        }
        for one in judged
    ]
    gpus = dict.fromkeys(gpu for statuses in of_gpus for gpu in statuses)
    repaired = [f"on {gpu}: {_counts(statuses.get(gpu, OPEN) for statuses in of_gpus)}" for gpu in gpus]
    first = f"{len(judged)} claim{'' if len(judged) == 1 else 's'}, {AS_STUDY}: " + _counts(
        verdict.as_study.status for verdict in judged
    )
    rest = "; ".join(repaired) if repaired else _counts(verdict.repaired.status for verdict in judged)
    return f"{first}. {_capital(REPAIRED)}{',' if repaired else ':'} {rest}"


def _names(judged: Sequence[Part], parts: Sequence[Part]) -> str:
    """The names of the parts that have a status, or their number where they are many; "" where all or none
    have one."""
    if not 0 < len(judged) < len(parts):
        return ""
    if any(part.topic for part in parts):
        return f"{len(judged)} of {len(parts)} parts"
    return ", ".join(part.name for part in judged)


def _against(observations: Iterable[Observation]) -> tuple[str, ...]:
    return tuple(observation.text for observation in observations if not observation.holds)


def _cell_ids(observations: Iterable[Observation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell_id for observation in observations for cell_id in observation.cell_ids))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _counts(statuses: Iterable[Status]) -> str:
    counts = Counter(statuses)
    return ", ".join(counted(counts[status], status) for status in STATUSES if counts[status])
