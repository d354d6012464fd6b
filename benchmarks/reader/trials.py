"""`python -m benchmarks.reader.trials`: four readers' questions, the commands that answer them with their
seconds, and whether `longca choose` and `longca advise` give an engineer the same answer.

tests/lab/ranking/test_same_answers.py holds the answers of pages, claims and `choose` together. Advice
predicts calls without rests, so that it may name another method than records with rests do. The last lines
say how often, and what it would cost by these records.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longca.lab.advice import Advice, advise
from longca.lab.report.choose import CallRanking
from longca.lab.report.decide import choose

ROOT = Path(__file__).resolve().parents[2]
MASKS = (
    "full",
    "causal",
    "full_document",
    "causal_document",
    "sliding_window",
    "causal_sliding_window",
    "shared_question",
    "causal_blockwise",
    "prefix_lm",
    "prefix_lm_document",
    "global_sliding_window",
    "block_causal_document",
)
GPUS = ("h100", "h200")


@dataclass(frozen=True)
class Trial:
    """A question of a reader, and the commands that answer it, in their order."""

    reader: str
    question: str
    commands: tuple[tuple[str, ...], ...]


TRIALS = (
    Trial("evaluator", "Does claim 4 hold, and by which records?", (("claims",), ("claims", "4"))),
    Trial(
        "kernel author",
        "Is my kernel right and fast?",
        (("list", "kernels"), ("new", "kernel", "--help"), ("bench", "--help")),
    ),
    Trial(
        "engineer",
        "Which kernel for packed documents of 32K tokens on an H100, and which strategy on 64?",
        (
            ("choose", "causal_document", "--gpu", "h100"),
            ("advise", "-m", "causal_document", "--gpu", "h100"),
            ("advise", "-m", "causal_document", "-s", "512K", "-w", "64", "-k", "band", "-d", "fwd"),
        ),
    ),
    Trial(
        "reader of reports",
        "How do two GPUs differ?",
        (("compare", "reports/h100/h100-cp.parquet", "reports/h200/h200-cp.parquet"),),
    ),
)


@dataclass(frozen=True)
class Pair:
    """The answers of records and of a prediction to one question."""

    gpu: str
    mask: str
    direction: str
    leaders: tuple[str, ...]
    """by records: the fastest, and those not told apart from it"""
    advised: str
    tied: tuple[str, ...]
    """by the prediction: the first, and those not told apart from it"""
    share: float
    """of the fastest by records, what the advised one reaches there; NaN if it was not measured"""

    @property
    def is_same(self) -> bool:
        """The prediction names a leader of the records first."""
        return self.advised in self.leaders

    @property
    def is_near(self) -> bool:
        """One of the leaders of the records is in front by prediction, alone or in a tie."""
        return not set(self.leaders).isdisjoint(self.tied)


def pairs(
    masks: Sequence[str] = MASKS, gpus: Sequence[str] = GPUS, seqlen: str = "32K", draws: int = 3
) -> Iterable[Pair]:
    """Asks both for each mask, GPU and direction."""
    for gpu in gpus:
        for mask in masks:
            for ranking in choose(mask, seqlen=seqlen, gpu=gpu).rankings:
                of_drawn = draws if ranking.is_drawn else None
                advice = advise(mask, seqlen=seqlen, gpu=gpu, direction=ranking.direction, draws=of_drawn)
                yield _pair(gpu, ranking, advice)


def _pair(gpu: str, ranking: CallRanking, advice: Advice) -> Pair:
    shares = {method: placed.share for method, placed in ranking.methods}
    leaders = [method for method, placed in ranking.methods if placed.tied or placed.place == 1]
    advised = advice.best.candidate.title
    tied = [option.candidate.title for option in advice.options if option.tied or option is advice.best]
    return Pair(
        gpu,
        ranking.mask,
        ranking.direction,
        tuple(leaders),
        advised,
        tuple(tied),
        shares.get(advised, float("nan")),
    )


def seconds_of(command: Sequence[str]) -> tuple[float, float, int]:
    """(wall seconds, processor seconds, exit code) of one command of longca."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "longca", *command],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used, done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3, help="draws of each prediction")
    options = parser.parse_args()
    for trial in TRIALS:
        print(f"{trial.reader}: {trial.question}")
        for command in trial.commands:
            wall, used, code = seconds_of(command)
            print(f"  {wall:6.1f} s, {used:5.1f} s of processors, exit {code}: longca {' '.join(command)}")
    asked = list(pairs(draws=options.draws))
    print(f"\n{len(asked)} questions of an engineer at 32K tokens, by records and by prediction")
    for gpu in GPUS:
        of_gpu = [pair for pair in asked if pair.gpu == gpu]
        known = [pair for pair in of_gpu if not math.isnan(pair.share)]
        worst = min(known, key=lambda pair: pair.share)
        print(
            f"{gpu}: the advised kernel leads by records in {sum(pair.is_same for pair in known)} of "
            f"{len(known)}, one of the predicted tie does in {sum(pair.is_near for pair in known)}; at its "
            f"worst advice reaches {100 * worst.share:.1f} % of the fastest ({worst.advised}, {worst.mask} "
            f"{worst.direction}, where {worst.leaders[0]} is); in {len(of_gpu) - len(known)} more, records "
            f"do not have the advised kernel"
        )


if __name__ == "__main__":
    main()
