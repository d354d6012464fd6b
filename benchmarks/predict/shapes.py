"""Compares predicted curves over 8 to 64 H100s with published ones: nothing is fitted to them, and the
network is assumed.

    python -m benchmarks.predict.shapes [--write docs/results/h100/prediction.md]

Published are rates of the same five schemes over FA3. The ring and the all-gather of that source pad
documents and know no mask, so they are predicted by the two strategies in the style of the study. A level is
predicted over published; a shape is what is left of the rate at 64 GPUs of that at 8; an order is right where
the quicker of two strategies that differ by a tenth or more is predicted to be quicker.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longca.lab.advice.option import candidate_of, predict
from longca.lab.advice.question import question_of
from longca.lab.published import PublishedRate, load_published
from longca.masks import build_mask
from tools.table import Table, add_options

SEEDS = tuple(range(8))  # draws of documents; the source has taken the mean over some, too
SOURCE = "magiattention_h100"
PROFILE = "h100-ib400"
CORPUS = "prolong64k"
TAKEN = {
    "ulysses": "ulysses",
    "ring_p2p": "paper_style_ring",
    "ring_allgather": "paper_style_allgather",
    "usp": "usp",
    "loongtrain": "loongtrain",
}
# the source's, and where a strategy cannot cut a mask for it, one that takes all masks
KERNELS = "fa3", "band"
CLEAR = 1.1  # times: published rates of two strategies that differ by less are no order


@dataclass(frozen=True)
class PublishedPoint:
    """A published rate and the predicted one."""

    rate: PublishedRate
    kernel: str
    tflops: float


def points() -> list[PublishedPoint]:
    """All published rates of the five schemes with what is predicted of them."""
    rates = [
        rate
        for rate in load_published()
        if rate.source == SOURCE and rate.strategy in TAKEN and rate.world and rate.seqlen
    ]
    published = []
    for (mask_name, world, seqlen, direction), group in itertools.groupby(
        sorted(rates, key=_setting), key=_setting
    ):
        corpus = CORPUS if mask_name.endswith("document") else None
        draws = []
        for seed in SEEDS if corpus else SEEDS[:1]:
            mask = build_mask(mask_name, seqlen=seqlen, corpus=corpus, seed=seed)
            question = question_of(
                mask, gpus=world, num_q_heads=64, num_kv_heads=8, profile=PROFILE, direction=direction
            )
            draws.append((question, dict[Any, Any]()))
        for rate in group:
            for kernel in KERNELS:
                ways = [
                    candidate_of(question, TAKEN[str(rate.strategy)], kernel, shared)
                    for question, shared in draws
                ]
                if not any(isinstance(way, str) for way in ways):
                    work = sum(question.flops(direction) for question, _ in draws) / world / 1e12
                    seconds = sum(
                        predict(way, question).seconds
                        for way, (question, _) in zip(ways, draws, strict=True)
                        if not isinstance(way, str)
                    )
                    published.append(PublishedPoint(rate, kernel, work / seconds))
                    break
    return published


def _setting(rate: PublishedRate) -> tuple[str, int, int, str]:
    return rate.mask, rate.world or 0, rate.seqlen or 0, rate.direction


def table(points: Sequence[PublishedPoint]) -> Table:
    """Level and shape of each curve."""
    rows = []
    records = []
    curves: dict[tuple[str, str, str], list[PublishedPoint]] = {}
    for point in points:
        curves.setdefault((point.rate.mask, point.rate.direction, str(point.rate.strategy)), []).append(point)
    for (mask, direction, strategy), curve in curves.items():
        curve.sort(key=lambda entry: entry.rate.world or 0)
        first = curve[0]
        last = curve[-1]
        level = float(
            np.exp(np.mean([np.log(point.tflops / point.rate.tflops_per_device) for point in curve]))
        )
        published = last.rate.tflops_per_device / first.rate.tflops_per_device
        predicted = last.tflops / first.tflops
        records.append(
            {
                "mask": mask,
                "direction": direction,
                "strategy": strategy,
                "level": level,
                "published_shape": published,
                "predicted_shape": predicted,
            }
        )
        rows.append(
            (
                mask,
                direction,
                strategy,
                first.kernel,
                " ".join(f"{point.rate.tflops_per_device:.0f}" for point in curve),
                " ".join(f"{point.tflops:.0f}" for point in curve),
                f"{level:.2f}",
                f"{published:.2f}",
                f"{predicted:.2f}",
            )
        )
    right, clear = order(points)
    close = sum(
        abs(np.log(record["predicted_shape"] / record["published_shape"])) < np.log(1.25)
        for record in records
    )
    caption = (
        "Published and predicted TFLOP/s a GPU on 8, 16, 32 and 64 H100s. Of two strategies that differ by "
        f"a tenth or more, the quicker is predicted to be quicker in {right} of {clear} cases; the share of "
        f"the rate at 8 GPUs that is left at 64 agrees within a quarter in {close} of {len(records)} curves."
    )
    columns = (
        "mask",
        "",
        "strategy",
        "kernel",
        "published",
        "predicted",
        "level",
        "left, published",
        "left, predicted",
    )
    return Table("predict_shapes", caption, columns, tuple(rows), tuple(records), columns[:6])


def order(points: Sequence[PublishedPoint]) -> tuple[int, int]:
    """(pairs of strategies that are in the published order, pairs that are clearly apart)."""
    settings: dict[tuple[str, int, int, str], list[PublishedPoint]] = {}
    for first in points:
        settings.setdefault(_setting(first.rate), []).append(first)
    right = clear = 0
    for here in settings.values():
        for first, other in itertools.combinations(here, 2):
            slow, quick = sorted((first, other), key=lambda point: point.rate.tflops_per_device)
            if quick.rate.tflops_per_device >= CLEAR * slow.rate.tflops_per_device:
                clear += 1
                right += quick.tflops > slow.tflops
    return right, clear


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.shapes", description=str(__doc__).partition("\n")[0]
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    table(points()).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
