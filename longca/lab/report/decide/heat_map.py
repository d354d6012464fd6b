"""The heat map of one setting and direction: its squares, its rows and the feet of its columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, NamedTuple

from longca.lab.ranking.sentences import NOT_COMPARED, WITH_RESTS, verdict
from longca.lab.report import matrix
from longca.lab.report.look.labels import join
from longca.lab.report.series import rate_unit
from longca.lab.store.text import NONE, number

if TYPE_CHECKING:
    from longca.lab.ranking import Standing
    from longca.lab.report.decide.cases import CaseKey

ALONE = "alone"  # in place of a number of ranks: kernels on one device
PALEST = 0.4  # this share and less has the palest colour
SHORT = {NOT_COMPARED.format(WITH_RESTS[False]): "no rests", NOT_COMPARED.format(WITH_RESTS[True]): "rests"}
"""what squares say of methods that are not compared, by their status"""
SHORT_STATUS = matrix.SHORT | SHORT
NOT_ASKED = "not asked: no record of this method under this mask, at this setting"


@dataclass(frozen=True)
class Placed:
    """One method in one case. Rates are in TFLOP/s of one device, times in ms."""

    tflops: float
    low: float
    high: float
    """the median's 95 % interval"""
    ms: float
    share: float
    place: int
    tied: bool
    """True if it ties with others in front"""
    margin: str
    num_samples: int
    num_cells: int
    cell_id: str
    is_alone: bool
    """True for the only method measured on this mask; its share and rank carry no information"""

    @property
    def text(self) -> str:
        """Percent of the best, rounded down: 100 is the best alone, or exactly as fast."""
        return "only" if self.is_alone else whole_percent(self.share)

    @property
    def rank(self) -> str:
        return NONE if self.is_alone else str(self.place)

    @property
    def percent(self) -> str:
        """Percent of the best with a decimal, rounded down like `text`; "" without a comparison."""
        return "" if self.is_alone else number(floor(1000 * self.share + 1e-9) / 10)

    @property
    def frame(self) -> str:
        """Classes of its square in the heat map."""
        place = " lone" if self.is_alone else " best" if self.place == 1 else ""
        return f"case{place}{' tied' if self.tied else ''}"

    @property
    def strength(self) -> int:
        """Percent of the strongest colour, most sensitive to differences between the best methods."""
        return round(100 * (max(self.share - PALEST, 0) / (1 - PALEST)) ** 1.5)


def whole_percent(share: float) -> str:
    """Rounded down, so that 100 means the best."""
    return str(int(100 * share + 1e-9))


@dataclass(frozen=True)
class ColumnFoot:
    """The summary below a method's column in a heat map."""

    method: str
    share: float | None
    """its worst share; None without a comparison"""
    note: str
    """the text below it: omissions, and the number of its masks"""
    ran_all: bool
    ran: str
    """what it ran, and how often it leads"""
    least: str
    """where its share is the worst"""

    @property
    def tip(self) -> str:
        return f"{self.method} {self.ran}\n{self.least}"

    @property
    def text(self) -> str:
        return NONE if self.share is None else whole_percent(self.share)


@dataclass(frozen=True)
class LostSquare:
    """A square of the heat map without a number."""

    short: str
    why: str


class Switches(NamedTuple):
    """The setting of a heat map: one value for each switch of the chooser. "" where the page's rows do not
    differ in it, or where no row of the map has it."""

    family: str
    """the kind of masks, where they are apart"""
    gpu: str
    ranks: str
    seqlen: int
    heads: str
    """with head dim and dtype"""
    corpus: str
    """of document lengths; masks without documents are in the map of each"""
    window: str
    """tokens; masks without several windows are in the map of each"""
    direction: str


@dataclass(frozen=True)
class HeatMap:
    """One setting and direction."""

    switches: Switches
    masks: list[str]
    columns: list[ColumnFoot]
    cases: dict[str, Standing]
    """mask → the standing of the methods there"""
    entries: dict[tuple[str, str], Placed]
    """(mask, method) → its result"""
    missing: dict[tuple[str, str], tuple[str, str]]
    """(mask, method) → (status, cell id) of what has no number; of what has one by the other protocol, that
    in place of the status"""
    num_counted: int
    """masks that count: all but repeats (`longca.lab.report.series.is_repeat`)"""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """(mask, method) → the recorded reason of what has no number"""
    keys: dict[str, CaseKey] = field(default_factory=dict)
    """mask → the key of its case"""
    corpora: tuple[str, ...] = ()
    """of the documents of its masks"""
    windows: tuple[str, ...] = ()
    """of its masks, in tokens"""

    @property
    def seqlen(self) -> int:
        return self.switches.seqlen

    @property
    def ranks(self) -> str:
        return self.switches.ranks

    @property
    def direction(self) -> str:
        return self.switches.direction

    @property
    def setting(self) -> str:
        """The values in which the page's rows differ, but length, ranks, window and direction."""
        return join(self.switches.gpu, self.switches.heads, self.switches.corpus)

    @property
    def has_repeats(self) -> bool:
        return self.num_counted < len(self.masks)

    @property
    def num_compared(self) -> int:
        """The results on masks with several methods."""
        return sum(len(case.entries) for case in self.cases.values() if case.is_compared)

    @property
    def opening(self) -> str:
        """The initial mask: the first with several methods, or else the first."""
        return next((mask for mask in self.masks if self.cases[mask].is_compared), self.masks[0])

    def ranking(self, mask: str) -> list[tuple[str, Placed]]:
        """The methods of one mask, best first."""
        return [(entry.method, self.entries[mask, entry.method]) for entry in self.cases[mask].entries]

    def lost(self, mask: str, method: str) -> LostSquare:
        """The text in place of a number that is not there."""
        if (mask, method) not in self.missing:
            return LostSquare("", NOT_ASKED)
        status = self.missing[mask, method][0]
        reason = self.reasons.get((mask, method), "")
        return LostSquare(SHORT_STATUS.get(status, status), f"{status}: {reason}" if reason else status)

    def not_ranked(self, mask: str) -> str:
        """The methods without a number under this mask; "" if all have one."""
        names: dict[str, list[str]] = {}
        for (name, method), (status, _) in self.missing.items():
            if name == mask:
                names.setdefault(status, []).append(method)
        groups = [f"{status}: {', '.join(methods)}" for status, methods in names.items()]
        return f"Not ranked here, {'; '.join(groups)}." if groups else ""

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """A description of the outcome of each mask."""
        unit = rate_unit(max(entry.tflops for entry in self.entries.values()))
        return {
            mask: verdict(
                self.cases[mask], lambda rate, mask=mask: f"{unit.text(rate)}, {number(self._ms(mask))} ms"
            )
            for mask in self.masks
        }

    def _ms(self, mask: str) -> float:
        return self.entries[mask, self.cases[mask].first.method].ms
