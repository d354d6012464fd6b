"""Compares the three deterministic ways to gradients, and tells what band attention's choice between them
costs.

    python -m benchmarks.band.dq_order [--seconds 90] [--write docs/results/h200/band.md]         measures on one Hopper GPU
    python -m benchmarks.band.dq_order --read reports/h200 [--write docs/results/h200/band.md]    reads the times of an earlier run
    python -m benchmarks.band.dq_order --heads 8:1,16:2,24:3                                      with the few heads of a chunk of Ulysses
    python -m benchmarks.band.dq_order --heads 16:2 --lengths 1K,1536,5K                          sequences of these lengths, shortest first
    python -m benchmarks.band.dq_order --ranks 2x32K,4x32K                                        masks of ranks alone

"Two kernels" are one for dK and dV and one for dQ. "One pass" makes all three and adds up dQ in a fixed order
(a semaphore), from the last row or from the first. Masks are those of whole sequences and those of the steps
of this project's strategies: short sequences, few queries, few keys, parts of documents. TFLOP/s are of the
mask's area: 10 · area · heads · head dim.
"""  # noqa: E501

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.band.ways import backward, forward, inputs, split_variant
from benchmarks.common.rounds import MIN_ROUNDS, in_rounds, sampler
from benchmarks.common.text import machine, percent
from benchmarks.cp.compare import BASELINE, cell_of
from longca.core import Registry, format_length, parse_heads, parse_length
from longca.cp import HeadStrategy
from longca.cp.schedule.keys_at_once import KeyRuns, has_runs
from longca.cp.schedule.planner import step_masks
from longca.kernels import Problem
from longca.lab.studies import cell_mask
from longca.masks import Mask
from longca.ops.band import AddOrder
from longca.ops.band.tables.backward_way import BackwardWay, chosen_way
from tools.table import Table, add_options, read_records, write_records

LENGTHS = (8192, 16384, 32768, 65536, 131072)
RANKS = ((2, 8192), (2, 32768), (4, 8192), (4, 32768))  # and the tokens of each
STRATEGIES = ("ring_allgather", "ring_p2p", "loongtrain", "usp")
HEADS = argparse.Namespace(heads=(64, 8), head_dim=128)
# mean queries a key: with fewer, one pass was never near; FLOPs of a call, so that it takes 0.3 s at most
LEAST = 500
MOST_FLOPS = 1e14
SAME = 0.01
TIMES = "band_dq_orders"
# column of the CSV → (variant of `benchmarks.band.ways`, how the operator names the choice). Earlier, "from
# the first row" stores no first addends.
WAYS = {
    "two kernels": ("bwd two dq", None),
    "from the last row": ("bwd from last", AddOrder.FROM_LAST),
    "from the first row": ("bwd from first s1", AddOrder.FROM_FIRST),
}
COLUMNS = (
    "mask",
    "measured",
    "from the last row over two kernels",
    "from the first row over two kernels",
    "chosen: two, last, first",
    "slower than the best, mean",
    "most",
)


@dataclass(frozen=True)
class Case:
    where: str
    mask: Mask
    num_q_heads: int
    num_kv_heads: int

    @property
    def key(self) -> tuple[str, int]:
        return self.mask.digest, self.num_q_heads

    @property
    def flops(self) -> int:
        return 10 * self.mask.area * self.num_q_heads // self.mask.num_groups * HEADS.head_dim


def cases(
    heads: Sequence[tuple[int, int]] = (), lengths: Sequence[int] = (), ranks: Sequence[tuple[int, int]] = ()
) -> list[Case]:
    """Returns each mask of the static patterns once, those of whole sequences first.

    Args:
        heads: (query heads, KV heads); with these only, and whole sequences of the given or the middle
            lengths.
        lengths: tokens of whole sequences, with which no masks of ranks are measured.
        ranks: (ranks, tokens of each), with which no whole sequences are measured. Masks of heterogeneous
            patterns come first, and a gather's rank has besides its steps the mask of all its keys at once.
    """
    by_key: dict[tuple[str, int], Case] = {}
    static = [name for name in Registry("mask").names() if Registry("mask").load(name).family != "dynamic"]
    if ranks:
        static.sort(key=lambda name: Registry("mask").load(name).family == "regular")
        chosen = itertools.chain(*(_of_ranks(name, [pair]) for pair in ranks for name in static))
    elif heads or lengths:
        chosen = itertools.chain(
            *(
                _whole(name, [length], pair)
                for pair in heads or [HEADS.heads]
                for length in lengths or LENGTHS[1:4]
                for name in static
            )
        )
    else:
        chosen = itertools.chain(
            *(_whole(name, LENGTHS, HEADS.heads) for name in static),
            *(_of_ranks(name, RANKS, at_once=False) for name in static),
        )
    for case in chosen:
        if case.mask.area >= LEAST * case.mask.seqlen_k and case.flops <= MOST_FLOPS:
            by_key.setdefault(case.key, case)
    return list(by_key.values())


