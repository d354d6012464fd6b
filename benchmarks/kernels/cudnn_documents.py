"""Measures how long cuDNN's calls keep the host and the GPU, for one document and for packed ones, by torch
and by graphs.

python benchmarks/kernels/cudnn_documents.py [tokens] [table.csv]
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from longca.core.plugin import Registry
from longca.core.units import format_length, parse_length
from longca.kernels.contract import Problem
from longca.masks import build_mask

REPEATS = 10
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 64, 8, 128
HEADINGS = ("kernel", "mask", "direction", "documents", "plan_ms", "call_ms", "host_ms", "gpu_ms", "tflops")
GPU = torch.device("cuda", 0)


def call_and_host_ms(call: Callable[[], object]) -> tuple[float, float]:
    """(by events around the call, until the call gave the host back), medians; the GPU idles before each."""
    calls, hosts = [], []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        start = time.perf_counter()
        call()
        hosts.append((time.perf_counter() - start) * 1e3)
        last.record()
        torch.cuda.synchronize()
        calls.append(first.elapsed_time(last))
    return statistics.median(calls), statistics.median(hosts)


def gpu_ms(call: Callable[[], object]) -> float:
    """Returns the GPU time of all kernels and copies of a call, by the profiler."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3 / REPEATS


def row(kernel_name: str, pattern: str, direction: str, seqlen: int) -> tuple[str, ...]:
    mask = build_mask(pattern, seqlen=seqlen)
    problem = Problem(
        mask, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, torch.bfloat16, GPU, needs_backward=direction == "bwd"
    )
    prepared = Registry("kernel").load(kernel_name).prepare(problem)
    q, k, v, dout = (
        prepared.to_layout(torch.randn(seqlen, num_heads, HEAD_DIM, dtype=torch.bfloat16, device=GPU))
        for num_heads in (NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS, NUM_Q_HEADS)
    )
    forward = prepared.forward(q, k, v)

    def call() -> object:
        return prepared.backward(forward, dout) if direction == "bwd" else prepared.forward(q, k, v)

    call()
    in_all, on_host = call_and_host_ms(call)
    flops = 4 * mask.area * NUM_Q_HEADS * HEAD_DIM * (2.5 if direction == "bwd" else 1)
    numbers = prepared.costs["plan_ms"], in_all, on_host, gpu_ms(call), flops / in_all / 1e9
    return (
        kernel_name,
        pattern,
        direction,
        str(mask.traits.num_segments),
        *(f"{number:.3f}" for number in numbers),
    )


def main(seqlen: int, path: Path | None) -> None:
    cases = [
        (kernel, mask, direction)
        for mask in ("causal", "causal_document")
        for direction in ("fwd", "bwd")
        for kernel in ("cudnn", "cudnn_graph")
        if (kernel, mask, direction) != ("cudnn", "causal_document", "bwd")
    ]
    rows = [row(*case, seqlen) for case in cases]
    if path is not None:
        path.write_text("\n".join(",".join(cells) for cells in (HEADINGS, *rows)) + "\n")
    table = Table(
        title=f"{format_length(seqlen)} tokens, {NUM_Q_HEADS}:{NUM_KV_HEADS} heads, D {HEAD_DIM}, bf16"
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:3] else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    Console(width=max(Console().width, 110)).print(table)


if __name__ == "__main__":
    main(
        parse_length(sys.argv[1]) if len(sys.argv) > 1 else parse_length("8K"),
        Path(sys.argv[2]) if len(sys.argv) > 2 else None,
    )
