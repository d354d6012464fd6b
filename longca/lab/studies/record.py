"""The record of a measured cell. It contains only raw facts; medians, TFLOP/s and verdicts are derived later.

Every field has bounds: far beyond realistic values, and safe for all derived computations. A file that
violates them is damaged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from longca.core import (
    LARGEST_INT,
    MOST_NAMES,
    MOST_RANKS,
    Count,
    Frozen,
    Milliseconds,
    Name,
    Named,
    Scalar,
    Work,
)
from longca.lab.studies.cell import Cell
from longca.lab.studies.facts.drawn import DrawnLengths
from longca.lab.studies.facts.inventory import RankEnvironment
from longca.lab.studies.outcome import Line, Outcome, Seconds
from longca.lab.studies.playoff.turns import Turns

# 2: a record without a checksum is damaged; 3: the protocol of samples, play-offs, repeats, the environment,
# what was asked
SCHEMA_VERSION = 3
MOST_SAMPLES = 1_000_000  # of a rank
# use by others below which a measurement counts as undisturbed
GPU_PERCENT = 5.0
CPU_CORES = 0.5
CPU_SHARE = 0.1
UNITS = ("_bytes", "_w", "_mhz")  # suffixes of numeric GPU facts
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)

SampleMs = Annotated[float, Field(ge=1e-6, le=1e12)]
"""time of a call: at least a nanosecond"""
Reading = Annotated[float, Field(ge=-1e9, le=1e9)]
"""of a sensor"""
Error = Annotated[float, Field(allow_inf_nan=True)]
"""infinite or NaN if a result is"""
Errors = Annotated[dict[Name, Error], Field(max_length=MOST_NAMES)]
"""by tensor"""
Lines = Annotated[dict[Name, Line], Field(max_length=MOST_NAMES)]
"""texts by name"""
Costs = Annotated[dict[Name, Annotated[float, Field(ge=0, le=1e30)]], Field(max_length=MOST_NAMES)]
Notes = Annotated[tuple[Line, ...], Field(max_length=10_000)]
PerRank = Annotated[tuple[Count, ...], Field(max_length=MOST_RANKS)]
"""a number of bytes for each rank"""
Readings = Annotated[tuple[Reading, ...], Field(max_length=MOST_SAMPLES)]
"""one for each sample"""


def _is_empty(value: object) -> bool:
    """Empty fields that older schemas lack are omitted from JSON, so that older records keep their bytes."""
    return not value


def _is_unknown(value: object) -> bool:
    """The same for fields in which False says something."""
    return value is None


@dataclass(frozen=True)
class Cost:
    """One kind of cost outside of the timed call, with the name that kernels, strategies and the harness use.

    A record keeps the largest value of all ranks. Names that are not in `COSTS` are also kept in the record,
    without a column.
    """

    name: str
    unit: Literal["ms", "bytes"]
    meaning: str


COSTS = (
    Cost("mask_ms", "ms", "Building the mask"),
    Cost("plan_ms", "ms", "Preparing the call: layout, indices, plan"),
    Cost(
        "schedule_ms",
        "ms",
        "Under cp, part of plan_ms: who computes what and what moves, before a kernel is prepared for any of "
        "it",
    ),
    Cost("compile_ms", "ms", "Compiling"),
    Cost(
        "permute_ms",
        "ms",
        "Bringing q, k and v from contiguous shards to the tokens that ranks hold; 0 where these "
        "are the same",
    ),
    Cost("oracle_ms", "ms", "Checking the result"),
    Cost("metadata_bytes", "bytes", "The kernel's own form of the mask"),
    Cost("workspace_bytes", "bytes", "Memory that the kernel's library asks for beside its tensors"),
    Cost(
        "moved_bytes",
        "bytes",
        "Moved between ranks, for each rank and call; empty where a library sends by itself",
    ),
    Cost("formula_bytes", "bytes", "What the strategy's formula says is moved"),
    Cost("formula_replicated_bytes", "bytes", "The same where more ranks than KV heads need copies of these"),
)


class Samples(Frozen):
    """Measured times, in order."""

    time_ms: Annotated[
        tuple[Annotated[tuple[SampleMs, ...], Field(min_length=1, max_length=MOST_SAMPLES)], ...],
        Field(min_length=1, max_length=MOST_RANKS),
    ]
    """[rank][iteration]"""
    warmup: Count
    timer: Literal["cuda_event", "monotonic"]
    sm_clock_mhz: Readings = ()
    """rank 0's SM clock during each sample, the mean of its readings; until schema 2, right after the sample.
    Empty if unknown"""
    clock_event_reasons: tuple[Line, ...] = Field(default=(), max_length=MOST_NAMES)
    """NVML's clock throttle reasons during the samples"""
    power_w: Readings = ()
    temperature_c: Readings = ()
    stopped: Literal["repeats", "precision", "time"] = "repeats"
    """the stopping criterion: number of samples, precision of the median, or time"""
    steady: bool | None = None
    """True if clock and times were steady before the samples; False if the time for this ran out; None if not
    tested"""
    warm_seconds: Seconds | None = None
    """time of all untimed calls, including pauses"""
    duty: float | None = Field(default=None, gt=0, le=1)
    """limit of the share of time in which calls kept the GPU busy; None without rests: CPUs, sustained calls,
    and older records"""
    again: int = Field(default=0, ge=0, le=1_000_000)
    """number of consecutive drifting or disturbed records that this one replaces"""
    enqueue_ms: Milliseconds | None = None
    """host time of a GPU call, not part of the times up to some 10 ms; the largest of all ranks"""


