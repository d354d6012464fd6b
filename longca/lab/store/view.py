"""Computation of the columns of the derived table from a record and, for some, from related records."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import median

from longca.core import Hardware, shown
from longca.lab.store.text import format_bytes
from longca.lab.studies import Failed, Node, OutOfMemory, Record, TimedOut
from longca.lab.studies.samples import Times

MOST_OF_REASON = 10_000  # characters
SETTLED_MS = 160.0  # shorter separate calls do not fill NVML's averaging period of a second


class View(Times):
    """A record with lazily derived facts; None if not applicable.

    Args:
        hardware: peak rates of GPUs by their makers.
    """

    def __init__(self, record: Record, hardware: Hardware) -> None:
        self.record = record
        self.cell = record.cell
        self.hardware = hardware
        super().__init__(record.samples)
        self.accuracy = record.accuracy
        self.memory = record.memory
        self.software = record.environment.software if record.environment else None
        self.ran_in = record.environment.ranks[0] if record.environment and record.environment.ranks else None

    @property
    def is_control(self) -> bool:
        """True for controls, such as a matrix product or a copy."""
        return self.record.work is not None

    @cached_property
    def reason(self) -> str:
        """The one-line reason for a missing number; empty for ok."""
        outcome = self.record.outcome
        if isinstance(outcome, OutOfMemory):
            size = (
                f", asking for {format_bytes(outcome.requested_bytes)}"
                if outcome.requested_bytes is not None
                else ""
            )
            return shown(f"out of memory in {outcome.where}{size}")
        if isinstance(outcome, Failed):
            return shown(" ".join(f"{outcome.type}: {outcome.message}".split()), MOST_OF_REASON)
        if isinstance(outcome, TimedOut):
            return f"stopped after {outcome.seconds:g} s"
        return shown(" ".join(getattr(outcome, "reason", "").split()), MOST_OF_REASON)

    @property
    def num_unsettled(self) -> int:
        """The number of consecutive drifting or disturbed records of the cell up to this one; 0 if this one
        was neither."""
        drifted = self.samples.again + 1 if self.is_drifting and self.samples is not None else 0
        return max(drifted, self.num_disturbed)

    @property
    def rests(self) -> bool | None:
        """True if the GPU rested after each call; None on a CPU, for calls without pauses, and without
        samples."""
        if self.samples is None or self.samples.timer != "cuda_event" or self.cell.sustained:
            return None
        return self.samples.duty is not None

    @cached_property
    def mega_cycles(self) -> float | None:
        """The median over samples of time × SM clock, rank 0, in 10⁶ cycles."""
        if self.samples is None or not self.samples.sm_clock_mhz:
            return None
        pairs = zip(self.samples.time_ms[0], self.samples.sm_clock_mhz, strict=False)
        return float(median(time_ms * clock_mhz for time_ms, clock_mhz in pairs)) / 1e3

    @cached_property
    def flops(self) -> int | None:
        """Floating-point operations: for attention from the exact area of the sampled mask, for a control by
        construction."""
        if self.record.work is not None:
            return self.record.work.flops
        mask = self.record.mask
        return self.cell.flops(mask.area, mask.num_groups) if mask else None

    @property
    def nominal_flops(self) -> int | None:
        """Operations of a block-sparse cell at exactly the requested density."""
        asked = self.cell.mask_params.get("density")
        return None if asked is None else self.cell.flops(round(float(asked) * self.cell.num_pairs), 1)

    @property
    def nominal_tflops(self) -> float | None:
        flops = self.nominal_flops
        return flops / self.median_ms / 1e9 if flops is not None and self.median_ms else None

    @property
    def gb_per_s(self) -> float | None:
        """Rate of a copy's reads and writes, in 10⁹ bytes per second."""
        work = self.record.work
        return (
            work.traffic_bytes / self.median_ms / 1e6
            if work and work.traffic_bytes is not None and self.median_ms
            else None
        )

    @cached_property
    def density(self) -> float | None:
        mask = self.record.mask
        return mask.area / (mask.num_groups * self.cell.num_pairs) if mask else None

    def tflops(self, time_ms: float | None) -> float | None:
        """Total rate of all ranks, for a call of that duration."""
        return self.flops / time_ms / 1e9 if self.flops is not None and time_ms else None

    def per_device(self, time_ms: float | None) -> float | None:
        rate = self.tflops(time_ms)
        return None if rate is None else rate / self.cell.world

    @cached_property
    def peak_tflops(self) -> float | None:
        return self.hardware.peak_tflops(self.device, self.cell.dtype)

    @cached_property
    def joules_per_token(self) -> float | None:
        """Energy for each token in a call of all ranks, with the power of rank 0; None if the power reading
        includes pauses."""
        if (
            self.is_control
            or self.samples is None
            or not self.samples.power_w
            or not self.median_ms
            or self.rests
        ):
            return None
        if not self.cell.sustained and self.median_ms < SETTLED_MS:
            return None
        return median(self.samples.power_w) * self.cell.world * self.median_ms / 1e3 / self.cell.num_queries

    @cached_property
    def worst_tensor(self) -> str | None:
        """The tensor with the largest ratio of error to budget; a tensor without an error contains NaN or
        infinity."""
        if self.accuracy is None or not self.accuracy.budget:
            return None
        return max(self.accuracy.budget, key=lambda tensor: self.budget_ratio(tensor) or 0.0)

    def budget_ratio(self, tensor: str | None) -> float | None:
        """Ratio of error to budget of the tensor, of its worst row or of its worst part: the largest; wrong
        above 1."""
        if self.accuracy is None or tensor is None or tensor not in self.accuracy.budget:
            return None
        error = self.error(tensor)
        budget = self.accuracy.budget[tensor]
        assert error is not None
        if not math.isfinite(error):
            return math.inf
        whole = error / budget if budget else (math.inf if error else 0.0)
        parts = (self.accuracy.worst_row, self.accuracy.worst_part)
        return max(whole, *(ratios.get(tensor, 0.0) for ratios in parts))

    @property
    def error_text(self) -> str:
        """The error of the worst tensor beside its budget, "dv 3.8e-07 / 2.7e-06"; "" if none was checked."""
        tensor = self.worst_tensor
        if self.accuracy is None or tensor is None:
            return ""
        return f"{tensor} {self.error(tensor):.1e} / {self.accuracy.budget[tensor]:.1e}"

    def error(self, tensor: str | None) -> float | None:
        if self.accuracy is None or tensor is None or tensor not in self.accuracy.budget:
            return None
        return self.accuracy.relative.get(tensor, math.inf)

    @cached_property
    def node(self) -> Node | None:
        """The node of rank 0."""
        nodes = self.record.environment.nodes if self.record.environment else ()
        return nodes[0] if nodes else None

    @cached_property
    def disturbance(self) -> str | None:
        """A description of disturbances by other processes; empty without any, None if unknown."""
        others = self.record.others
        if others is None or self.node is None or self.samples is None:
            return None
        return others.disturbance(self.device_type == "cuda", self.node.num_cores)

    @property
    def num_disturbed(self) -> int:
        """The number of consecutive disturbed records of the cell up to this one; 0 if this one was not."""
        return self.record.others.again + 1 if self.disturbance and self.record.others is not None else 0

    @cached_property
    def device_type(self) -> str:
        if self.samples is not None:
            return "cuda" if self.samples.timer == "cuda_event" else "cpu"
        return "" if self.node is None else "cuda" if self.node.gpu else "cpu"

    @cached_property
    def device(self) -> str:
        """Model of the GPU, or of the CPU for cells on a CPU."""
        if self.node is None:
            return ""
        return str(self.node.gpu.get("name", "unknown GPU")) if self.device_type == "cuda" else self.node.cpu

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The devices that took part, in the order of ranks, each once: UUIDs of GPUs, or the host of a CPU;
        "" for one that is not known."""
        if self.node is None or self.record.environment is None:
            return ()
        if self.device_type != "cuda":
            return (self.node.hostname,)
        return tuple(dict.fromkeys(str(node.gpu.get("uuid") or "") for node in self.record.environment.nodes))

    @property
    def unit(self) -> str:
        """All of `units`, with blanks between them; "" where one is not known."""
        return "" if "" in self.units else " ".join(self.units)

    def package(self, name: str) -> str:
        return self.software.packages.get(name, "") if self.software else ""

    def cost(self, name: str) -> float | None:
        return self.record.costs.get(name)
