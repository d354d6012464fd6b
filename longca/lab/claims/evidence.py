"""Questions to the derived table: the points that were measured, two of them beside each other, and the
points that are missing.

A point is one setting of one method, all seeds of its mask together. Only attention on GPUs counts: the
claims are about nothing else.
Whether one rate is above another, `longca.lab.ranking` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.claims.as_study import shown
from longca.lab.claims.gaps import missing
from longca.lab.claims.grid import (
    DENSE,
    GQA,
    HETEROGENEOUS,
    LENGTHS,
    MHA,
    REGULAR,
    STRATEGIES,
    STUDY_BYTES,
    STUDY_PEAK,
)
from longca.lab.claims.parts import Observation
from longca.lab.claims.rows import MEASURED, OWN, PLAYED, RESOLUTIONS, ROLE, STUDY_GPU, prepared
from longca.lab.ranking import ANY_TWO, MeasuredPoint, Measurement, competing
from longca.lab.ranking.table import COLUMNS as OF_RANKING
from longca.lab.ranking.table import RATE
from longca.lab.store.table import RANKED_BY
from longca.lab.store.text import number, plural, short_device

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.ranking import Resolutions

__all__ = [
    "COLUMNS",
    "DENSE",
    "GQA",
    "HETEROGENEOUS",
    "LENGTHS",
    "MHA",
    "REGULAR",
    "STRATEGIES",
    "STUDY_BYTES",
    "STUDY_PEAK",
    "Point",
    "gpu_note",
    "held",
    "missing",
    "notes",
    "num_hosts",
    "of",
    "points",
    "reach",
    "span",
]
_IDENTITY = (
    "device",
    "kind",
    "kernel",
    "strategy",
    "world",
    "mask",
    "mask_params",
    "corpus",
    "seqlen",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
)
_NUMBERS = (
    RATE,
    "absolute_peak_bytes",
    "moved_bytes",
    "formula_bytes",
    "formula_replicated_bytes",
    "straggler_percent",
    "error_out",
    "error_dq",
    "error_dk",
    "error_dv",
    "density",
    "peak_tflops",
    "num_nodes",
)
COLUMNS = tuple(
    dict.fromkeys(
        (*_IDENTITY, *_NUMBERS, *RANKED_BY, *OF_RANKING, "cell_id", "seed", "status", "reason", "device_type")
    )
)
"""the columns of the derived table from which points are made"""
Wanted = Any  # a value, several values, or a predicate


@dataclass(frozen=True)
class _Cell:
    cell_id: str
    seed: int
    status: str
    reason: str
    numbers: dict[str, float]
    measurement: Measurement | None
    """None without a rate, and for one that is not of its case's protocol"""


