"""Two points beside each other: which is faster, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from longca.lab.claims.evidence import Point
from longca.lab.claims.parts import Observation
from longca.lab.ranking import Lead, compare, mean_lead, share_protocol
from longca.lab.ranking.table import RATE
from longca.lab.store.text import format_bytes, number


@dataclass(frozen=True)
class Pair:
    """Two points whose settings differ in nothing but what is compared."""

    first: Point
    second: Point
    column: str = RATE
    same_masks: bool = True
    """seeds draw the same masks on both sides, so that those are compared which both have"""

    @cached_property
    def lead(self) -> Lead:
        """The first's rate over the second's, and what it means. Only of rates."""
        first = self.first.ranked
        second = self.second.ranked
        assert self.column == RATE and first and second
        if not self.same_masks:
            second = replace(
                second,
                measurements=tuple(
                    replace(measurement, seed=~measurement.seed) for measurement in second.measurements
                ),
            )
        return compare(first, second)

    @property
    def is_of_one_protocol(self) -> bool:
        """False for two rates of which one was measured with rests of the GPU and the other one without."""
        first = self.first.ranked
        second = self.second.ranked
        return self.column != RATE or first is None or second is None or share_protocol(first, second)

    @property
    def ratio(self) -> float:
        """The first's number over the second's; NaN where one is missing."""
        if self.column == RATE:
            return self.lead.ratio if self.first.ranked and self.second.ranked else float("nan")
        return self.first.value(self.column) / self.second.value(self.column)

    @property
    def order(self) -> str:
        """ "more" or "less"; "same" where the two rates are not told apart."""
        return self.lead.order

    def is_above(self, other: Pair) -> bool:
        """True if its ratio is told apart from that of another pair, and above it."""
        return (
            mean_lead([self.lead, replace(other, first=other.second, second=other.first).lead]).order
            == "more"
        )

    def observed(self, holds: bool, first: str = "", second: str = "") -> Observation:
        """It as an observation; names default to the points'."""
        show = format_bytes if self.column.endswith("bytes") else number
        shown, other = (show(point.value(self.column)) for point in (self.first, self.second))
        names = first or self.first.name, second or self.second.name
        tie = ", not told apart" if self.column == RATE and self.order == "same" else ""
        text = f"{names[0]} {shown}, {names[1]} {other} ({number(self.ratio)}×{tie}): {self.first.where}"
        return Observation(text, holds, self.first.cell_ids + self.second.cell_ids)


def pairs(first: Sequence[Point], second: Iterable[Point], *vary: str, column: str = RATE) -> list[Pair]:
    """Each first point, paired with the second point that differs from it only in `vary`. If both have the
    same mask, only seeds that both have count.

    Args:
        vary: fields of `Point` or parameters of masks; "mask" stands for all its parameters besides, "heads"
            for the KV heads.
    """
    return list(_matched(first, second, vary, column))


def beside_each(
    first: Sequence[Point], observed: Iterable[Point], others: Iterable[str], field: str = "kernel"
) -> dict[str, list[Pair]]:
    """Other method → each first point, paired with that method's of its setting. The best of several others
    is never taken: a point with one rival there would confirm as much as a point with all.

    Args:
        field: what names a method: "kernel" or "strategy".
    """
    there = list(observed)
    return {
        name: pairs(first, [point for point in there if getattr(point, field) == name], field)
        for name in others
    }


def _matched(
    first: Sequence[Point], second: Iterable[Point], vary: Sequence[str], column: str = RATE
) -> Iterator[Pair]:
    loose = (
        {"cells", "gpu", "played", "resolutions", "mask_params", *vary}
        | ({"corpus"} if "mask" in vary else set())
        | ({"num_kv_heads"} if "heads" in vary else set())
    )
    names = [field.name for field in fields(Point) if field.name not in loose]

    def key(point: Point) -> tuple[Any, ...]:
        params = (
            ()
            if "mask" in vary
            else tuple((name, value) for name, value in point.params.items() if name not in vary)
        )
        return (*(getattr(point, name) for name in names), params)

    others = {key(point): point for point in second if point.ok}
    for point in first:
        other = others.get(key(point))
        if point.ok and other is not None:
            same_masks = "mask" not in vary
            shared = point.ok_seeds & other.ok_seeds if same_masks else set()
            both = (point.of_seeds(shared), other.of_seeds(shared)) if shared else (point, other)
            pair = Pair(*both, column, same_masks)
            if pair.is_of_one_protocol and pair.ratio == pair.ratio:
                yield pair
