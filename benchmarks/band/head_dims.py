"""Compares tile sizes of band attention's Hopper kernels for head dim 64 with its portable kernels and with
other kernels: same tensors, one process, alternating calls.

    python -m benchmarks.band.head_dims [--lengths 8K,32K] [--masks full,causal] [--max-seconds 450] [--check]

It prints a table for each direction, and writes no file. Each variant of band attention is first compared
with float64, and one with a fixed order of additions must give the same bits in four runs.
docs/design/band-head-dims.md has the numbers that were predicted. Exit code 1: a variant was wrong.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any
from unittest import mock

import torch

from benchmarks.band.compare import Case, ceiling, fill_caches, measured, ready
from benchmarks.band.tables import OURS, Record
from benchmarks.common.text import machine, names
from longca.core import Direction, Registry, format_length, parse_heads, parse_length
from longca.kernels import Prepared
from longca.masks import Mask
from longca.ops.band import AddOrder
from longca.ops.band import plan as band_plan
from longca.ops.band.config import PORTABLE_TILES, SM90_TILES, BandKernel, TileConfig

HEAD_DIM = 64
MASKS = ("full", "causal", "causal_document", "causal_sliding_window", "full_document", "sliding_window")
RIVALS = ("cudnn_flex", "fa4", "torch_flash", "sdpa")
PORTABLE = "portable"
HOPPER = SM90_TILES[HEAD_DIM]

Tiles = dict[BandKernel, TileConfig]


def one_pass(order: AddOrder) -> Tiles:
    return {BandKernel.DKDV: replace(HOPPER.fused, in_order=order, stores_first=order is AddOrder.FROM_FIRST)}


# name → the tiles that differ from the portable ones
VARIANTS: Mapping[Direction, Mapping[str, Tiles]] = {
    "fwd": {
        PORTABLE: {},
        "128 rows, 3 stages": {BandKernel.FORWARD: HOPPER.forward},
        "128 rows, 2 stages": {BandKernel.FORWARD: replace(HOPPER.forward, num_stages=2)},
        "192 rows, 2 stages": {BandKernel.FORWARD: replace(HOPPER.forward, block_m=192, num_stages=2)},
        "192 rows, 3 stages": {BandKernel.FORWARD: replace(HOPPER.forward, block_m=192)},
    },
    "bwd": {
        PORTABLE: {},
        "two kernels, 128 keys": {BandKernel.DKDV: HOPPER.dkdv, BandKernel.DQ: HOPPER.dq},
        "two kernels, 64 keys": {BandKernel.DKDV: HOPPER.dkdv, BandKernel.DQ: replace(HOPPER.dq, block_n=64)},
        "from the first row": one_pass(AddOrder.FROM_FIRST),
        "from the last row": one_pass(AddOrder.FROM_LAST),
        "any order": one_pass(AddOrder.ANY),
    },
}


def tiles_of(variant: str, direction: Direction) -> Tiles:
    """The tiles of all kernels of a variant. Backward variants have the chosen Hopper kernel forward."""
    changed = VARIANTS[direction][variant]
    tiles = PORTABLE_TILES[HEAD_DIM] | changed
    if direction == "bwd" and variant != PORTABLE:
        tiles[BandKernel.FORWARD] = HOPPER.forward
    if tiles[BandKernel.DKDV].fused:
        del tiles[BandKernel.DQ]
    return tiles


def prepare(name: str, case: Case, mask: Mask, device: torch.device) -> Prepared:
    """Prepares a variant or a rival.

    Raises:
        ValueError: the rival refuses the case, or the variant's gradients differ between two runs.
    """
    if name not in VARIANTS[case.direction]:
        return ready(name, case, mask, device)
    tiles = tiles_of(name, case.direction)
    with mock.patch.object(band_plan, "choose_tiles", lambda *_, **__: tiles):
        prepared = ready(OURS, case, mask, device)
    if case.direction == "bwd" and tiles[BandKernel.DKDV].in_order:
        check_bits(prepared, case, mask, device)
    return prepared


def check_bits(prepared: Prepared, case: Case, mask: Mask, device: torch.device, runs: int = 4) -> None:
    generator = torch.Generator(device).manual_seed(1)

    def random(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(
            tokens, heads, case.head_dim, generator=generator, device=device, dtype=torch.bfloat16
        )

    q, dout = (random(mask.seqlen_q, case.heads[0]) for _ in range(2))
    k, v = (random(mask.seqlen_k, case.heads[1]) for _ in range(2))
    forward = prepared.forward(q, k, v)
    first, *others = (prepared.backward(forward, dout) for _ in range(runs))
    if not all(torch.equal(a, b) for grads in others for a, b in zip(first, grads, strict=True)):
        raise ValueError(f"its gradients differ among {runs} runs")


def table(records: Sequence[Record], direction: Direction) -> str:
    """TFLOP/s: a row for each length and mask, a column for each kernel, the ratio of the best variant to the
    best rival, and the geometric mean of each kernel over the cases that all variants ran."""
    columns = [*VARIANTS[direction], *RIVALS]
    cases = list(dict.fromkeys(record.case for record in records if record.direction == direction))
    rates = {(record.case, record.kernel): record.tflops for record in records}
    lines = [f"{direction:42s} {' | '.join(columns)} | best variant over best rival"]
    for case in cases:
        own = [rates.get((case, name)) or 0.0 for name in VARIANTS[direction]]
        best = max((rates.get((case, name)) or 0.0 for name in RIVALS), default=0.0)
        cells = [f"{rates.get((case, name)) or 0:.0f}".rjust(len(name)) for name in columns]
        share = f"{max(own) / best:.2f}" if best else "–"
        lines.append(f"{format_length(case[0])} {case[1]}".ljust(42) + f" {' | '.join(cells)} | {share}")
    whole = [case for case in cases if all(rates.get((case, name)) for name in VARIANTS[direction])]
    means = []
    for name in columns:
        some = [rate for case in whole if (rate := rates.get((case, name)))]
        mean = f"{geometric_mean(some):.0f}" if some and len(some) == len(whole) else ""
        means.append(mean.rjust(len(name)))
    lines.append("geometric mean".ljust(42) + f" {' | '.join(means)} |")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    masks = Registry("mask").names()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.head_dims", description=str(__doc__).partition("\n\n")[0]
    )
    parser.add_argument(
        "--lengths",
        type=lambda text: [parse_length(part) for part in text.split(",")],
        default=[8192, 32768],
        help="8K,32K",
    )
    parser.add_argument(
        "--masks", type=lambda text: names(text, masks), default=list(MASKS), help=",".join(MASKS)
    )
    parser.add_argument("--heads", type=parse_heads, default=(64, 8), help="64:8")
    parser.add_argument(
        "--warm-seconds", type=float, default=90.0, help="for compiling beforehand (90); 0: no"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=440.0, help="begin no case after this long (440)"
    )
    parser.add_argument("--check", action="store_true", help="band attention alone, without rivals")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], measure: Callable[..., list[Record]] = measured) -> int:
    options = parse(arguments)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    start = time.monotonic()
    rivals = () if options.check else RIVALS
    todo = [
        Case(mask, seqlen, options.heads, direction, (*VARIANTS[direction], *rivals), head_dim=HEAD_DIM)
        for mask in options.masks
        for seqlen in options.lengths
        for direction in VARIANTS
    ]
    fill_caches([replace(case, kernels=rivals) for case in todo], options.warm_seconds, device)
    print(machine(device) + ceiling(device), flush=True)
    records: list[Record] = []
    wrong = 0
    for case in todo:
        if time.monotonic() - start > options.max_seconds:
            print(f"not begun: {case.title} and what follows it", flush=True)
            break
        own: dict[str, Any] = {"prepare": prepare, "exact": VARIANTS[case.direction]}
        new = measure(case, device, **own)
        wrong += sum(record.tflops is None for record in new if record.kernel in VARIANTS[case.direction])
        records += new
        seconds = time.monotonic() - start
        print(f"{seconds:5.0f} s  {case.title}: ", ", ".join(record.text for record in new), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for direction in VARIANTS:
        print("\n" + table(records, direction))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