class Accuracy(Frozen):
    """Distance from the reference, for each tensor: ‖x − ref‖ / ‖ref‖ (Frobenius) and the largest absolute
    error; and whether the bits of gradients repeat."""

    reference: Line
    """the reference: "float64"; for a control also "nominal duration" or "the source" """
    scope: Line
    """the compared part: "all", or a share of rows, heads and tiles"""
    seed: Annotated[int, Field(ge=0, le=LARGEST_INT)] | None = None
    """seed of the check's random choices: rows, changes of inputs; None without any, and in older records"""
    timed_calls: Count = 0
    """number of timed calls whose results were compared, too; 0 in older records"""
    relative: Errors
    max_abs: Errors = {}
    budget: Errors
    """the relative error allowed, derived from the data: see `longca.lab.bench.check.oracle`"""
    worst_row: Errors = {}
    """largest ratio of the error of one row to its budget, wrong above 1; empty if rows were not checked"""
    worst_part: Errors = Field(default={}, exclude_if=_is_empty)
    """largest ratio of the error of one head, one column or 64 rows to what is allowed there, wrong above 1;
    empty in older records"""
    worst_part_of: Lines = Field(default={}, exclude_if=_is_empty)
    """that part of each tensor: "rows 64 to 127 of head 3" """
    empty_rows_ok: bool | None = None
    """True if rows without keys gave out 0, LSE −∞ and gradients 0; None if the mask has no such rows"""
    deterministic: bool | None = Field(default=None, exclude_if=_is_unknown)
    """True if the kernel promises bit-identical gradients and `bit_runs` backward calls on the same inputs
    had the same bits; False if they differed; None if nothing is promised, or forward, and in older
    records"""
    bit_runs: Count = Field(default=0, exclude_if=_is_empty)
    """backward calls whose bits were compared"""


class Memory(Frozen):
    """Memory per rank."""

    peak_bytes: PerRank
    """largest during one call, above the memory resident before it"""
    absolute_peak_bytes: PerRank
    above_shards_bytes: PerRank = ()
    """for context parallelism: the absolute peak, minus the memory before the strategy was prepared, minus
    the rank's shards of q, k, v, dout, out and, backward, of the gradients: the strategy's own memory; empty
    on one device"""
    source: Literal["cuda_allocator", "resident_set"]