@dataclass(frozen=True)
class Point:
    """One method in one setting; its numbers are medians over the seeds that are ok."""

    device: str
    kind: str
    kernel: str
    strategy: str
    world: int
    mask: str
    mask_params: str
    corpus: str
    seqlen: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    direction: str
    cells: tuple[_Cell, ...]
    gpu: str = ""
    """the short name of its device"""
    played: tuple[Measurement, ...] = ()
    """of its play-offs"""
    resolutions: Resolutions | None = None

    @property
    def heads(self) -> str:
        return f"{self.num_q_heads}:{self.num_kv_heads}"

    @property
    def method(self) -> str:
        return f"{self.strategy}+{self.kernel}" if self.strategy else self.kernel

    @property
    def name(self) -> str:
        """Its method as texts name it; this project's stand-ins are named as such."""
        return self.method if self.strategy else shown(self.kernel)

    @property
    def params(self) -> dict[str, str]:
        """Parameters of the mask, as text."""
        return dict(part.split("=", 1) for part in self.mask_params.split(", ") if part)

    @property
    def statuses(self) -> set[str]:
        return {cell.status for cell in self.cells}

    @property
    def ok(self) -> bool:
        """At least one seed was measured, and was right."""
        return "ok" in self.statuses

    @property
    def rate(self) -> float:
        """TFLOP/s per device."""
        return self.value(RATE)

    @cached_property
    def ranked(self) -> MeasuredPoint | None:
        """The same as the ranking has it; None without a rate."""
        own = tuple(cell.measurement for cell in self.cells if cell.measurement is not None)
        return MeasuredPoint(self.method, own, self.played, self.resolutions) if own or self.played else None

    @property
    def cell_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.cell_id for cell in self.cells))

    def value(self, column: str) -> float:
        """The median over its ok cells of a column of the table; NaN where none has it. A rate is that of its
        play-offs, if any."""
        if column == RATE:
            return self.ranked.rate if self.ranked else float("nan")
        known = [
            cell.numbers[column]
            for cell in self.cells
            if cell.status == "ok" and cell.numbers[column] == cell.numbers[column]
        ]
        return median(known) if known else float("nan")

    def of_seeds(self, seeds: Collection[int]) -> Point:
        return replace(
            self,
            cells=tuple(cell for cell in self.cells if cell.seed in seeds),
            played=tuple(playoff for playoff in self.played if playoff.seed in seeds),
        )

    def axis(self, name: str) -> Any:
        """Its value of an axis: a field, `heads`, or a parameter of its mask as text; None without that
        parameter."""
        return getattr(self, name) if name in _FIELDS else self.params.get(name)

    @property
    def seeds(self) -> set[int]:
        return {cell.seed for cell in self.cells}

    @property
    def ok_seeds(self) -> set[int]:
        return {cell.seed for cell in self.cells if cell.status == "ok"}

    @property
    def where(self) -> str:
        """Its setting, in words: "full 8K fwd 64:8 on H100"."""
        details = [
            f"{key} {value}"
            for key, value in self.params.items()
            if key in ("block", "mean_block", "density")
        ]
        details += ["as the study's code has it"] if self.params.get("paper_compat") == "True" else []
        mask = f"{self.mask} ({', '.join(details)})" if details else self.mask
        return f"{mask} {self.size}"

    @property
    def size(self) -> str:
        """Its setting without the mask: "8K fwd 64:8 on H100", "8K fwd 64:8 on 2 ranks of H100"."""
        ranks = plural(self.world, "rank") if self.kind == "cp" else ""
        machine = " of ".join(filter(None, (ranks, self.gpu)))
        return (
            f"{format_length(self.seqlen)} {self.direction} {self.heads}{f' on {machine}' if machine else ''}"
        )


def points(table: pd.DataFrame, *, ok: bool = True, **where: Wanted) -> list[Point]:
    """The points that fit, in the order of the table.

    Args:
        ok: only those with at least one ok seed; else all that were tried.
        where: name → a value, several values or a predicate. Names are fields of `Point`, `heads` ("64:8"),
            and parameters of masks (`block=64`; points without the parameter do not fit).
    """
    table = prepared(table)
    direct = {name: wanted for name, wanted in where.items() if name in _IDENTITY}
    keep = table[ROLE].isin((OWN, PLAYED))
    for name, wanted in direct.items():
        keep &= (
            table[name].map(wanted)
            if callable(wanted)
            else table[name].isin(wanted if _several(wanted) else [wanted])
        )
    chosen = table[keep]
    numbers = list(zip(*(chosen[name].astype(float) for name in _NUMBERS), strict=True))
    groups: dict[tuple[Any, ...], tuple[list[_Cell], list[Measurement]]] = defaultdict(lambda: ([], []))
    identities = zip(*(chosen[name] for name in _IDENTITY), strict=True)
    facts = zip(
        chosen.cell_id,
        chosen.seed,
        chosen.status,
        chosen.reason,
        chosen[MEASURED],
        chosen[ROLE],
        numbers,
        strict=True,
    )
    for identity, (cell_id, seed, status, reason, measurement, role, values) in zip(
        identities, facts, strict=True
    ):
        if role == OWN:
            groups[identity][0].append(
                _Cell(cell_id, seed, status, reason, dict(zip(_NUMBERS, values, strict=True)), measurement)
            )
        elif measurement is not None:
            groups[identity][1].append(measurement)
    known = table.attrs.get(RESOLUTIONS)
    observed = [
        Point(
            **dict(zip(_IDENTITY, identity, strict=True)),
            cells=tuple(cells),
            gpu=short_device(identity[0]),
            played=tuple({playoff.seed: playoff for playoff in played}.values()),
            resolutions=known,
        )
        for identity, (cells, played) in groups.items()
        if cells
    ]
    rest = {name: wanted for name, wanted in where.items() if name not in direct}
    return [
        point
        for point in observed
        if (point.ok or not ok) and all(_fits(point.axis(name), wanted) for name, wanted in rest.items())
    ]


