"""The study's own schedules of context parallelism: those done again here, and those that are not.

The released code has five strategies. Its ring and its all-gather were written anew from their description.
This project's own Ulysses, USP and LoongTrain overlap and balance what the study's do not, so that they judge
nothing of the study's. Nor do rates over `band`: the study's kernel was FA3, which no ring or all-gather here
can call under documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.claims.contract import Gaps
from longca.lab.claims.evidence import missing, reach
from longca.lab.claims.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from longca.lab.claims.evidence import Point

RING = "paper_style_ring"
GATHER = "paper_style_allgather"
NAMES = {RING: "the study's ring", GATHER: "the study's all-gather"}
WORLDS = (8, 16, 32, 64, 96)  # GPUs: of the study's figures
KERNEL = "fa3"  # the study's, as this project has it
STUDY = "paper"
"""the study with the cells of both, under the masks that the released code drew"""
H100S = f"{WORLDS[0]} to {WORLDS[-1]} H100s"


def not_here(*names: str) -> list[Part]:
    """The open parts of a claim that are about strategies whose schedule by the study is not done again
    here."""
    topic = "the study's own"
    absent = "not among the strategies here"
    return [Part(f"{topic} {name}", absent, topic=topic, method=name, absent=absent) for name in names]


def not_done_again(*absent: str, gpus: str) -> Gaps:
    """The gap of strategies whose schedule would have to be done again first."""
    return Gaps(
        (f"{', '.join(absent)} in the study's schedule, which is not done again here (needs {gpus})",)
    )


def decides(point: Point) -> bool:
    """True for a point of the study's schedules that is over its kernel, and on as many GPUs as it had."""
    return point.ok and point.kernel == KERNEL and point.world >= WORLDS[0]


def reached(observed: Sequence[Point]) -> str:
    """The part of a claim that points reach without deciding it: "up to 2 ranks of one host, over band"."""
    kernels = " and ".join(sorted({point.kernel for point in observed}))
    return f"{reach(observed)}, over {kernels}" if observed else ""


def lacking(
    asked: Iterable[Point], *absent: str, masks: Sequence[str], strategies: Sequence[str] = (RING, GATHER)
) -> Gaps:
    """The cells of the study's own schedules on its numbers of GPUs that the records do not have.

    Args:
        asked: points as the study has them, of any status.
        absent: names of strategies whose schedule would have to be done again first.
        strategies: those of the two here that the claim is about.
    """
    whole, documents = (
        [mask for mask in masks if ("document" in mask) == packed] for packed in (False, True)
    )
    gaps = missing(asked, H100S, study=STUDY, strategy=strategies, kernel=(KERNEL,), mask=whole, world=WORLDS)
    texts = []
    if strategies and documents and not any(point.ok and point.mask in documents for point in asked):
        texts.append(
            f"{', '.join(strategies)}; {', '.join(documents)} over {KERNEL}, which takes no parts of "
            f"packed documents here (needs that, and {H100S})"
        )
    return gaps + Gaps(tuple(texts)) + not_done_again(*absent, gpus=H100S)
