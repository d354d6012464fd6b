"""Compares `reduction="fixed"` with "fast": milliseconds of both, and digests of the bits.

    python -m benchmarks.cp.reduction --ranks 1                                      # the digests to expect
    torchrun --nproc-per-node 2 -m benchmarks.cp.reduction
    torchrun --nproc-per-node 4 -m benchmarks.cp.reduction
    python -m benchmarks.cp.reduction --device cpu --ranks 2 --tokens 64 --heads 4:2 --head-dim 16

The whole sequence is the same for any number of ranks, so the digests of "fixed" must be the same in every
run and row of a mask. Both are timed in turns. Each rank makes the inputs of its own tokens on its device and
sums the digest of its own results there.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.common.rounds import in_rounds
from benchmarks.common.text import machine
from benchmarks.cp.cells import DIRECTIONS, OWN
from benchmarks.cp.ranks import TIMEOUT_S, add_rank_options, median_ms, run_on_ranks
from longca.core import format_length, parse_heads, parse_length
from longca.cp import ContextParallel, context_parallel
from longca.cp.comm.backend import Comm
from longca.lab.studies import Measure
from longca.masks import build_mask
from tools.table import Table, add_options

MASKS = ("full", "causal", "causal_document", "causal_sliding_window", "shared_question")
REDUCTIONS = ("fast", "fixed")
MEASURE = Measure.fixed(warmup=2, repeats=9, max_seconds=1.0)


MAX_NUMBERS = 1 << 24  # hashed at a time: some hundred MiB of int64


def hashed(numbers: torch.Tensor) -> torch.Tensor:
    """Returns 64 bits for each int64 that look drawn, by the finalizer of SplitMix64: the same on every
    device."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers ^ (numbers >> 31 & (1 << 33) - 1)


def chunks_of(positions: torch.Tensor, row: int, tensor: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yields a slice of the rows at these positions, and a hash of the place of each of their elements in the
    whole tensor, rows × `row`."""
    step = max(1, MAX_NUMBERS // row)
    columns = torch.arange(row, device=positions.device)
    for first in range(0, len(positions), step):
        rows = slice(first, first + step)
        places = positions[rows, None] * row + columns
        yield rows, hashed((places * 8 + tensor + 1) * -0x61C8864680B583EB)


def inputs_at(positions: torch.Tensor, options: argparse.Namespace, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns q, k, v and dout of the tokens at these positions, (L,): nearly normal, of variance 1, and the
    same for each token whichever rank makes it."""
    num_q_heads, num_kv_heads = options.heads
    inputs = []
    for tensor, heads in enumerate((num_q_heads, num_kv_heads, num_kv_heads, num_q_heads)):
        row = heads * options.head_dim
        x = torch.empty(len(positions), row, dtype=dtype, device=positions.device)
        for rows, bits in chunks_of(positions, row, tensor):
            total = sum((bits >> shift & 0xFFFF for shift in (0, 16, 32, 48)), torch.zeros_like(bits))
            x[rows] = (total - 2 * 0xFFFF) * (3**0.5 / 0x10000)
        inputs.append(x.view(-1, heads, options.head_dim))
    return inputs


def digest(comm: Comm, tensors: Sequence[torch.Tensor], positions: torch.Tensor) -> str:
    """Returns 16 digits: others wherever a single element differs, and nearly always where more do, but the
    same for any sharding of the tokens. A collective call.

    The bits of each element are an integer. It is multiplied by an odd number that its place in the whole
    tensor determines, and all are added modulo 2^64.

    Args:
        tensors: this rank's rows, L × heads × head dim.
        positions: of these rows in the whole sequence, (L,).
    """
    total = 0
    for tensor, x in enumerate(tensors):
        flat = x.detach().flatten(1)
        integers = flat.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])
        for rows, bits in chunks_of(positions, flat.shape[1], tensor):
            total += int((integers[rows] * (bits | 1)).sum())
    return f"{sum(comm.gather(total)) % (1 << 64):016x}"


