"""Reads timelines of `benchmarks.cp.compare --trace FOLDER` and tells how much of the messages was exposed,
not overlapped with kernels.

    python -m benchmarks.cp.timeline FOLDER/*.json [--write docs/results/h200/context-parallelism.md]

A timeline has one forward and one backward call of a rank, on one GPU. Messages are NCCL's kernels and copies
between GPUs; all else that runs on the GPU is computing. A message's exposed part is when it was under way
and nothing was computed; idle is when neither was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tools.table import Table, add_options

COLUMNS = (
    "timeline",
    "step",
    "from, ms",
    "attention, ms",
    "other work, ms",
    "messages, ms",
    "exposed, ms",
    "idle, ms",
)
ATTENTION = (
    "forward_kernel",
    "backward_kernel",
    "fused_kernel",
    "queries_kernel",
    "_forward",
    "_keys",
    "_queries",
    "flash",
    "fmha",
    "sdpa",
    "cutlass",
)
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Event:
    """A kernel or copy on the GPU; times in microseconds."""

    name: str
    start: float
    end: float

    @property
    def is_message(self) -> bool:
        return "nccl" in self.name.lower() or "PtoP" in self.name

    @property
    def is_attention(self) -> bool:
        return not self.is_message and any(part in self.name for part in ATTENTION)


def events_of(trace: dict[str, Any]) -> list[Event]:
    """Returns the events of a trace in the order of their starts."""
    found = [
        Event(event["name"], event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in ON_GPU
    ]
    return sorted(found, key=lambda event: event.start)


def union(events: Iterable[Event]) -> np.ndarray:
    """Joins events into disjoint intervals, (n, 2), in order."""
    joined: list[list[float]] = []
    for event in sorted(events, key=lambda event: event.start):
        if joined and event.start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], event.end)
        else:
            joined.append([event.start, event.end])
    return np.array(joined, dtype=float).reshape(-1, 2)


def covered(intervals: np.ndarray, start: float, end: float) -> float:
    """Returns how much of [start, end) the intervals cover."""
    return float(
        np.clip(np.minimum(intervals[:, 1], end) - np.maximum(intervals[:, 0], start), 0, None).sum()
    )


def steps_of(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Cuts the time line where attention kernels start; the parts before the first and after the last are
    steps, too."""
    if not events:
        return []
    bounds = [
        events[0].start,
        *(event.start for event in events if event.is_attention),
        max(event.end for event in events),
    ]
    return [(start, end) for start, end in pairwise(bounds) if end > start]


def rows_of(name: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns a line for each step, and one for the whole."""
    attention, messages = (
        union(event for event in events if event.is_attention),
        union(event for event in events if event.is_message),
    )
    work, both = union(event for event in events if not event.is_message), union(events)
    steps = steps_of(events)
    lines = []
    for number, (start, end) in enumerate([*steps, (steps[0][0], steps[-1][1])] if steps else []):
        busy, worked = covered(both, start, end), covered(work, start, end)
        attending = covered(attention, start, end)
        lines.append(
            {
                "timeline": name,
                "step": "all" if number == len(steps) else number,
                "from_ms": (start - steps[0][0]) / 1e3,
                "attention_ms": attending / 1e3,
                "other_ms": (worked - attending) / 1e3,
                "messages_ms": covered(messages, start, end) / 1e3,
                "exposed_ms": (busy - worked) / 1e3,
                "idle_ms": (end - start - busy) / 1e3,
            }
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.timeline", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--steps", action="store_true", help="show each step, too, not only the whole")
    add_options(parser)
    options = parser.parse_args(arguments)
    lines = [
        line
        for path in options.traces
        for line in rows_of(path.stem, events_of(json.loads(path.read_text())))
    ]
    shown = [line for line in lines if options.steps or line["step"] == "all"]
    rows = tuple(
        (line["timeline"], str(line["step"]), *(f"{line[key]:.2f}" for key in list(line)[2:]))
        for line in shown
    )
    Table(
        "cp_timeline",
        "One forward and one backward call on a rank's GPU.",
        COLUMNS,
        rows,
        tuple(lines),
        COLUMNS[:2],
    ).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