def _whole(name: str, lengths: Sequence[int], heads: tuple[int, int]) -> Iterator[Case]:
    for seqlen in lengths:
        yield Case(
            f"{format_length(seqlen)} tokens",
            cell_mask(cell_of(name, "band", BASELINE, 1, seqlen, HEADS)),
            *heads,
        )


def _of_ranks(name: str, ranks: Sequence[tuple[int, int]], *, at_once: bool = True) -> Iterator[Case]:
    """The masks of the ranks' steps, and `at_once` that of all keys of a gather's rank."""
    kernel = Registry("kernel").load("band")
    num_q_heads, num_kv_heads = HEADS.heads
    for world, tokens in ranks:
        for strategy in STRATEGIES:
            mask = cell_mask(cell_of(name, "band", strategy, world, world * tokens, HEADS))
            plugin = Registry("strategy").load(strategy)
            assert isinstance(plugin, HeadStrategy), "all of these divide"
            problem = Problem(
                mask,
                num_q_heads,
                num_kv_heads,
                HEADS.head_dim,
                torch.bfloat16,
                torch.device("cpu"),
                needs_backward=True,
            )
            division = plugin.partition_work(problem, kernel, world)
            if division.heads_only:
                continue
            heads = [number // division.mesh.heads for number in HEADS.heads]
            for rank in range(division.plan.world):
                where = f"{world} × {format_length(tokens)}, {strategy}, rank {rank}"
                steps = step_masks(division.plan, rank, merging=True)
                for step, (_, _, mask) in steps.items():
                    yield Case(f"{where}, step {step}", mask, *heads)
                if at_once and has_runs(division.plan) and len(steps) > 1:
                    runs = KeyRuns.of(division.plan, rank)
                    yield Case(f"{where}, all keys", runs.mask(division.plan, rank), *heads)


def measure(known: Sequence[Case], seconds: float, others: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Measures cases until the time is over, and yields a record for each. A case whose ways disagree is
    named and left out.

    Args:
        others: further variants of `benchmarks.band.ways`. Each is a column of the records. Calls of all
            alternate.
    """
    end = time.monotonic() + seconds
    where = machine(torch.device("cuda"))
    for case in known:
        if time.monotonic() > end:
            print("time is over: the other masks are left out", flush=True)
            break
        mask = case.mask
        try:
            speeds = _tflops(case, others)
        except DisagreementError as error:
            print(f"WRONG: {error}", flush=True)
            continue
        print(
            mask.name,
            case.where,
            case.num_q_heads,
            *(f"{way} {speed:.0f}" for way, speed in speeds.items()),
            flush=True,
        )
        yield {
            "mask": mask.name,
            "where": case.where,
            "heads": case.num_q_heads,
            "digest": mask.digest,
            "seqlen_q": mask.seqlen_q,
            "seqlen_k": mask.seqlen_k,
            "kv_heads": case.num_kv_heads,
            "area": mask.area,
            **speeds,
            "machine": where,
        }


class DisagreementError(RuntimeError):
    """Two ways give different gradients."""


def _tflops(case: Case, others: Sequence[str]) -> dict[str, float]:
    q, k, v, dout = inputs(case.mask.seqlen_q, case.mask.seqlen_k, case.num_q_heads, case.num_kv_heads)
    out, lse = forward(q, k, v, case.mask)()
    variants = {way: variant for way, (variant, _) in WAYS.items()} | {variant: variant for variant in others}
    calls = {way: backward(variant, q, k, v, out, lse, dout, case.mask) for way, variant in variants.items()}
    right, *rest = (call() for call in calls.values())
    for gradients in rest:
        for first, other in zip(right, gradients, strict=True):
            if float((first.float() - other.float()).norm()) > SAME * float(first.float().norm()):
                raise DisagreementError(
                    f"{case.mask.name}, {case.where}: gradients of one pass are not those of two kernels"
                )
    times = in_rounds({way: sampler(call, q.device) for way, call in calls.items()}, MIN_ROUNDS)
    return {way: case.flops / statistics.median(times[way]) / 1e9 for way in calls}


def table(found: Sequence[dict[str, Any]], known: Sequence[Case]) -> Table:
    """Applies the present choice to measured masks. Masks that are no longer among the known ones are left
    out: plans have changed."""
    where = ", ".join(dict.fromkeys(entry["machine"] for entry in found))
    chosen = {case.key: chosen_way(case.mask, case.num_q_heads, case.num_kv_heads) for case in known}
    rows = []
    records = []
    for name in (*dict.fromkeys(entry["mask"] for entry in found), "all"):
        here = [
            (_column_of(chosen[key], entry), {way: float(entry[way]) for way in _deterministic(entry)})
            for entry in found
            if (key := (entry["digest"], int(entry["heads"]))) in chosen and name in ("all", entry["mask"])
        ]
        if here:
            two, *passes = WAYS
            lost = [max(speed.values()) / speed[way] - 1 for way, speed in here]
            ratios = {way: [speed[way] / speed[two] for _, speed in here] for way in passes}
            taken = [sum(_way_of(entry) == way for entry, _ in here) for way in WAYS]
            records.append(
                {
                    "mask": name,
                    "measured": len(here),
                    **{f"{way}, least": min(ratios[way]) for way in passes},
                    **{f"{way}, most": max(ratios[way]) for way in passes},
                    **dict(zip(WAYS, taken, strict=True)),
                    "lost_mean": statistics.mean(lost),
                    "lost_most": max(lost),
                }
            )
            rows.append(
                (
                    name,
                    str(len(here)),
                    *(f"{min(ratios[way]):.2f} to {max(ratios[way]):.2f}" for way in passes),
                    ", ".join(map(str, taken)),
                    percent(statistics.mean(lost), signed=False),
                    percent(max(lost), signed=False),
                )
            )
    heads = ", ".join(dict.fromkeys(f"{case.num_q_heads}:{case.num_kv_heads}" for case in known))
    caption = (
        f"All gradients, {heads} heads; {where}. Masks of whole sequences and of ranks' steps; for how many "
        "of them each way is chosen, and how much slower the choice is than the best way."
    )
    return Table("band_dq_order", caption, COLUMNS, tuple(rows), tuple(records), COLUMNS[:1])


def _deterministic(entry: Mapping[str, Any]) -> list[str]:
    """The columns of a record that have the times of one fixed order, or of two kernels."""
    numbers = r"bwd from (last|first s1)( [kr]\d+)+"
    return [column for column in entry if column in WAYS or (re.fullmatch(numbers, column) and entry[column])]


def _column_of(way: BackwardWay, entry: Mapping[str, Any]) -> str:
    """The column of a record with the times of a way; that of its order if other numbers of heads at once
    were not measured."""
    if way.kv_heads_at_once:
        column = f"bwd from first s1 k{way.kv_heads_at_once} r{way.rounds_at_once}"
        if entry.get(column):
            return column
    return next(column for column, (_, order) in WAYS.items() if order is way.order)


def _way_of(column: str) -> str:
    """The column of WAYS with the same order."""
    order = "from the last row" if "last" in column else "from the first row"
    return column if column in WAYS else order


def _variants(text: str) -> list[str]:
    variants = text.split(",")
    for variant in variants:
        try:
            split_variant(variant)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return variants


def _ranks(text: str) -> list[tuple[int, int]]:
    return [
        (int(world), parse_length(tokens))
        for world, _, tokens in (part.partition("x") for part in text.split(","))
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.dq_order", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--read",
        type=Path,
        metavar="FOLDER",
        help=f"of the {TIMES}.csv of an earlier run, instead of measuring",
    )
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="no further mask is begun after so long (90)"
    )
    parser.add_argument(
        "--also",
        type=_variants,
        default=[],
        metavar="VARIANTS",
        help='further ones of benchmarks.band.ways to measure, as "bwd from first k1,bwd from first h2"',
    )
    parser.add_argument(
        "--heads",
        type=lambda text: [parse_heads(entry) for entry in text.split(",")],
        default=(),
        metavar="HEADS",
        help="of whole sequences, these alone: 8:1,16:2",
    )
    parser.add_argument(
        "--lengths",
        type=lambda text: [parse_length(entry) for entry in text.split(",")],
        default=(),
        metavar="LENGTHS",
        help="of whole sequences, these alone: 1K,1536,5K",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=(),
        metavar="RANKSxTOKENS",
        help="masks of so many ranks with so many tokens each, these alone: 2x32K,4x32K",
    )
    parser.add_argument(
        "--only",
        type=re.compile,
        default=re.compile(""),
        metavar="PATTERN",
        help='of these masks and places, a regular expression: "document .*ring"',
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.read is None and not torch.cuda.is_available():
        parser.error("there is no GPU here to measure on: --read FOLDER makes the table of an earlier run")
    earlier = [] if options.read is None else read_records(options.read, TIMES)
    if options.read is not None and not earlier:
        parser.error(f"no {TIMES}.csv in {options.read}: this program makes it on a Hopper GPU")
    known = [
        case
        for case in cases(options.heads, options.lengths, options.ranks)
        if options.only.search(f"{case.mask.name} {case.where}")
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    records = list(earlier)
    for record in () if earlier else measure(known, options.seconds, options.also):
        records.append(record)
        write_records(options.out, TIMES, records)  # after each, so that an interrupt costs one case alone
    if not records:
        parser.error("no mask was measured: give it more --seconds")
    write_records(options.out, TIMES, records)
    table(records, known).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
