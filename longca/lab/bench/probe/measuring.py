"""The measurements of a probe on its ranks: messages within a node and between nodes, their cost to a matrix
product, kernels, launches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from longca.core import Registry, boot_id
from longca.cp.comm.backend import Comm
from longca.kernels import Problem
from longca.lab.bench.measure.others import others, watch
from longca.lab.bench.measure.timer import time_calls
from longca.lab.bench.probe.profile import ProbeResult, TimedKernel, TimedMessage
from longca.lab.studies import Measure
from longca.masks import build_mask
from longca.predict.fitted import load_fitted

if TYPE_CHECKING:
    from longca.kernels import Kernel

SIZES = {
    "cuda": (1 << 18, 1 << 22, 1 << 25, 1 << 27),
    "cpu": (1 << 14, 1 << 18, 1 << 22),
}  # bytes of a message
OVERLAPPED = 2  # largest sizes that are timed beside a matrix product, too
MATMUL = {"cuda": 8192, "cpu": 256}
BUFFER = "probe"
KERNELS = ("band", "fa3", "fa4")
CALLS = (("causal", 16384), ("full", 8192), ("causal_document", 32768))
HEADS = (64, 8)
HEAD_DIM = 128
LAUNCHES = 1000
SHARE_OF_KERNELS = 0.5  # of the time of a probe, where there are messages, too


def probe(comm: Comm, seconds: float) -> ProbeResult:
    """Measures for about so many seconds. All ranks call it together."""
    with watch(comm.device) as uses:
        start_s = time.monotonic()
        messages = _messages(comm, seconds * (1 - SHARE_OF_KERNELS)) if comm.world > 1 else ({}, {}, [])
        left = max(seconds - (time.monotonic() - start_s), seconds * 0.2)
        kernels, notes = (
            _kernels(comm, left)
            if comm.device.type == "cuda"
            else ([], ["kernels: none that has records runs on a CPU"])
        )
    seen = others(comm.gather(dict(uses)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = torch.cuda.get_device_name(comm.device) if comm.device.type == "cuda" else "cpu"
    intra, inter, notes_of_messages = messages
    return ProbeResult(
        comm.world,
        _ranks_per_node(comm),
        name,
        intra,
        inter,
        kernels,
        _launch_us(comm),
        seen.disturbance(comm.device.type == "cuda", cores) or "",
        [*notes_of_messages, *notes],
    )


def _ranks_per_node(comm: Comm) -> int:
    nodes = comm.gather(boot_id())
    return max(nodes.count(node) for node in nodes)


Timed = dict[str, list[TimedMessage]]


def _messages(comm: Comm, seconds: float) -> tuple[Timed, Timed, list[str]]:
    """(messages within a node, between nodes, what could not be measured), by the way that they go."""
    per_node = _ranks_per_node(comm)
    device_type = comm.device.type
    ways = {"nccl": "nccl", "symmetric": "copy-engines"} if device_type == "cuda" else {"nccl": "gloo"}
    scopes = [("intra", 1)] * (per_node > 1) + [("inter", per_node)] * (comm.world > per_node)
    sizes = SIZES[device_type]
    notes = []
    each_s = seconds / max(len(ways) * len(scopes) * (len(sizes) + OVERLAPPED), 1)
    measure = Measure.fixed(warmup=2, repeats=30, max_seconds=max(each_s * 0.7, 0.05))
    size = MATMUL[device_type]
    matrix = torch.randn(
        size, size, device=comm.device, dtype=torch.bfloat16 if device_type == "cuda" else torch.float32
    )
    timed: dict[str, Timed] = {"intra": {}, "inter": {}}
    for asked, way in ways.items():
        comm.use(asked)  # type: ignore[arg-type]
        if asked == "symmetric" and comm.messages != "symmetric":
            notes.append(comm.messages_note)
            continue
        for scope, distance in scopes:
            hops = [_Hop(comm, num_bytes, distance, per_node) for num_bytes in sizes]
            timed[scope][way] = [
                _timed(comm, hop, measure, matrix if index >= len(hops) - OVERLAPPED else None)
                for index, hop in enumerate(hops)
            ]
    comm.use("nccl")
    return timed["intra"], timed["inter"], notes


class _Hop:
    """A message to the rank at some distance, of all ranks at once: the next one of the node, or the same
    place on the next node."""

    def __init__(self, comm: Comm, num_bytes: int, distance: int, per_node: int) -> None:
        self.num_bytes = num_bytes
        self._comm = comm
        self._buffers = comm.receive_buffers()
        node, offset = divmod(comm.rank, per_node)
        size = min(per_node, comm.world - node * per_node)
        if distance == 1:
            self._to = node * per_node + (offset + 1) % size
            self._from = node * per_node + (offset - 1) % size
        else:
            self._to = (comm.rank + distance) % comm.world
            self._from = (comm.rank - distance) % comm.world
        self._buffers.reserve(BUFFER, num_bytes)
        self._stream = comm.stream(BUFFER)
        self._buffers.allocate()
        self._message = torch.zeros(num_bytes, dtype=torch.uint8, device=comm.device)

    def __call__(self, beside: Callable[[], object] = lambda: None) -> None:
        received = self._buffers.empty(BUFFER, self._message.shape, self._message)
        pending = self._stream.post(
            [(self._to, self._message, self._buffers.offset(BUFFER, 0))], [(self._from, received)]
        )
        beside()
        pending.wait()


def _timed(comm: Comm, hop: _Hop, measure: Measure, matrix: torch.Tensor | None) -> TimedMessage:
    message_s, spread = _seconds(comm, hop, measure)
    if matrix is None:
        return TimedMessage(hop.num_bytes, message_s, spread)
    once_s, _ = _seconds(comm, lambda: torch.mm(matrix, matrix), measure)
    count = max(round(1.5 * message_s / once_s), 1)  # so that the message ends first

    def products() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    alone_s, _ = _seconds(comm, products, measure)
    both_s, _ = _seconds(comm, lambda: hop(products), measure)
    return TimedMessage(hop.num_bytes, message_s, spread, max(both_s - alone_s, 0.0) / message_s)


def _seconds(comm: Comm, call: Callable[[], object], measure: Measure) -> tuple[float, float]:
    """(the median over calls, each as long as its slowest rank; the middle half of them over it)."""
    samples = time_calls(call, measure, comm.device, before_each=comm.barrier, agree=comm.largest)
    times = np.array(comm.gather(list(samples.time_ms[0]))).max(axis=0) / 1e3
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
    return float(middle), float((high - low) / middle)


def _kernels(comm: Comm, seconds: float) -> tuple[list[TimedKernel], list[str]]:
    """Calls of kernels that have records, alone on each GPU at once; those that do not run here are left out,
    and why."""
    fitted = load_fitted()
    kernels = list[TimedKernel]()
    notes = list[str]()
    measure = Measure.fixed(
        warmup=2, repeats=10, max_seconds=max(seconds / (2 * len(KERNELS) * len(CALLS)) * 0.7, 0.1)
    )
    for name in KERNELS:
        kernel: Kernel = Registry("kernel").load(name)
        reasons = comm.gather(kernel.available("cuda"))
        if any(reasons):
            notes.append(f"{name}: {next(filter(None, reasons))}")
            continue
        for mask_name, seqlen in CALLS:
            mask = build_mask(
                mask_name, seqlen=seqlen, corpus="prolong64k" if mask_name.endswith("document") else None
            )
            problem = Problem(mask, *HEADS, HEAD_DIM, torch.bfloat16, comm.device, needs_backward=True)
            reason = kernel.supports(problem.call_spec, mask.traits, "cuda")
            if reason is not None:
                continue
            for direction, call in _calls(kernel, problem):
                model = fitted.find(name, direction, mask.traits, HEADS[0] // HEADS[1])
                if model is not None:
                    call_s, spread = _seconds(comm, call, measure)
                    predicted_s = model.seconds(mask, *HEADS, HEAD_DIM)
                    kernels.append(
                        TimedKernel(name, direction, mask_name, seqlen, call_s, predicted_s, spread)
                    )
    return kernels, notes


def _calls(kernel: Kernel, problem: Problem) -> list[tuple[str, Callable[[], Any]]]:
    """(direction, call) of random inputs."""
    prepared = kernel.prepare(problem)
    shape = (problem.mask.seqlen_q, HEADS[0], HEAD_DIM), (problem.mask.seqlen_k, HEADS[1], HEAD_DIM)
    q, dout = (
        prepared.to_layout(torch.randn(shape[0], device=problem.device, dtype=problem.dtype))
        for _ in range(2)
    )
    k, v = (
        prepared.to_layout(torch.randn(shape[1], device=problem.device, dtype=problem.dtype))
        for _ in range(2)
    )
    forward = prepared.forward(q, k, v)
    return [("fwd", lambda: prepared.forward(q, k, v)), ("bwd", lambda: prepared.backward(forward, dout))]


def _launch_us(comm: Comm) -> float:
    """Microseconds in which the host gives a GPU one small piece of work; 0 on a CPU."""
    if comm.device.type != "cuda":
        return 0.0
    x = torch.zeros(1, device=comm.device)
    x.add_(1)
    torch.cuda.synchronize(comm.device)
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        x.add_(1)
    spent = time.perf_counter() - start
    torch.cuda.synchronize(comm.device)
    return max(comm.gather(spent)) / LAUNCHES * 1e6
