"""A comparison as lines and text tables, shared by terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longca.lab.compare.comparison import Change, Comparison
from longca.lab.compare.label import ratio_text, speed_texts
from longca.lab.store.text import percent, plural


class TableOfText(NamedTuple):
    """A title, column names, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Described:
    """A user's description of one side."""

    name: str
    text: str
    """its content: records, GPUs, days"""


def lines(comparison: Comparison, sides: Sequence[Described]) -> list[str]:
    """Facts before the tables: the sides, the kind of comparison, controls, and unpaired results."""
    texts = [f"{letter}: {side.text}" for letter, side in zip("AB", sides, strict=True)]
    texts += comparison.bases
    texts += [*comparison.resolutions, *comparison.unknown]
    if comparison.rule.tolerance is not None:
        texts.append(
            f"the same, too: speeds that differ by no more than {percent(comparison.rule.tolerance)}"
        )
    if any(not change.verdict.is_open for change in comparison.of("ambiguous")):
        texts.append("ambiguous: they differ by more, but their own samples do not tell them apart")
    if comparison.controls:
        means = ", ".join(f"{name} {ratio_text(mean)}" for name, mean in comparison.controls)
        texts.append(f"controls, B over A: {means}: this is the difference of the machines themselves")
    if comparison.protocols:
        texts.append(f"{comparison.protocols}, on both sides; means are over both kinds")
    if comparison.num_rested_on_one_side:
        texts.append(
            f"in {plural(comparison.num_rested_on_one_side, 'pair')}, calls of one side alone had rests: "
            "without, a GPU's power controller lowers the clock of long calls (by 3 to 9 % on an H100), so "
            "that they are not the same measurement"
        )
    if comparison.num_alone:
        cells, rates = comparison.num_alone
        texts.append(f"unpaired: {plural(cells, 'cell')} of A, {plural(rates, 'published rate')}")
    texts += [f"not comparable, {plural(count, 'cell')}: {why}" for why, count in comparison.reasons]
    return texts


def tables(comparison: Comparison, count: int | None = 10) -> list[TableOfText]:
    """The non-empty tables: methods, broken cells, the largest changes, fixed cells.

    Args:
        count: largest number of rows of the last three; None for all.
    """
    methods = [(row.method, row.mean_text, row.outcomes) for row in comparison.methods]
    made = [TableOfText("Methods, B over A (geometric mean)", ("method", "B/A", "cells"), methods)]
    broke = comparison.of("broke")
    fixed = comparison.of("fixed")
    largest = comparison.largest(None)
    by_share = any(change.verdict.basis == "share of peak" for change in largest)
    unit = "TFLOP/s per device, or share of peak" if by_share else "TFLOP/s per device"
    made.append(
        TableOfText(_title("Broke", broke, count), ("cell", "why"), _reasons(comparison, broke, count))
    )
    made.append(
        TableOfText(
            f"{_title('Largest changes', largest, count)}, {unit}",
            ("B/A", "cell", "A", "B", ""),
            [
                (
                    ratio_text(change.verdict.ratio),
                    comparison.labels.of(change.pair.cell, change.method),
                    *speed_texts(change.pair, change.verdict.basis),
                    change.verdict.outcome,
                )
                for change in largest[:count]
            ],
        )
    )
    made.append(
        TableOfText(_title("Fixed", fixed, count), ("cell", "why"), _reasons(comparison, fixed, count))
    )
    return [table for table in made if table.rows]


def _title(name: str, changes: Sequence[Change], count: int | None) -> str:
    shown = len(changes[:count])
    return f"{name} ({shown:,} of {len(changes):,})" if shown < len(changes) else f"{name} ({shown:,})"


def _reasons(comparison: Comparison, changes: Sequence[Change], count: int | None) -> list[tuple[str, ...]]:
    return [
        (comparison.labels.of(change.pair.cell, change.method), change.verdict.why)
        for change in changes[:count]
    ]
