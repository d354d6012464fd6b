"""The bound on rates: a cell that is faster than its device can be has no speed.

The bound is generous, since no cell that is right may reach it. On a GPU it is the maker's peak rate with a
margin for its clock.
On a CPU it follows from the widest multipliers that CPUs have, at a clock that none holds. Attention has to
do the operations that are counted (those of visible pairs alone), on any way that is known.
"""

from __future__ import annotations

import functools
import statistics

from longca.core import Hardware, load_hardware
from longca.lab.bench.measure.result import Result
from longca.lab.store.text import number
from longca.lab.studies import Cell, Node
from longca.lab.studies.outcome import Implausible
from longca.lab.studies.record import Samples

GPU_MARGIN = 1.25  # peak rates are stated for a boost clock, which some GPUs exceed
CPU_HZ = 6e9
CPU_FLOPS_PER_CYCLE = {"fp32": 64, "fp16": 2048, "bf16": 2048}
"""of a core: two AVX-512 units with fused multiply-add; one AMX unit"""


def plausible(cell: Cell, result: Result, hardware: Hardware | None = None) -> Result:
    """The result of a cell of attention, or none of its numbers where its rate is above what the device can
    do."""
    if result.outcome.status != "ok" or result.samples is None or result.mask is None or not result.nodes:
        return result
    peak_tflops = _peak_tflops(cell, result.nodes[0], hardware or _hardware())
    if peak_tflops is None:
        return result
    tflops = (
        cell.flops(result.mask.area, result.mask.num_groups) / cell.world / (_usual_ms(result.samples) * 1e9)
    )
    if tflops <= peak_tflops:
        return result
    reason = f"{number(tflops)} TFLOP/s are more than this device can do: at most {number(peak_tflops)}"
    return result.model_copy(update={"outcome": Implausible(reason=reason), "samples": None, "memory": None})


def _usual_ms(samples: Samples) -> float:
    """The median over calls of the slowest rank's time."""
    return statistics.median(max(of_ranks) for of_ranks in zip(*samples.time_ms, strict=True))


def _peak_tflops(cell: Cell, node: Node, hardware: Hardware) -> float | None:
    """The most that a device of this machine can do; None for a GPU of which nothing is known."""
    if not node.gpu:
        return node.num_cores * CPU_HZ * CPU_FLOPS_PER_CYCLE[cell.dtype] / 1e12
    # single precision may run as TF32, at half the rate of the narrow types
    peak = hardware.peak_tflops(str(node.gpu.get("name")), "bf16" if cell.dtype == "fp32" else cell.dtype)
    return None if peak is None else GPU_MARGIN * peak


@functools.cache
def _hardware() -> Hardware:
    return load_hardware()
