"""Summary of the verdicts: counts, methods, the largest changes, and the conclusion."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from longca.core import Hardware, load_hardware
from longca.lab.compare.label import Labels, ratio_text
from longca.lab.compare.pairs import RecordPair, pair_published, pair_records, resolutions_of
from longca.lab.compare.verdict import OUTCOMES, TIMED, Basis, PairVerdict, Rule, judge, unknown_text
from longca.lab.published import PublishedRate
from longca.lab.ranking import WORDS as WORDS_OF_RELATION
from longca.lab.ranking import Lead, Relation, Resolutions, mean_lead
from longca.lab.ranking.sentences import protocols_text
from longca.lab.store.text import number, plural
from longca.lab.studies import Record

WORDS = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "ambiguous": "ambiguous",
    "broke": "broke",
    "fixed": "fixed",
    "new": "new",
    "gone": "gone",
    "incomparable": "not comparable",
    "untimed": "timed on neither side",
}


@dataclass(frozen=True)
class Change:
    """A pair with its verdict."""

    pair: RecordPair
    verdict: PairVerdict

    @property
    def method(self) -> str:
        """The method, and the source of a published rate."""
        source = self.pair.b.source if self.pair.b else ""
        return f"{self.pair.cell.method} · {source}" if source else self.pair.cell.method

    @property
    def size(self) -> float:
        """The logarithmic distance of the two speeds; 0 without speeds."""
        return abs(math.log(self.verdict.ratio)) if self.verdict.ratio else 0.0


@dataclass(frozen=True)
class MethodRow:
    """All pairs of one method."""

    method: str
    mean: Lead | None
    """geometric mean of the speed of B over that of A, with its meaning; None if no pair was timed on both
    sides"""
    counts: dict[str, int]
    """outcome → number of pairs, without zeros"""

    @property
    def mean_ratio(self) -> float | None:
        return self.mean.ratio if self.mean else None

    @property
    def mean_text(self) -> str:
        """ "1.04×", or "1.01×, the same"."""
        meaning = ""
        if self.mean and self.mean.is_tie:
            meaning = ", not told apart" if math.isinf(self.mean.log_resolution) else ", the same"
        return f"{ratio_text(self.mean_ratio)}{meaning}"

    @property
    def outcomes(self) -> str:
        return ", ".join(f"{count:,} {WORDS[outcome]}" for outcome, count in self.counts.items())


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sets of results.

    Args:
        names: of A and B.
        changes: pairs with verdicts, in an order independent of the records.
        num_alone: (cells of A without a published rate, published rates without a cell), if B is published.
    """

    names: tuple[str, str]
    changes: tuple[Change, ...]
    rule: Rule
    num_alone: tuple[int, int] | None = None

    @cached_property
    def attention(self) -> tuple[Change, ...]:
        """The changes without controls, which only characterise the machine."""
        return tuple(change for change in self.changes if not _is_control(change.pair))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Outcome → number of attention cells, without zeros."""
        return _counted(self.attention)

    @property
    def has_compared(self) -> bool:
        """True if some cell ran on a side and has a counterpart that it can be compared with."""
        return bool(self.of(*TIMED, "broke", "fixed"))

    @cached_property
    def labels(self) -> Labels:
        return Labels(change.pair.cell for change in self.changes)

    @property
    def methods(self) -> list[MethodRow]:
        """One row for each method, the slowest B first; methods without a time last."""
        groups: dict[str, list[Change]] = defaultdict(list)
        for change in self.attention:
            groups[change.method].append(change)
        rows = [MethodRow(method, _mean(changes), _counted(changes)) for method, changes in groups.items()]
        return sorted(rows, key=lambda row: (row.mean_ratio is None, row.mean_ratio or 0.0, row.method))

    def largest(self, count: int | None = 10) -> list[Change]:
        """The pairs with the largest differences of speed that do not count as the same; all if `count` is
        None."""
        changes = [
            change for change in self.attention if change.verdict.outcome in ("faster", "slower", "ambiguous")
        ]
        return sorted(changes, key=lambda change: -change.size)[:count]

    def of(self, *outcomes: str) -> list[Change]:
        """The pairs of attention with one of these outcomes."""
        return [change for change in self.attention if change.verdict.outcome in outcomes]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(source, notes on its numbers) of paired published rates."""
        pairs = (
            (change.pair.b.source, note)
            for change in self.attention
            if change.pair.b and change.pair.b.source
            for note in change.pair.b.note.split("; ")
            if note
        )
        return sorted(set(pairs))

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """(reason why pairs cannot be compared, number of pairs), most frequent first."""
        return _most(change.verdict.why for change in self.of("incomparable"))

    @property
    def conclusion(self) -> str:
        """The whole comparison in one sentence."""
        counts = self.counts
        name = self.names[1]
        timed = sum(counts.get(outcome, 0) for outcome in TIMED)
        rest = [
            f"{counts[outcome]:,} {words}"
            for outcome, words in {
                "broke": "broke",
                "fixed": "were fixed" if counts.get("fixed", 0) > 1 else "was fixed",
                "new": "new",
                "gone": "gone",
                "incomparable": "cannot be compared",
                "untimed": "ran on neither side",
            }.items()
            if outcome in counts
        ]
        if not self.attention:
            return (
                f"No cell of {self.names[0]} has a counterpart in {name}."
                if self.num_alone is None
                else "No cell has a published rate."
            )
        if not timed:
            nothing = "No cell can be compared" if "incomparable" in counts else "No cell ran on both sides"
            return f"{nothing}; {', '.join(rest)}."
        if counts.get("same") == timed:
            text = f"{name} is the same in {'all ' if timed > 1 else ''}{plural(timed, 'cell')}"
        else:
            parts = [self._extreme("faster", "best"), self._extreme("slower", "worst")]
            if "same" in counts:
                parts.append(f"the same in {counts['same']:,}")
            if "ambiguous" in counts:
                parts.append(f"ambiguous in {counts['ambiguous']:,}")
            text = f"{name} is " + ", ".join(part for part in parts if part)
        share = {change.verdict.basis for change in self.attention if change.verdict.basis} == {
            "share of peak"
        }
        text = f"By share of peak, {text}" if share else f"{text[0].upper()}{text[1:]}"
        return text + (f"; {', '.join(rest)}" if rest else "") + "."

    def _extreme(self, outcome: str, word: str) -> str:
        """ "faster in 12 cells (best 1.40×: fa3 causal 32K fwd)"; "" without such cells."""
        changes = self.of(outcome)
        if not changes:
            return ""
        cells = (
            plural(len(changes), "cell")
            if outcome == "faster" or "faster" not in self.counts
            else f"{len(changes):,}"
        )
        most = max(changes, key=lambda change: change.size)
        return (
            f"{outcome} in {cells} ({word} {ratio_text(most.verdict.ratio)}: "
            f"{self.labels.of(most.pair.cell)})"
        )

    @property
    def bases(self) -> list[str]:
        """The kinds of comparison, one line each: by time, by rate, or by share of peak."""
        counts: Counter[tuple[Basis, str]] = Counter()
        for change in self.attention:
            if change.verdict.basis:
                counts[change.verdict.basis, _devices(change.pair, change.verdict.basis)] += 1
        return [
            f"{plural(count, 'pair')} by {basis}: {devices}"
            for (basis, devices), count in sorted(counts.items())
        ]

    @property
    def num_rested_on_one_side(self) -> int:
        """Pairs in which only one GPU rested after each call, which by itself changes the clock of long
        calls."""
        sides = ((change.pair.a, change.pair.b) for change in self.attention)
        return sum({a.rests, b.rests} == {True, False} for a, b in sides if a is not None and b is not None)

    @property
    def protocols(self) -> str:
        """The count of timed pairs with rests on both sides, in words; "" if all or none had."""
        timed = [change.pair for change in self.attention if change.verdict.lead]
        return protocols_text(sum(bool(pair.a and pair.a.rests) for pair in timed), len(timed), "pair")

    @property
    def resolutions(self) -> list[str]:
        """The resolution of each kind of comparison, one line each: the number of pairs, and the underlying
        repeats."""
        leads = [lead for lead in self._leads if not lead.resolution.is_foreign]
        counts: Counter[tuple[Relation, str]] = Counter(
            (lead.relation, str(lead.resolution)) for lead in leads
        )
        return [
            f"{plural(count, 'pair')} of {WORDS_OF_RELATION[relation]}: the same within {resolution}"
            for (relation, resolution), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]

    @property
    def unknown(self) -> list[str]:
        """Lines on devices whose repeats are not known, each with what to do."""
        counts = Counter(lead.resolution.borrowed_by for lead in self._leads if lead.resolution.is_foreign)
        return [
            unknown_text(plural(count, "pair"), what, self.rule) for what, count in sorted(counts.items())
        ]

    @property
    def _leads(self) -> list[Lead]:
        return [change.verdict.lead for change in self.attention if change.verdict.lead]

    @property
    def controls(self) -> list[tuple[str, float]]:
        """(control, geometric mean of B over A): the difference of the machines themselves."""
        groups: dict[str, list[Change]] = defaultdict(list)
        for change in self.changes:
            # a wait of known length only characterises the timer
            if _is_control(change.pair) and change.pair.cell.kernel != "control":
                groups[change.method].append(change)
        means = ((name, _mean(changes)) for name, changes in sorted(groups.items()))
        return [(name, mean.ratio) for name, mean in means if mean is not None]

    def as_dict(self) -> dict[str, Any]:
        """The whole comparison for JSON."""
        return {
            "conclusion": self.conclusion,
            "a": self.names[0],
            "b": self.names[1],
            "rule": asdict(self.rule),
            "counts": self.counts,
            "without_partner": self.num_alone
            and dict(zip(("cells", "published_rates"), self.num_alone, strict=True)),
            "compared": self.bases,
            "controls": dict(self.controls),
            "notes": [{"source": source, "note": note} for source, note in self.notes],
            "methods": [
                {
                    "method": row.method,
                    "mean_ratio": row.mean_ratio,
                    "is_tie": row.mean.is_tie if row.mean else None,
                    "counts": row.counts,
                }
                for row in self.methods
            ],
            "pairs": [
                {
                    "cell": change.pair.cell.model_dump(),
                    "method": change.method,
                    **change.verdict.as_dict(),
                    "a": change.pair.a and change.pair.a.as_dict(),
                    "b": change.pair.b and change.pair.b.as_dict(),
                }
                for change in self.changes
            ],
        }


