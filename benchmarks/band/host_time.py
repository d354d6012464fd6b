"""Measures the host's time of band attention's calls with a plan: how long Python, torch and Triton take
until all kernels are started.

    python -m benchmarks.band.host_time [--calls 200] [--profile] [--write docs/results/h200/band.md]

Sequences are short, so that kernels end before the next one starts, and the host is never held up: its time
does not depend on the length.
On a machine without a GPU, a stand-in takes the driver's place; the caption then says what is left out.
`--profile` shows in which functions the time of one case goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.text import machine
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.ops.band import (
    AddOrder,
    BandPlan,
    band_attention,
    band_backward,
    band_forward,
    plan_band_attention,
)
from longca.ops.band.config import PORTABLE_TILES, choose_tiles
from tools.table import Table, add_options

COLUMNS = ("kernels", "call", "µs", "least", "kernels started", "TMA descriptors", "torch operations")
SEQLEN = 16
HEADS = (64, 8)
HEAD_DIM = 128
BURST = 20
BUILD = Path("results/measuring/driver_stand_in")


def plans(device: torch.device) -> dict[str, BandPlan]:
    """The ways of a call: by one backward kernel or two, with row tiles that were split, and by the portable
    kernels."""

    def plan(mask: Mask, **how: Any) -> BandPlan:
        return plan_band_attention(
            mask, num_q_heads=HEADS[0], num_kv_heads=HEADS[1], head_dim=HEAD_DIM, device=device, **how
        )

    causal = build_mask("causal", seqlen=SEQLEN)
    # a few rows see everything, all others little: the first are split
    uneven = Mask(256, 8192, (as_bands([(0, 16, 0, 8192, -INF, INF), (16, 256, 0, 64, -INF, INF)]),))
    one_pass = choose_tiles(HEAD_DIM, (9, 0), dq_order=AddOrder.FROM_LAST)
    return {
        "two backward kernels": plan(causal),
        "one, in order": plan(causal, tiles=one_pass),
        "split row tiles": plan(uneven),
        "portable": plan(causal, tiles=dict(PORTABLE_TILES[HEAD_DIM])),
    }


def calls(plan: BandPlan, device: torch.device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each call by name."""
    heads, kv_heads = HEADS
    how = {"device": device, "dtype": torch.bfloat16}
    q, k, v = (
        torch.zeros(tokens, count, HEAD_DIM, **how)
        for tokens, count in ((plan.seqlen_q, heads), (plan.seqlen_k, kv_heads), (plan.seqlen_k, kv_heads))
    )
    leaf_q, leaf_k, leaf_v = leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    dout = torch.zeros_like(q)
    out, lse = band_forward(q, k, v, plan)
    yield "forward", lambda: band_attention(q, k, v, plan)
    yield "forward, with autograd", lambda: band_attention(leaf_q, leaf_k, leaf_v, plan)
    graph = band_attention(leaf_q, leaf_k, leaf_v, plan)
    assert isinstance(graph, torch.Tensor)
    yield "backward, by autograd", lambda: torch.autograd.grad(graph, leaves, dout, retain_graph=True)
    yield "band_forward", lambda: band_forward(q, k, v, plan)
    yield "band_backward", lambda: band_backward(q, k, v, out, lse, dout, plan)


class _Nothing(torch.autograd.Function):
    """An operator that starts nothing: what is left is autograd's own time, with the thread that it wakes on
    a GPU."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return inputs[0].view_as(inputs[0])

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return ctx.saved_tensors


def cases(device: torch.device) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(kernels, call, the call itself), one after the other."""
    for kernels, plan in plans(device).items():
        for name, call in calls(plan, device):
            yield kernels, name, call
    yield "none", "backward, by autograd", autograd_alone(device)


def autograd_alone(device: torch.device) -> Callable[[], Any]:
    """A backward call by autograd of an operator with three inputs that does nothing."""
    leaves = [
        torch.zeros(SEQLEN, heads, HEAD_DIM, device=device, dtype=torch.bfloat16, requires_grad=True)
        for heads in (*HEADS, HEADS[1])
    ]
    out = _Nothing.apply(*leaves)
    dout = torch.zeros_like(out)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def operations(call: Callable[[], Any]) -> int:
    """Torch operations of a call, less those inside others. On a GPU each takes memory from the allocator or
    starts a kernel of torch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return sum(
        event.name.startswith("aten::")
        and (event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::"))
        for event in profiler.events() or []
    )


def microseconds(call: Callable[[], Any], number: int, device: torch.device) -> list[float]:
    """The host's time of a call, in bursts that fit into the GPU's queue."""
    times = []
    for _ in range(number // BURST):
        _wait(device)
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter() - start) / BURST * 1e6)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(
    kernels: str, name: str, call: Callable[[], Any], number: int, device: torch.device, stand_in: Any
) -> dict[str, Any]:
    call()  # compiles
    call()
    before = (stand_in.launches, stand_in.descriptors) if stand_in else (0, 0)
    call()
    after = (stand_in.launches, stand_in.descriptors) if stand_in else (0, 0)
    times = microseconds(call, number, device)
    started, descriptors = (now - then if stand_in else "" for now, then in zip(after, before, strict=True))
    return {
        "kernels": kernels,
        "call": name,
        "us": statistics.median(times),
        "least_us": min(times),
        "started": started,
        "descriptors": descriptors,
        "operations": operations(call),
    }


def table(records: Sequence[dict[str, Any]], caption: str) -> Table:
    rows = [
        (
            line["kernels"],
            line["call"],
            f"{line['us']:.0f}",
            f"{line['least_us']:.0f}",
            str(line["started"]),
            str(line["descriptors"]),
            str(line["operations"]),
        )
        for line in records
    ]
    return Table("band_host_time", caption, COLUMNS, tuple(rows), tuple(records), ("kernels", "call"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.host_time", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind (400)")
    parser.add_argument("--only", default="", help="cases whose name begins so, KERNELS or KERNELS/CALL")
    parser.add_argument("--profile", action="store_true", help="show in which functions the time goes")
    add_options(parser)
    options = parser.parse_args(arguments)
    device = torch.device("cuda", 0)
    stand_in = None
    left_out = ""
    if not torch.cuda.is_available():
        from benchmarks.band.driver_stand_in import LEFT_OUT, StandIn

        device = torch.device("cpu")
        stand_in = StandIn(BUILD)
        left_out = f" Without a GPU; left out: {LEFT_OUT}."
    torch.set_num_threads(1)
    records = []
    for kernels, name, call in cases(device):
        if f"{kernels}/{name}".startswith(options.only):
            records.append(measured(kernels, name, call, options.calls, device, stand_in))
            if options.profile:
                profile(call)
    caption = (
        f"{machine(device)}.{left_out} 64:8 heads, head dim 128; median and least of "
        f"{options.calls // BURST} bursts."
    )
    table(records, caption).publish(options)
    return 0


def profile(call: Callable[[], Any], number: int = 500) -> None:
    with cProfile.Profile() as profiler:
        for _ in range(number):
            call()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
