"""Compares `longca.context_parallel` with the benchmark's cells: the same plan, once behind the public face,
once as a cell is timed.

    torchrun --nproc-per-node 2 -m benchmarks.cp.public [--tokens 32K]
    python -m benchmarks.cp.public --device cpu --ranks 2 --tokens 64 --heads 4:2 --head-dim 16 --kernel naive

Both are timed in turns, so that clocks and neighbours are the same for them. The face adds its checks of
arguments and autograd's book keeping, which are work of the host: on GPUs they show only where the host does
not run ahead of the kernels.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.common.rounds import in_rounds
from benchmarks.common.text import machine
from benchmarks.cp.cells import DIRECTIONS, OWN
from benchmarks.cp.compare import cell_of
from benchmarks.cp.ranks import TIMEOUT_S, add_rank_options, median_ms, run_on_ranks
from longca.core import Registry, format_length, parse_heads, parse_length
from longca.cp import context_parallel
from longca.cp.comm.backend import Comm
from longca.kernels import Problem
from longca.lab.bench.check.inputs import DTYPES, make_inputs
from longca.lab.studies import Measure, cell_mask
from tools.table import Table, add_options

MASKS = ("full", "causal", "causal_document")
MEASURE = Measure.fixed(warmup=2, repeats=9, max_seconds=1.0)


def line(comm: Comm, options: argparse.Namespace, mask: str, strategy: str) -> dict[str, Any]:
    """Returns a record: milliseconds of a cell and of the face, by direction, and what plan both have."""
    cell = cell_of(mask, options.kernel, strategy, comm.world, options.tokens * comm.world, options)
    of_mask = cell_mask(cell)
    inputs = make_inputs(cell, comm.device)
    facts: dict[str, Any] = {"mask": mask, "strategy": strategy}
    cp = context_parallel(
        of_mask,
        None,
        strategy,
        num_q_heads=cell.num_q_heads,
        num_kv_heads=cell.num_kv_heads,
        head_dim=cell.head_dim,
        dtype=DTYPES[cell.dtype],
        kernel=options.kernel,
        device=comm.device,
        timeout=TIMEOUT_S,
    )
    problem = Problem(
        of_mask,
        cell.num_q_heads,
        cell.num_kv_heads,
        cell.head_dim,
        DTYPES[cell.dtype],
        comm.device,
        needs_backward=True,
    )
    prepared = (
        Registry("strategy").load(strategy).prepare(problem, Registry("kernel").load(options.kernel), comm)
    )
    assert torch.equal(torch.from_numpy(prepared.shard.positions_L).to(comm.device), cp.positions), (
        "another plan"
    )
    q, k, v, dout = (cp.shard(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD))
    leaves = q_leaf, k_leaf, v_leaf = tuple(x.clone().requires_grad_() for x in (q, k, v))
    forward = prepared.forward(q, k, v)
    out = cp.attention(q_leaf, k_leaf, v_leaf)
    same = [
        torch.equal(forward.out, out),
        *(
            torch.equal(*pair)
            for pair in zip(
                prepared.backward(forward, dout),
                torch.autograd.grad(out, leaves, dout, retain_graph=True),
                strict=True,
            )
        ),
    ]
    calls: dict[str, dict[str, Callable[[], object]]] = {
        "fwd": {
            "cell": lambda: prepared.forward(q, k, v),
            "face": lambda: cp.attention(q_leaf, k_leaf, v_leaf),
        },
        "bwd": {
            "cell": lambda: prepared.backward(forward, dout),
            "face": lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True),
        },
    }
    for direction, ways in calls.items():
        times = in_rounds(
            {name: partial(median_ms, comm, call, MEASURE) for name, call in ways.items()}, options.rounds
        )
        cell_ms, face_ms = (statistics.median(times[name]) for name in ways)
        facts |= {
            f"{direction}_cell_ms": cell_ms,
            f"{direction}_face_ms": face_ms,
            f"{direction}_ratio": face_ms / cell_ms,
        }
    facts |= {"same_bits": all(comm.gather(all(same))), "plan": "; ".join(prepared.notes[:2])}
    cp.close()
    return facts


def report(comm: Comm, options: argparse.Namespace) -> None:
    lines = []
    for mask, strategy in itertools.product(options.masks, options.strategies):
        lines.append(first := line(comm, options, mask, strategy))
        if comm.rank == 0:  # each takes some seconds
            print(
                mask,
                strategy,
                *(
                    f"{way} {first[f'{way}_face_ms']:.4g}/{first[f'{way}_cell_ms']:.4g} ms"
                    for way in DIRECTIONS
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
                f"{line[f'{way}_{what}']:{digits}}"
                for way in DIRECTIONS
                for what, digits in (("cell_ms", "#.3g"), ("face_ms", "#.3g"), ("ratio", ".3f"))
            ),
            "yes" if line["same_bits"] else "no",
        )
        for line in lines
    )
    means = [
        math.exp(statistics.fmean(math.log(line[f"{way}_ratio"]) for line in lines)) for way in DIRECTIONS
    ]
    worst = max(line[f"{way}_ratio"] for line in lines for way in DIRECTIONS)
    caption = (
        f"{comm.world} ranks × {format_length(options.tokens)} tokens, {options.kernel}; "
        f"{machine(comm.device)}. The face takes "
        f"{means[0]:.3f} (forward) and {means[1]:.3f} (backward) of a cell's time in the geometric mean, "
        f"{worst:.3f} at most."
    )
    columns = (
        "mask",
        "strategy",
        *(
            f"{name}, {what}"
            for name in DIRECTIONS.values()
            for what in ("cell, ms", "face, ms", "face / cell")
        ),
        "same bits",
    )
    Table("cp_public", caption, columns, rows, tuple(lines), ("mask", "strategy", "same bits")).publish(
        options
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.public", description=str(__doc__).partition("\n")[0]
    )
    add_rank_options(parser)
    parser.add_argument("--tokens", type=parse_length, default=8192, help="of each rank (8K)")
    parser.add_argument("--heads", type=parse_heads, default=(64, 8))
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kernel", default="band")
    parser.add_argument("--masks", type=lambda text: text.split(","), default=MASKS)
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=OWN)
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="of both in turns, each first in every other one; the median counts",
    )
    add_options(parser)
    run_on_ranks(report, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