class MaskFacts(Frozen):
    """The mask that was actually used."""

    digest: Line
    area: Count
    """visible pairs, summed over `num_groups` head groups"""
    num_groups: int = Field(ge=1, le=1 << 20)
    num_bands: Count
    drawn: Named = {}
    """random scalars, and scalars derived from them: num_documents, longest_document, prefix …"""
    lengths: dict[Name, DrawnLengths] = Field(default={}, max_length=MOST_NAMES, exclude_if=_is_empty)
    """sampled lengths: documents, and the prefix of each; empty in records of schema 2 and older"""


class Others(Frozen):
    """The use of the device and its machine by other processes (not of this run) during the measurement; the
    largest over ranks and machines.

    Unknown if the time was too short, or the system does not report it.
    """

    gpu_processes: int | None = Field(default=None, ge=0, le=1_000_000)
    """other processes with the GPU open; None without a GPU, or without NVML"""
    gpu_percent: float | None = Field(default=None, ge=0, le=1000)
    """the largest share of an NVML sampling period in which one of them kept the GPU busy"""
    cpu_cores: float | None = Field(default=None, ge=0, le=1_000_000)
    """CPU cores that others kept busy, on average"""
    duty: float | None = Field(default=None, gt=0, le=1)
    """limit of the share of time in which calls kept the GPU busy; None without rests: CPUs, sustained calls,
    and older records"""
    again: int = Field(default=0, ge=0, le=1_000_000)
    """number of consecutive disturbed records that this one replaces"""

    def disturbance(self, on_gpu: bool, num_cores: int) -> str:
        """A description of the use that disturbed the measurement; empty if there was none.

        An idle process with the GPU open, such as a notebook, does not count if the driver reports activity.
        On
        CPUs, half a core (typical of a desktop) or, with many cores, a tenth of them is allowed.
        """
        if on_gpu and self.gpu_processes and (self.gpu_percent is None or self.gpu_percent >= GPU_PERCENT):
            busy = "" if self.gpu_percent is None else f", one of them {self.gpu_percent:.0f} % of the time"
            return f"others used the GPU meanwhile ({self.gpu_processes}{busy})"
        if (
            not on_gpu
            and self.cpu_cores is not None
            and self.cpu_cores > max(CPU_CORES, CPU_SHARE * num_cores)
        ):
            return f"others kept {self.cpu_cores:.1f} of {num_cores} cores busy meanwhile"
        return ""


class Node(Frozen):
    """The measuring machine, as seen by its process."""

    hostname: Line
    os: Line
    cpu: Line
    num_cores: Count
    memory_bytes: Count
    gpu: Annotated[dict[Name, Scalar | None], Field(max_length=MOST_NAMES)] = {}
    """name, uuid, memory_bytes, driver, power limit, clocks, persistence, MIG … ; empty without a GPU"""

    @model_validator(mode="after")
    def _numbers_are_numbers(self) -> "Node":
        for name, value in self.gpu.items():
            if name.endswith(UNITS) and (
                isinstance(value, bool | str)
                or value is None
                or value < 0
                or (name.endswith("_bytes") and not isinstance(value, int))
            ):
                raise ValueError(f"the GPU's {name} is no such number")
        return self


class Software(Frozen):
    python: Line
    packages: Lines
    """versions of relevant packages"""
    cuda: Line | None = None
    cudnn: Line | None = None
    nccl: Line | None = None
    container: Line | None = None
    """digest of the image, from LONGCA_CONTAINER"""
    lock: Line | None = None
    """digest of the lock of the installed packages; None without one"""
    env: Lines = {}
    """environment variables that affect results, from a fixed list"""


class Source(Frozen):
    version: Line
    git_sha: Line | None
    git_dirty: bool | None