def notes(rows: pd.DataFrame, point: Point) -> str:
    """The notes of a point's records, where the table has their column; a claim that reads them declares
    it."""
    if "notes" not in rows:
        return ""
    own = rows.cell_id.isin(point.cell_ids) & (rows.device == point.device)
    return "; ".join(dict.fromkeys(rows.notes[own].astype(str)))


def of_one_protocol(observed: Iterable[Point]) -> list[Point]:
    """The points with a rate by one protocol, with rests of the GPU where two or more have such: rates of the
    two protocols are never compared."""
    points_of = {str(index): point for index, point in enumerate(observed)}
    ranked = [replace(point.ranked, method=key) for key, point in points_of.items() if point.ranked]
    return [points_of[point.method] for point in competing(ranked, ANY_TWO).points]


def gpu_note(observed: Iterable[Point], meaning: str = "") -> str:
    """A sentence where GPUs are not the study's.

    Args:
        meaning: what that means for the verdict; by default what the GPUs' peaks mean for rates.
    """
    ran = [point for point in observed if point.ok]
    others = {point.device: point.value("peak_tflops") for point in ran if STUDY_GPU not in point.device}
    if not others:
        return ""
    same = all(peak == STUDY_PEAK for peak in others.values())
    rates = (
        f"their peaks are the same {STUDY_PEAK} TFLOP/s, so that rates compare"
        if same
        else (
            f"peaks are {span(others.values())} and {STUDY_PEAK} TFLOP/s, so that orders may differ, and "
            f"rates will"
        )
    )
    names = " and ".join(sorted(others))
    some = any(STUDY_GPU in point.device for point in ran)
    where = (
        f"an {STUDY_GPU} as in the study, and on {names}"
        if some
        else f"{names}, the study on {STUDY_GPU} 80 GB"
    )
    return f"Measured on {where}: {meaning or rates}."


def num_hosts(observed: Iterable[Point]) -> int:
    """The most hosts that took part in one ok point; 0 without any."""
    return max((int(point.value("num_nodes")) for point in observed if point.ok), default=0)


def reach(observed: Sequence[Point]) -> str:
    """The part of a claim about many GPUs that points reach: "up to 4 ranks of one host"."""
    hosts = num_hosts(observed)
    ranks = max((point.world for point in observed if point.ok), default=0)
    return f"up to {plural(ranks, 'rank')} of {'one host' if hosts == 1 else f'{hosts} hosts'}"


def span(values: Iterable[float], show: Callable[[Any], str] | None = None) -> str:
    """The least and the most: "0.63–0.76", or one number where both read the same; "–" without values.

    Args:
        show: how a value is written; by default with two decimals below 10, and three digits above.
    """
    known = sorted(values)
    write = show or (lambda value: f"{value:.2f}" if value < 10 else number(value))
    return "–".join(dict.fromkeys(write(value) for value in (known[0], known[-1]))) if known else "–"


def held(observations: Sequence[Observation], noun: str = "point") -> str:
    """Number of them that hold: "3 of 14 points"."""
    return of(sum(observation.holds for observation in observations), len(observations), noun)


def of(count: int, total: int, noun: str) -> str:
    """ "3 of 14 points", "all 14 points", "none of 14 points", "the one point", "0 of 1 point"."""
    if total <= 1:
        return f"the one {noun}" if count else f"0 of {plural(total, noun)}"
    amount = "all" if count == total else "none of" if not count else f"{count} of"
    return f"{amount} {total} {noun}s"


_FIELDS = {field.name for field in fields(Point)} | {"heads"}


def _several(wanted: Wanted) -> bool:
    return isinstance(wanted, Collection) and not isinstance(wanted, str)


def _fits(value: Any, wanted: Callable[[Any], bool] | Any) -> bool:
    if callable(wanted):
        return value is not None and bool(wanted(value))
    options = list(wanted) if _several(wanted) else [wanted]
    return value in options or (value is not None and str(value) in [str(option) for option in options])