def line(comm: Comm, options: argparse.Namespace, mask: str, strategy: str) -> dict[str, Any]:
    """Returns a record: milliseconds by direction and reduction, and a digest of all bits by reduction."""
    facts: dict[str, Any] = {"mask": mask, "strategy": strategy}
    calls: dict[str, dict[str, Callable[[], object]]] = {way: {} for way in DIRECTIONS}
    contexts: list[ContextParallel] = []
    for reduction in REDUCTIONS:
        cp = context_parallel(
            build_mask(mask, seqlen=options.tokens),
            None,
            strategy,
            num_q_heads=options.heads[0],
            num_kv_heads=options.heads[1],
            head_dim=options.head_dim,
            device=comm.device,
            timeout=TIMEOUT_S,
            reduction=reduction,
        )
        contexts.append(cp)
        dtype = torch.bfloat16 if comm.device.type == "cuda" else torch.float32
        q, k, v, dout = inputs_at(cp.positions, options, dtype)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = cp.attention(q, k, v)
        grads = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        facts[f"{reduction}_bits"] = digest(comm, (out, *grads), cp.positions)
        calls["fwd"][reduction] = partial(cp.attention, q, k, v)
        calls["bwd"][reduction] = partial(torch.autograd.grad, out, leaves, dout, retain_graph=True)
    for direction, ways in calls.items():
        times = in_rounds(
            {name: partial(median_ms, comm, call, MEASURE) for name, call in ways.items()}, options.rounds
        )
        fast_ms, fixed_ms = (statistics.median(times[name]) for name in REDUCTIONS)
        facts |= {
            f"{direction}_fast_ms": fast_ms,
            f"{direction}_fixed_ms": fixed_ms,
            f"{direction}_ratio": fixed_ms / fast_ms,
        }
    for cp in contexts:
        cp.close()
    return facts


def report(comm: Comm, options: argparse.Namespace) -> None:
    lines = []
    for mask, strategy in itertools.product(options.masks, options.strategies):
        lines.append(line(comm, options, mask, strategy))
        if comm.rank == 0:  # each takes some seconds
            print(
                *(
                    f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in lines[-1].items()
                ),
                flush=True,
            )
    if comm.rank:
        return
    rows = tuple(
        (
            line["mask"],
            line["strategy"],
            *(
                f"{line[f'{way}_{name}']:{digits}}"
                for way in DIRECTIONS
                for name, digits in (("fast_ms", "#.3g"), ("fixed_ms", "#.3g"), ("ratio", ".3f"))
            ),
            line["fixed_bits"],
        )
        for line in lines
    )
    of_masks = {
        mask: {line["fixed_bits"] for line in lines if line["mask"] == mask} for mask in options.masks
    }
    agreed = sum(len(bits) == 1 for bits in of_masks.values())
    caption = (
        f"{comm.world} ranks, {format_length(options.tokens)} tokens in all; {machine(comm.device)}. Under "
        f"{agreed} of {len(of_masks)} masks all strategies give the same bits in a fixed order."
    )
    times = (
        f"{name}, {what}"
        for name in DIRECTIONS.values()
        for what in ("fast, ms", "fixed, ms", "fixed / fast")
    )
    columns = ("mask", "strategy", *times, "bits in a fixed order")
    Table("cp_reduction", caption, columns, rows, tuple(lines), ("mask", "strategy", columns[-1])).publish(
        options
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.reduction", description=str(__doc__).partition("\n")[0]
    )
    add_rank_options(parser)
    parser.add_argument("--tokens", type=parse_length, default=32768, help="of the whole sequence (32K)")
    parser.add_argument("--heads", type=parse_heads, default=(64, 8))
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--masks", type=lambda text: text.split(","), default=MASKS)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=OWN)
    parser.add_argument("--rounds", type=int, default=4, help="of both in turns; the median counts")
    add_options(parser)
    run_on_ranks(report, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