class Environment(Frozen):
    nodes: Annotated[tuple[Node, ...], Field(max_length=MOST_RANKS)]
    """one for each rank"""
    software: Software
    source: Source
    slurm_job: Line | None = None
    """id of the Slurm job, "123_4" in an array; None outside Slurm"""
    ranks: tuple[RankEnvironment, ...] = Field(default=(), max_length=MOST_RANKS, exclude_if=_is_empty)
    """the software of each rank by digests, or one entry if all ranks agree; empty if unknown, and in records
    of schema 2 and older"""

    @property
    def digest(self) -> str | None:
        """The digest of the installed software of rank 0; None if unknown."""
        return self.ranks[0].installed if self.ranks else None


class Record(Frozen):
    """One cell's result."""

    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION
    cell_id: str = Field(pattern=r"^[0-9a-f]{16}$")
    cell: Cell
    study: str = Field(max_length=255)
    run_id: Line
    method_version: Line
    """hash of the definition of this measurement: see `longca.lab.bench.run.method_version`"""
    playoff: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$", exclude_if=_is_empty)
    """id of the play-off, shared by all its records. None, omitted from JSON, for the cell's own record"""
    turns: Turns | None = Field(default=None, exclude_if=_is_empty)
    """in a play-off: the order of the samples among those of the other players"""
    repeat: bool = Field(default=False, exclude_if=_is_empty)
    """the cell was measured a second time, beside its own record, to learn how much such numbers differ; in a
    play-off, a twin: the same player under a second name. Left out of texts where false"""
    measure: dict[Name, Scalar | None] = Field({}, max_length=MOST_NAMES, exclude_if=_is_empty)
    """the requested measurement (`longca.lab.studies.grid.Measure`), by name; empty in records of schema 2
    and older"""
    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    work: Work | None = None
    """of a control, for every outcome; None for attention"""
    costs: Costs = {}
    """costs outside of the timed call: see `Cost`"""
    notes: Notes = ()
    """important notes: repaired rows, expanded KV heads, layout"""
    others: Others | None = None
    """None if no process reported it, and in older records"""
    environment: Environment | None = None
    """None if no process reported it"""
    started_at: str = Field(max_length=40)
    """UTC, ISO 8601"""
    seconds: Seconds

    @model_validator(mode="after")
    def _consistent(self) -> "Record":
        if self.cell_id != self.cell.cell_id:
            raise ValueError(f"cell_id is {self.cell_id}, its cell gives {self.cell.cell_id}")
        _check_start(self.started_at)
        if self.mask is not None and self.mask.area > self.mask.num_groups * self.cell.num_pairs:
            raise ValueError(f"its mask has {self.mask.area} visible pairs, more than there are")
        status = self.outcome.status
        if status == "ok" and (self.samples is None or self.accuracy is None):
            raise ValueError("an ok record needs samples and accuracy: no timing without a passed check")
        if status == "incorrect" and self.accuracy is None:
            raise ValueError("an incorrect record needs its errors")
        if status != "ok" and self.samples is not None:
            raise ValueError(f"a record that is {status} has no samples")
        self._check_turns()
        return self

    def _check_turns(self) -> None:
        """Raises ValueError if the order of the samples is inconsistent with the record."""
        in_turn = self.playoff is not None and self.samples is not None
        if (self.turns is not None) != in_turn:
            raise ValueError("the samples of a play-off, and no others, have turns")
        if (
            self.turns is not None
            and self.samples is not None
            and len(self.turns.numbers) != len(self.samples.time_ms[0])
        ):
            raise ValueError(
                f"it has {len(self.samples.time_ms[0])} samples and {len(self.turns.numbers)} turns"
            )


def _check_start(text: str) -> None:
    """Raises ValueError for an invalid UTC time, or one before 1970 or close to the latest representable
    year."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta() or not EARLIEST <= moment <= LATEST:
        raise ValueError(
            f"started_at is '{text}': it must be a time of UTC, such as 2026-01-31T12:00:00+00:00"
        )