def compare_records(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    names: tuple[str, str] = ("A", "B"),
    rule: Rule | None = None,
    hardware: Hardware | None = None,
    repeats: tuple[Sequence[Record], Sequence[Record]] = ((), ()),
) -> Comparison:
    """Compare two sets of records. Peaks are those of `config/hardware.yaml` if `hardware` is not given.

    Args:
        repeats: of each side, second measurements of its cells. With several records of one cell in a set,
            these tell how much repeats differ, as on pages.
    """
    known = load_hardware() if hardware is None else hardware
    resolutions = resolutions_of(([*a, *repeats[0]], [*b, *repeats[1]]), known)
    return _judged(names, pair_records(a, b, known), rule, resolutions=resolutions)


def compare_published(
    records: Sequence[Record],
    rates: Sequence[PublishedRate],
    *,
    names: tuple[str, str] = ("A", "the published rate"),
    rule: Rule | None = None,
    hardware: Hardware | None = None,
) -> Comparison:
    """Compare records, as A, with published rates, as B."""
    paired = pair_published(records, rates, load_hardware() if hardware is None else hardware)
    return _judged(names, paired.pairs, rule, (paired.num_cells_alone, paired.num_rates_alone))


def _judged(
    names: tuple[str, str],
    pairs: Iterable[RecordPair],
    rule: Rule | None,
    num_alone: tuple[int, int] | None = None,
    resolutions: Resolutions | None = None,
) -> Comparison:
    chosen = rule or Rule()
    changes = tuple(Change(pair, judge(pair, chosen, resolutions)) for pair in pairs)
    return Comparison(names, changes, chosen, num_alone)


def _is_control(pair: RecordPair) -> bool:
    return any(side is not None and side.is_control for side in (pair.a, pair.b))


def _counted(changes: Iterable[Change]) -> dict[str, int]:
    counts = Counter(change.verdict.outcome for change in changes)
    return {outcome: counts[outcome] for outcome in OUTCOMES if outcome in counts}


def _most(texts: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(texts).items(), key=lambda item: (-item[1], item[0]))


def _mean(changes: Iterable[Change]) -> Lead | None:
    leads = [change.verdict.lead for change in changes if change.verdict.lead]
    return mean_lead(leads) if leads else None


def _devices(pair: RecordPair, basis: Basis) -> str:
    """The two devices, with their peaks if relevant; one name if they are the same."""
    sides = [side for side in (pair.a, pair.b) if side is not None]
    names = [
        f"{side.device} ({number(side.peak_tflops)} TFLOP/s)" if basis == "share of peak" else side.device
        for side in sides
    ]
    return names[0] if len(set(names)) == 1 else " → ".join(names)
