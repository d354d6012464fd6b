"""The points that a claim asks for and the records lack, in words, with the command that measures them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from longca.core import format_length
from longca.lab.claims.as_study import DEFECTIVE
from longca.lab.claims.contract import Gaps
from longca.lab.claims.grid import GQA, HETEROGENEOUS, LENGTHS, REGULAR

NAMELESS = ("kernel", "strategy", "mask", "direction", "heads")  # axes whose values say what they are
OPTIONS = {"kernel": "-k", "strategy": "-c", "mask": "-m", "seqlen": "-s", "heads": "--heads", "world": "-w"}
"""axes and the options of `longca run` that choose them"""


class HasAxes(Protocol):
    """A point: it has a value on each axis."""

    def axis(self, name: str) -> Any:
        """The value; None without that axis."""


def missing(observed: Iterable[HasAxes], gpus: str, *, study: str = "", **axes: Sequence[Any]) -> Gaps:
    """Combinations of the axes that no point has, with the hardware for them; neighbours are told together.

    Args:
        observed: points of any status.
        study: the study whose cells they are; the command that measures them is told with them.
        axes: as `points` takes them; each a sequence of values.
    """
    there = {tuple(str(point.axis(name)) for name in axes) for point in observed}
    asked = list(itertools.product(*axes.values()))
    absent = [combination for combination in asked if tuple(map(str, combination)) not in there]
    texts = []
    for combination in _merged(absent, len(axes)):
        values_of = dict(zip(axes, combination, strict=True))
        text = "; ".join(_told(name, values) for name, values in values_of.items())
        command = f": {run_command(study, values_of)}" if study else ""
        texts.append(f"{text} (needs {gpus}{command})")
    return Gaps(tuple(texts), len(absent), len(asked))


def missing_dense(
    observed: Iterable[HasAxes], gpus: str, study: str, kernels: Sequence[str], masks: Sequence[str]
) -> Gaps:
    """`missing` of dense kernels at the study's lengths and shared KV heads, forward and backward."""
    axes = {"kernel": kernels, "mask": masks, "heads": [GQA], "seqlen": LENGTHS, "direction": ("fwd", "bwd")}
    return missing(observed, gpus, study=study, **axes)


def _merged(absent: Sequence[tuple[Any, ...]], num_axes: int) -> list[tuple[tuple[Any, ...], ...]]:
    """Combinations of single values as combinations of several, that differ in one axis put together."""
    merged: list[tuple[tuple[Any, ...], ...]] = [
        tuple((value,) for value in combination) for combination in absent
    ]
    for axis in range(num_axes):
        together: dict[tuple[Any, ...], list[Any]] = {}
        for combination in merged:
            rest = combination[:axis] + combination[axis + 1 :]
            together.setdefault(rest, []).extend(combination[axis])
        merged = [(*rest[:axis], tuple(values), *rest[axis:]) for rest, values in together.items()]
    return merged


def _told(name: str, values: Sequence[Any]) -> str:
    if name == "mask":
        kinds = {"regular masks": REGULAR, "heterogeneous masks": HETEROGENEOUS}
        whole = {kind: masks for kind, masks in kinds.items() if set(masks) <= set(values)}
        rest = [value for value in values if not any(value in masks for masks in whole.values())]
        return ", ".join([*whole, *rest])
    text = ", ".join(format_length(value) if name == "seqlen" else str(value) for value in values)
    return f"{text} ranks" if name == "world" else text if name in (*NAMELESS, "seqlen") else f"{name} {text}"


def run_command(study: str, axes: Mapping[str, Sequence[Any]], *, as_named: bool = False) -> str:
    """The command that measures cells of a study; axes that it has no option for are left out.

    Kernels that the study called with a defect have rows as released, too: a glob takes either.

    Args:
        as_named: without these globs: the axes have the names of all rows.
    """
    chosen = []
    for name, option in OPTIONS.items():
        values = [str(format_length(value) if name == "seqlen" else value) for value in axes.get(name, ())]
        if values:
            text = ",".join(
                f"*{value}" if name == "kernel" and value in DEFECTIVE and not as_named else value
                for value in values
            )
            chosen.append(f"{option} '{text}'" if "*" in text else f"{option} {text}")
    directions = axes.get("direction", ())
    chosen += [f"-d {direction}" for direction in directions if len(directions) == 1]
    return " ".join(["longca run", study, *chosen])
