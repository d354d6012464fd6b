"""Whether ranks can write into each other's memory: asked, and then tried once."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longca.cp.comm.process_group import Comm
    from longca.cp.comm.symmetric_cuda import CudaMemory

BOOT = Path("/proc/sys/kernel/random/boot_id")  # containers of one machine share it, two machines never do
TRIAL_SECONDS = 20.0
POLL_SECONDS = 0.01
FOR_EVER = (1 << 31) - 1
NUM_ELEMENTS = 1024


def why_not(comm: Comm, memory: CudaMemory) -> str | None:
    """None if it works between all ranks, else the first reason why not: the same on all ranks."""
    if comm.world == 1:
        return "a lone rank has no peer"
    if comm.device.type != "cuda":
        return "symmetric memory is that of GPUs"
    places = comm.gather((_machine(), comm.device.index))
    if len({machine for machine, _ in places}) > 1:
        return "the ranks are on several machines"
    if len(set(places)) < comm.world:
        return "ranks call their GPUs by the same number, as where each sees its own alone"
    for check in (_libraries, _reach, _trial):
        reason = _agreed(comm, check, memory)
        if reason is not None:
            return reason
    return None


def _agreed(comm: Comm, check: Callable[[Comm, CudaMemory], str | None], memory: CudaMemory) -> str | None:
    try:
        mine = check(comm, memory)
    except Exception as error:  # torch and the driver say no in many ways
        mine = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return next((f"rank {rank}: {reason}" for rank, reason in enumerate(comm.gather(mine)) if reason is not None), None)


def _libraries(comm: Comm, memory: CudaMemory) -> str | None:
    from torch.distributed import _symmetric_memory as symmetric

    missing = [name for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2") if not hasattr(memory.driver, name)]
    missing += [] if hasattr(symmetric, "rendezvous") else ["torch.distributed._symmetric_memory.rendezvous"]
    return f"{missing[0]} is missing" if missing else None


def _reach(comm: Comm, memory: CudaMemory) -> str | None:
    import torch

    here = comm.device.index or 0
    others = [index for _, index in comm.gather((None, here)) if index != here]
    refused = [other for other in others if not torch.cuda.can_device_access_peer(here, other)]
    return f"GPU {here} cannot reach the memory of GPU {refused[0]}" if refused else None


def _trial(comm: Comm, memory: CudaMemory) -> str | None:
    """A message to the next rank. The host waits for it, but not for ever."""
    import torch

    wire, heap = memory.wire(), memory.heap(NUM_ELEMENTS * torch.int32.itemsize)
    after, before = (comm.rank + 1) % comm.world, (comm.rank - 1) % comm.world
    message = torch.full((NUM_ELEMENTS,), comm.rank, dtype=torch.int32, device=comm.device)
    wire.follow()
    wire.tell(before, "ready", 1)
    wire.wait_for(after, "ready", 1)
    wire.write(heap.view(after, 0, message.shape, message.dtype), message)
    wire.tell(after, "full", 1)
    wire.wait_for(before, "full", 1)
    done, deadline = wire.mark(), time.monotonic() + TRIAL_SECONDS
    while not done.query():
        if time.monotonic() > deadline:
            wire.tell_oneself(FOR_EVER)  # else the stream would wait on
            return f"a message has not arrived in {TRIAL_SECONDS:.0f} s"
        time.sleep(POLL_SECONDS)
    arrived = heap.view(comm.rank, 0, message.shape, message.dtype)
    wrong = not bool((arrived == before).all())
    return "a message has arrived damaged" if wrong else None


def _machine() -> str:
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return boot or platform.node()
