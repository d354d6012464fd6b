"""Looks up records of context parallelism by what was measured: the tables and the targets share it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from longca.core import format_length
from longca.lab.ranking.table import has_rests

OWN = ("ulysses", "usp", "ring_p2p", "ring_allgather", "loongtrain")
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
PLAIN = ("full", "causal")  # a shorter mask of the same name can have the area of a rank


@dataclass(frozen=True)
class Run:
    """One cell of context parallelism without its direction."""

    strategy: str
    kernel: str
    mask: str
    world: int
    tokens: int
    """of a GPU"""

    @property
    def where(self) -> str:
        return f"{self.strategy}, {self.mask}, {self.world} × {format_length(self.tokens)}"


class Cells:
    """The timed cells, each with its single-GPU baseline. Of strategies, those that chose their meshes by
    themselves.

    Calls with a rest of the GPU after each are faster than calls without, so only records of one of the two
    protocols are compared.

    Args:
        records: the derived table.
    """

    def __init__(self, records: pd.DataFrame) -> None:
        timed = records[(records.status == "ok") & (records.seed == 0)]
        timed = timed.assign(rests=has_rests(timed))
        single = timed[timed.kind == "kernel"]
        self._baseline = {
            (row.kernel, row.mask, row.seqlen, row.direction, row.rests): float(row.tflops_per_device)
            for row in single.itertuples()
        }
        self._found: dict[tuple[Run, str], float] = {}
        self._memory: dict[tuple[Run, str], float] = {}
        self._rests: dict[tuple[Run, str], bool] = {}
        for row in timed[(timed.kind == "cp") & (timed.strategy_params == "")].itertuples():
            run = Run(row.strategy, row.kernel, row.mask, int(row.world), int(row.seqlen) // int(row.world))
            self._found[run, row.direction] = float(row.tflops_per_device)
            self._memory[run, row.direction] = float(row.above_shards_bytes)
            self._rests[run, row.direction] = bool(row.rests)

    def runs(self, **fields: object) -> Iterator[tuple[Run, str]]:
        """Yields (run, direction) of all cells that have these values."""
        return (
            key
            for key in self._found
            if all(getattr(key[0], name) == value for name, value in fields.items())
        )

    def rate(self, run: Run, direction: str) -> float | None:
        """Returns TFLOP/s of a GPU, or None."""
        return self._found.get((run, direction))

    def memory(self, run: Run, direction: str) -> float | None:
        """Returns bytes above the shards, or None."""
        return self._memory.get((run, direction))

    def baseline(self, run: Run, direction: str) -> float | None:
        """Returns TFLOP/s of the kernel on one GPU, by the protocol of the run: over all tokens, or else over
        a mask with the area of one of these GPUs. None where there is none, or no such run."""
        rests = self._rests.get((run, direction))
        whole = run.world * run.tokens
        rate = self._baseline.get((run.kernel, run.mask, whole, direction, rests))
        if rate is None and run.mask in PLAIN and math.isqrt(run.world) ** 2 == run.world:
            shorter = whole // math.isqrt(run.world)
            rate = self._baseline.get((run.kernel, run.mask, shorter, direction, rests))
        return rate

    def ratio(self, run: Run, other: Run, direction: str) -> float | None:
        """Returns the rate over that of another run. None unless both were measured, by one protocol."""
        rate = self.rate(run, direction)
        rate_of_other = self.rate(other, direction)
        if rate is None or rate_of_other is None or not self.are_alike(run, other, direction):
            return None
        return rate / rate_of_other

    def are_alike(self, run: Run, other: Run, direction: str) -> bool:
        """Tells whether both were measured by one protocol."""
        return self._rests.get((run, direction)) == self._rests.get((other, direction))

    def share(self, run: Run, direction: str) -> float | None:
        """Returns the rate over the single-GPU baseline, or None."""
        rate = self.rate(run, direction)
        baseline = self.baseline(run, direction)
        return None if rate is None or baseline is None else rate / baseline
