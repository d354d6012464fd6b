"""Makes the table of targets of context parallelism: each with the least and the most that records show, and
a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from benchmarks.cp.cells import DIRECTIONS, OWN, PLAIN, Cells, Run
from longca.core import format_length
from tools.table import Table

COLUMNS = ("target", "wanted", "least", "where", "most", "where", "reached in", "verdict")
MIXED = (
    "shared_question",
    "causal_blockwise",
    "prefix_lm",
    "prefix_lm_document",
    "global_sliding_window",
    "block_causal_document",
)
MIB = 1 << 20
Entry = tuple[float, str]


@dataclass(frozen=True)
class Target:
    title: str
    wanted: float
    entries: tuple[Entry, ...]
    """(ratio reached, where)"""
    text: Callable[[float], str]
    at_most: bool = False

    def row(self) -> tuple[str, ...]:
        wanted = f"{'≤' if self.at_most else '≥'} {self.text(self.wanted)}"
        if not self.entries:
            return (self.title, wanted, "–", "", "–", "", "", "not measured")
        least = min(self.entries)
        most = max(self.entries)
        reached = sum(
            (value <= self.wanted) if self.at_most else (value >= self.wanted) for value, _ in self.entries
        )
        verdict = "met" if reached == len(self.entries) else "missed"
        return (
            self.title,
            wanted,
            self.text(least[0]),
            least[1],
            self.text(most[0]),
            most[1],
            f"{reached} of {len(self.entries)}",
            verdict,
        )


def targets(cells: Cells) -> Table:
    rows = tuple(target.row() for target in _targets(cells))
    records = tuple(dict(zip((*COLUMNS[:5], "most where", *COLUMNS[6:]), row, strict=True)) for row in rows)
    caption = (
        "A cell is one strategy, mask, number of GPUs × tokens, and direction. Least and most are over the "
        "cells of a target that were measured, and it is met where all of these reach it."
    )
    return Table("cp_targets", caption, COLUMNS, rows, records, ("target", "where", "verdict"))


def _targets(cells: Cells) -> Iterable[Target]:
    for tokens, wanted in ((32768, 0.93), (8192, 0.85)):
        yield Target(
            f"`band` over its single-GPU baseline, full and causal, {format_length(tokens)} a GPU",
            wanted,
            tuple(_shares(cells, OWN, PLAIN, tokens)),
            _percent,
        )
    for direction, word in DIRECTIONS.items():
        yield Target(
            f"`band` over `torch_cp` (`cudnn`), causal, {word}",
            1.15,
            tuple(_ratios(cells, ("causal",), "band", ("torch_cp", "cudnn"), direction)),
            _times,
        )
        yield Target(
            f"each strategy over its best kernel, over the same, causal, {word}",
            1.15,
            tuple(_best(cells, direction)),
            _times,
        )
    yield Target(
        "`fa2` over `ring_flash_attn` (`fa2`), full and causal, 32K in all",
        1.2,
        tuple(
            entry
            for direction in DIRECTIONS
            for entry in _ratios(cells, PLAIN, "fa2", ("ring_flash_attn", "fa2"), direction, whole=32768)
        ),
        _times,
    )
    yield Target(
        "`band` over its single-GPU baseline, documents, `ring_p2p` and `ring_allgather`",
        0.8,
        tuple(_shares(cells, ("ring_p2p", "ring_allgather"), ("full_document", "causal_document"))),
        _percent,
    )
    yield Target(
        "`band` over `torch_flex_cp`, heterogeneous masks, geometric mean", 2.0, tuple(_means(cells)), _times
    )
    fewer = (
        3 if any(cells.runs(strategy="ring_p2p", kernel="band", world=3)) else 2
    )  # a ring of two has a buffer less than any larger one
    yield Target(
        f"memory of `ring_p2p` above the shards, 4 GPUs over {fewer}",
        1.0,
        tuple(_growth(cells, fewer)),
        _times,
        at_most=True,
    )


def _shares(
    cells: Cells, strategies: Iterable[str], masks: Iterable[str], tokens: int | None = None
) -> Iterable[Entry]:
    for run, direction in cells.runs(kernel="band"):
        share = cells.share(run, direction)
        if (
            share is not None
            and run.strategy in strategies
            and run.mask in masks
            and tokens in (None, run.tokens)
        ):
            yield share, f"{run.where}, {DIRECTIONS[direction]}"


def _ratios(
    cells: Cells,
    masks: Iterable[str],
    kernel: str,
    peer: tuple[str, str],
    direction: str,
    whole: int | None = None,
) -> Iterable[Entry]:
    """Yields the speed of each own strategy over a kernel, relative to a peer over its kernel, where both
    were measured."""
    for run, run_direction in cells.runs(kernel=kernel):
        ratio = cells.ratio(run, replace(run, strategy=peer[0], kernel=peer[1]), direction)
        if (
            run_direction == direction
            and ratio
            and run.strategy in OWN
            and run.mask in masks
            and whole in (None, run.world * run.tokens)
        ):
            yield ratio, f"{run.where}, {DIRECTIONS[direction]}"


def _best(cells: Cells, direction: str) -> Iterable[Entry]:
    """Yields the speed of each own strategy over its fastest kernel, relative to `torch_cp` over cuDNN's."""
    best: dict[Run, tuple[float, str]] = {}
    for run, run_direction in cells.runs(mask="causal"):
        ratio = cells.ratio(run, replace(run, strategy="torch_cp", kernel="cudnn"), direction)
        if run_direction == direction and ratio and run.strategy in OWN:
            anyhow = replace(run, kernel="cudnn")
            best[anyhow] = max(best.get(anyhow, (0.0, "")), (ratio, run.kernel))
    for run, (ratio, kernel) in best.items():
        yield ratio, f"{run.where}, over {kernel}, {DIRECTIONS[direction]}"


def _means(cells: Cells) -> Iterable[Entry]:
    """Yields the geometric mean of each strategy over the cells that were measured of it and of the peer."""
    for strategy in OWN:
        ratios: dict[Run, list[float]] = {}
        for run, direction in cells.runs(strategy=strategy, kernel="band"):
            ratio = cells.ratio(run, replace(run, strategy="torch_flex_cp", kernel="flex"), direction)
            if run.mask in MIXED and ratio:
                ratios.setdefault(run, []).append(ratio)
        values = [value for ratio in ratios.values() for value in ratio]
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            yield mean, f"{strategy}, {len({run.mask for run in ratios})} masks, {len(values)} cells"


def _growth(cells: Cells, fewer: int) -> Iterable[Entry]:
    for run, direction in cells.runs(strategy="ring_p2p", kernel="band", world=fewer):
        few = cells.memory(run, direction)
        many = cells.memory(replace(run, world=4), direction)
        if few and many:
            yield (
                many / few,
                (
                    f"{run.mask}, {format_length(run.tokens)} a GPU, {DIRECTIONS[direction]}: "
                    f"{few / MIB:.0f} and {many / MIB:.0f} MiB"
                ),
            )


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _times(value: float) -> str:
    return f"{value:.2f} ×"
