"""The contract of claims. One file in `longca/claims/study` is one claim, and judges itself by the derived table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from longca.core.plugin import Plugin, Registry

if TYPE_CHECKING:
    import pandas as pd

MOSTLY = 0.75  # share of observations: a sentence that fails more than one time in four is wrong as a rule, not in its exceptions

Status = Literal["holds", "holds with exceptions", "contradicted", "open"]
Gpus = Literal["one GPU", "2–4 GPUs", "several nodes"]
Trust = Literal["paper", "second-hand", "reading of its code"]
HOLDS: Status = "holds"
EXCEPTIONS: Status = "holds with exceptions"
CONTRADICTED: Status = "contradicted"
OPEN: Status = "open"
STATUSES: tuple[Status, ...] = (HOLDS, EXCEPTIONS, CONTRADICTED, OPEN)


@dataclass(frozen=True)
class Observation:
    """One thing that the records say about a claim: with it, or against it."""

    text: str
    """what was compared, with its numbers"""
    holds: bool
    cell_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gaps:
    """The points that a claim asks for and the records do not have."""

    texts: tuple[str, ...] = ()
    """the points, neighbours together, and the hardware for them"""
    absent: int = 0
    asked: int = 0

    @property
    def judged(self) -> str:
        """The part that is there: "45 of 96 points asked for"; "" where nothing is absent."""
        return f"{self.asked - self.absent} of {self.asked} points asked for" if self.absent else ""


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
    """cells that the claim needs and the records do not have, and the hardware for them"""
    part: str = ""
    """the part of the claim that was judged; "" for all of it"""
    note: str = ""
    """what a reader must know, such as the GPU where it is not the study's"""
    gpu: str = ""
    """the model of GPU whose records decided; "" where a claim was judged without `longca.claims.by_gpu`"""
    elsewhere: tuple[Verdict, ...] = ()
    """the verdicts by the records of other models of GPUs"""

    @property
    def told_elsewhere(self) -> tuple[str, ...]:
        """A sentence for each of the other GPUs: "On H200, contradicted: …"."""
        return tuple(other.finding.replace(f"On {other.gpu}: ", f"On {other.gpu}, {other.status}: ", 1) for other in self.elsewhere)


class Claim(Plugin, ABC):
    """A sentence of the study that records can confirm or overturn. `label` is its short form."""

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
    columns: ClassVar[tuple[str, ...]] = ()
    """the columns of the table that it reads besides those of `longca.claims.evidence.points`"""

    @abstractmethod
    def judge(self, table: pd.DataFrame) -> Verdict:
        """The verdict of these records, of one model of GPU; `longca.claims.by_gpu.judged` divides those of several.

        Args:
            table: `longca.store.table.derived` of the records, of one study or of several; these columns at least.
        """


def all_claims() -> list[Claim]:
    """Every claim there is, in the order of their numbers."""
    return sorted(Registry("claim").load_all(), key=lambda claim: (claim.number, claim.name))


def decided(finding: str, *parts: Sequence[Observation], missing: Gaps = Gaps(), part: str = "", note: str = "",
            is_open: bool = False) -> Verdict:
    """The verdict that follows from observations: all hold, most do (`MOSTLY`), or fewer; open where there is none.

    Args:
        finding: what they say together; without observations it is replaced.
        parts: of a claim that says several things, the observations of each; the worst of them decides.
        missing: what the claim asks for besides.
        part: the part of the claim that was judged; by default as much as is not missing.
        is_open: they do not reach what the claim is about, so that they decide nothing.
    """
    observations = [one for those in parts for one in those]
    if not observations:
        return Verdict(OPEN, "No record says anything about it", missing=missing.texts, note=note)
    status: Status = OPEN if is_open else STATUSES[max(STATUSES.index(status_of(those)) for those in parts if those)]
    against = tuple(one.text for one in observations if not one.holds)
    ids = dict.fromkeys(cell_id for one in observations for cell_id in one.cell_ids)
    return Verdict(status, finding, against, tuple(ids), missing.texts, part or missing.judged, note)


def in_parts(*parts: tuple[str, Sequence[Observation]], is_open: bool = False) -> str:
    """The finding of a claim that says several things, from the finding and the observations of each.

    Where some of them fail and others do not, those that fail come first and all say which they are: "Fails: …; holds: …". A part that
    nothing was observed of says so itself, last.

    Args:
        is_open: as of `decided`; then no part fails or holds.
    """
    known = [(status_of(those), text) for text, those in parts if those]
    unknown = [text for text, those in parts if not those]
    fail = [text for status, text in known if status == CONTRADICTED]
    rest = {status: [text for other, text in known if other == status] for status in (EXCEPTIONS, HOLDS)}
    if fail and any(rest.values()) and not is_open:
        known_texts = [f"fails: {', '.join(fail)}", *(f"{status}: {', '.join(texts)}" for status, texts in rest.items() if texts)]
    else:
        known_texts = [text for _, text in known]
    whole = "; ".join([*known_texts, *unknown])
    return whole[:1].upper() + whole[1:]


def status_of(observations: Sequence[Observation]) -> Status:
    """The verdict of observations of one thing; there is at least one."""
    share = sum(one.holds for one in observations) / len(observations)
    return HOLDS if share == 1 else EXCEPTIONS if share >= MOSTLY else CONTRADICTED


def summary(verdicts: Iterable[Verdict]) -> str:
    """The number of verdicts of each status, for each model of GPU by itself; what does not occur is left out.

    "23 claims, on H100: 9 hold, 4 hold with exceptions, 3 are contradicted, 7 are open; on H200: 12 hold, 11 are open"
    """
    found = list(verdicts)
    of_gpus = [{one.gpu: one.status for one in (verdict, *verdict.elsewhere) if one.gpu and one.cell_ids} for verdict in found]
    gpus = dict.fromkeys(gpu for statuses in of_gpus for gpu in statuses)
    parts = [f"on {gpu}: {_counts(statuses.get(gpu, OPEN) for statuses in of_gpus)}" for gpu in gpus]
    claims = f"{len(found)} claim{'' if len(found) == 1 else 's'}"
    if not found:
        return "No claim"
    return f"{claims}, {'; '.join(parts)}" if parts else f"{claims}: {_counts(verdict.status for verdict in found)}"


def _counts(statuses: Iterable[Status]) -> str:
    verbs = {HOLDS: ("holds", "hold"), EXCEPTIONS: ("holds with exceptions", "hold with exceptions"),
             CONTRADICTED: ("is contradicted", "are contradicted"), OPEN: ("is open", "are open")}
    counts = Counter(statuses)
    return ", ".join(f"{counts[status]} {verbs[status][counts[status] != 1]}" for status in STATUSES if counts[status])
