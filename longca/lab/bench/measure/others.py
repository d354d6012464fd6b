"""The use of a device and its machine by other processes during the measurement of a cell. It is read before
and after, never during it.

A lock keeps other runs away (`longca.lab.bench.workers.device_lock`); this tells of all that take no lock. It
has no part in a cell's number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import boot_id
from longca.lab.bench.measure.nvml import Gpu, open_gpu
from longca.lab.studies.record import Others

if TYPE_CHECKING:
    import torch

PROCESSES = Path("/proc")
MIN_SECONDS = 0.1  # the system counts the time of its CPUs in steps of 10 ms each
# NVML's sampling period is a second at most: of a short cell the one that has ended just before tells
BEFORE_US = 2_000_000

Uses = dict[str, Any]


@contextmanager
def watch(device: torch.device, judge: int | None = None) -> Iterator[Uses]:
    """Fills in, at the end, what this rank has seen of the machine and of its GPU: a message for `others`.

    Args:
        judge: the process that judges the run's results, which is no other.
    """
    uses: Uses = {}
    also = set() if judge is None else {judge}
    start = time.time()
    start_s = time.monotonic()
    own_s = _own_seconds(also)
    busy_s = _busy_seconds()
    with open_gpu(device) as gpu:
        holders = _holders(gpu)
    try:
        yield uses
    finally:
        uses |= {
            "machine": boot_id(),
            "seconds": time.monotonic() - start_s,
            "busy_s": _busy_seconds() - busy_s,
            "pids": sorted(_own_pids() | also),
            "own_s": {name: after_s - own_s.get(name, 0.0) for name, after_s in _own_seconds(also).items()},
            "num_own_on_gpu": 1 + len(also),
        }
        with open_gpu(device) as gpu:
            uses |= {
                "gpu_holders": None if gpu is None else _holders(gpu) | holders,
                "gpu_percents": {} if gpu is None else _percents(gpu, round(1e6 * start) - BEFORE_US),
            }


def others(of_ranks: Sequence[Uses]) -> Others:
    """The use of the devices and machines of these ranks by others."""
    cores: list[float] = []
    for machine in {uses["machine"] for uses in of_ranks}:
        here = [uses for uses in of_ranks if uses["machine"] == machine]
        own_s: dict[str, float] = {}
        for uses in here:
            own_s |= uses["own_s"]  # a process that two ranks name, as their parent, counts once
        longest = max(here, key=lambda uses: uses["seconds"])
        if longest["seconds"] >= MIN_SECONDS and longest["busy_s"] is not None:
            cores.append(max(longest["busy_s"] - sum(own_s.values()), 0.0) / longest["seconds"])
    own = {(uses["machine"], str(pid)) for uses in of_ranks for pid in uses["pids"]}
    counts = list[int]()
    percents = list[float | None]()
    for uses in of_ranks:
        if uses["gpu_holders"] is None:
            continue
        strange = [pid for pid in uses["gpu_holders"] if (uses["machine"], pid) not in own]
        known: dict[str, float] = uses["gpu_percents"]
        if len(strange) == len(uses["gpu_holders"]) and not all(uses["gpu_holders"].values()):
            # NVML numbers processes as the host does, a container otherwise: so many of them are of this run
            strange = strange[uses.get("num_own_on_gpu", 1) :]
            known = {}
        counts.append(len(strange))
        percents.append(
            max((known.get(pid, 0.0) for pid in strange), default=0.0) if known or not strange else None
        )
    return Others(
        gpu_processes=max(counts, default=None),
        cpu_cores=round(max(cores), 3) if cores else None,
        gpu_percent=None if not percents or None in percents else max(percent or 0.0 for percent in percents),
    )


def _busy_seconds() -> float:
    """CPU time that this machine has spent on anything, all cores together, its hypervisor's other guests
    included."""
    import psutil

    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_seconds(also: set[int]) -> dict[str, float]:
    """CPU time of the run's processes that this one knows: itself, with its children that have ended, those
    that live, its parent …

    Args:
        also: … and these.
    """
    times = os.times()
    seconds = {str(os.getpid()): times.user + times.system + times.children_user + times.children_system}
    for pid in (_own_pids() | also) - {os.getpid()}:
        seconds[str(pid)] = _cpu_seconds(pid, with_children=pid != os.getppid())
    return seconds


def _own_pids() -> set[int]:
    """This process, all that it has started, and its parent: the runner or an agent."""
    pids = {os.getppid()}
    new = [os.getpid()]
    while new:
        pid = new.pop()
        if pid not in pids:
            pids.add(pid)
            new += [
                int(child)
                for file in PROCESSES.glob(f"{pid}/task/*/children")
                for child in _text(file).split()
            ]
    return pids


def _cpu_seconds(pid: int, *, with_children: bool) -> float:
    """CPU time of a process, with its children that have ended; 0 for one that is gone."""
    fields = _text(PROCESSES / str(pid) / "stat").rpartition(") ")[2].split()
    # utime, stime, cutime, cstime: see proc(5)
    ticks = [int(field) for field in fields[11 : 15 if with_children else 13]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""


def _holders(gpu: Gpu | None) -> dict[str, bool]:
    """The processes that have the GPU open to compute, by number, and if this one sees a process of that
    number."""
    processes = () if gpu is None else gpu.read("ComputeRunningProcesses") or ()
    return {str(process.pid): (PROCESSES / str(process.pid)).exists() for process in processes}


def _percents(gpu: Gpu, since_us: int) -> dict[str, float]:
    """Process → the largest share of a sampling period in which it kept the GPU busy; empty where the driver
    does not say."""
    percents: dict[str, float] = {}
    for sample in gpu.read("ProcessUtilization", since_us) or ():
        percents[str(sample.pid)] = max(percents.get(str(sample.pid), 0.0), float(sample.smUtil))
    return percents
