"""The record of a measured cell. It holds raw facts only; medians, TFLOP/s and verdicts are derived later.

Every field has bounds, far beyond what any machine does and within what all that is derived can bear. A file that breaks them is damaged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from longca.core.cell import MOST_RANKS, Cell, Named, Scalar
from longca.core.facts.drawn import DrawnLengths
from longca.core.facts.inventory import RankEnvironment
from longca.core.playoff.turns import Turns
from longca.core.schema import LARGEST_INT, MOST_NAMES, Count, Frozen, Name

# 2: a record without a checksum is damaged; 3: the protocol of samples, play-offs, repeats, the environment, what was asked
SCHEMA_VERSION = 3
MOST_SAMPLES = 1_000_000  # of a rank
MOST_LINE, MOST_LOG = 10_000, 1_000_000  # characters
GPU_PERCENT, CPU_CORES, CPU_SHARE = 5.0, 0.5, 0.1  # use by others that is still no disturbance
MOST_FLOPS = 10**30  # a product of matrices of 2³¹ rows has 2·10²⁸
UNITS = ("_bytes", "_w", "_mhz")  # end the names of a GPU's facts that are numbers
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)

Milliseconds = Annotated[float, Field(ge=0, le=1e12)]
"""at most three decades"""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
SampleMs = Annotated[float, Field(ge=1e-6, le=1e12)]
"""time of a call: at least a nanosecond"""
Reading = Annotated[float, Field(ge=-1e9, le=1e9)]
"""of a sensor"""
Line = Annotated[str, Field(max_length=MOST_LINE)]
Error = Annotated[float, Field(allow_inf_nan=True)]
"""infinite or NaN where a result is"""
Errors = Annotated[dict[Name, Error], Field(max_length=MOST_NAMES)]
"""by tensor"""
Lines = Annotated[dict[Name, Line], Field(max_length=MOST_NAMES)]
"""texts by name"""
Costs = Annotated[dict[Name, Annotated[float, Field(ge=0, le=1e30)]], Field(max_length=MOST_NAMES)]
Notes = Annotated[tuple[Line, ...], Field(max_length=10_000)]
PerRank = Annotated[tuple[Count, ...], Field(max_length=MOST_RANKS)]
"""a number of bytes for each rank"""
Readings = Annotated[tuple[Reading, ...], Field(max_length=MOST_SAMPLES)]
"""one beside each sample"""


def _is_empty(value: object) -> bool:
    """Fields that records of older schemas do not have are left out of texts where they are empty, so that these stay byte for byte."""
    return not value


@dataclass(frozen=True)
class Cost:
    """One kind of cost of a cell beside its timed call, under the name by which kernels, strategies and the harness count it.

    Of several ranks a record keeps the largest. A name that is not in `COSTS` is kept in the record all the same, without a column.
    """

    name: str
    unit: Literal["ms", "bytes"]
    meaning: str


COSTS = (
    Cost("mask_ms", "ms", "Building the mask"),
    Cost("plan_ms", "ms", "Preparing the call: layout, indices, plan"),
    Cost("schedule_ms", "ms", "Under cp, part of plan_ms: who computes what and what moves, before a kernel is prepared for any of it"),
    Cost("compile_ms", "ms", "Compiling"),
    Cost("permute_ms", "ms", "Bringing q, k and v from contiguous shards to the tokens that ranks hold; 0 where these are the same"),
    Cost("oracle_ms", "ms", "Checking the result"),
    Cost("metadata_bytes", "bytes", "The kernel's own form of the mask"),
    Cost("workspace_bytes", "bytes", "Memory that the kernel's library asks for beside its tensors"),
    Cost("moved_bytes", "bytes", "Moved between ranks, for each rank and call; empty where a library sends by itself"),
    Cost("formula_bytes", "bytes", "What the strategy's formula says is moved"),
    Cost("formula_replicated_bytes", "bytes", "The same where more ranks than KV heads need copies of these"),
)


class Ok(Frozen):
    """Measured, and right within its error budget."""

    status: Literal["ok"] = "ok"


class Unsupported(Frozen):
    """The method does not do this, here or anywhere."""

    status: Literal["unsupported"] = "unsupported"
    reason: str


class Unavailable(Frozen):
    """The method is not on this machine."""

    status: Literal["unavailable"] = "unavailable"
    reason: str


class OutOfMemory(Frozen):
    """It asked for more memory than there was."""

    status: Literal["oom"] = "oom"
    requested_bytes: Count | None
    """of the allocation that failed, where the allocator says so"""
    where: Line
    """stage: inputs, prepare, oracle, fwd, bwd"""


class Incorrect(Frozen):
    """It ran and its result is wrong: never a speed."""

    status: Literal["incorrect"] = "incorrect"
    reason: str


class Implausible(Frozen):
    """Its results were right where they were checked, and its times are shorter than the device can be: never a speed."""

    status: Literal["implausible"] = "implausible"
    reason: str


class Failed(Frozen):
    """It raised, or its process died."""

    status: Literal["error"] = "error"
    type: Line
    message: str
    log: str = Field("", max_length=MOST_LOG)
    """end of the traceback or of the process's output"""


class TimedOut(Frozen):
    """It was not done in time and was stopped."""

    status: Literal["timeout"] = "timeout"
    seconds: Seconds


Outcome = Annotated[Ok | Unsupported | Unavailable | OutOfMemory | Incorrect | Implausible | Failed | TimedOut,
                    Field(discriminator="status")]
WAS_AT = " was at "
"""of the note that says where in the code a rank was when it died or was stopped: "rank 0 was at file.py:7 in forward" """
STATUSES = ("ok", "unsupported", "unavailable", "oom", "incorrect", "implausible", "error", "timeout")


class Samples(Frozen):
    """Times as measured, in order."""

    time_ms: Annotated[tuple[Annotated[tuple[SampleMs, ...], Field(min_length=1, max_length=MOST_SAMPLES)], ...],
                       Field(min_length=1, max_length=MOST_RANKS)]
    """[rank][iteration]"""
    warmup: Count
    timer: Literal["cuda_event", "monotonic"]
    sm_clock_mhz: Readings = ()
    """rank 0's SM clock during each sample, the mean of its readings; until schema 2 right after it. Empty where there is none"""
    clock_event_reasons: tuple[Line, ...] = Field((), max_length=MOST_NAMES)
    """reasons for which the GPU held its clock back during the samples, as NVML names them"""
    power_w: Readings = ()
    temperature_c: Readings = ()
    stopped: Literal["repeats", "precision", "time"] = "repeats"
    """what ended them: their number, the precision of their median, or time"""
    steady: bool | None = None
    """clock and times had become steady before them; False if the time for it was over; None where it was not tested"""
    warm_seconds: Seconds | None = None
    """time of all untimed calls, pauses between them included"""
    duty: float | None = Field(None, gt=0, le=1)
    """most of the time that calls kept the GPU busy; None where it did not rest: of CPUs, sustained calls, and records from before it"""
    again: int = Field(0, ge=0, le=1_000_000)
    """the record takes the place of so many in a row that drifted or were disturbed"""
    enqueue_ms: Milliseconds | None = None
    """what a call costs the host of a GPU, hidden from the times up to some 10 ms; of several ranks the most"""


class Work(Frozen):
    """The work of one call of a control, by construction; each field where it applies. Attention's work follows from its mask instead."""

    duration_ms: Milliseconds | None = None
    """it lasts so long"""
    flops: Annotated[int, Field(ge=0, le=MOST_FLOPS)] | None = None
    """floating-point operations"""
    traffic_bytes: Count | None = None
    """read from the device's memory and written to it"""


class Accuracy(Frozen):
    """Distance from the reference, for each tensor: ‖x − ref‖ / ‖ref‖ (Frobenius) and the largest absolute error."""

    reference: Line
    """what it was compared with: "float64"; for a control also "nominal duration" or "the source" """
    scope: Line
    """what part was compared: "all", or which share of rows, heads and tiles"""
    seed: Annotated[int, Field(ge=0, le=LARGEST_INT)] | None = None
    """of what was drawn for the check: rows, changes of inputs; None where nothing was, and in records from before it was"""
    timed_calls: Count = 0
    """timed calls whose results were compared, too; 0 in records from before they were"""
    relative: Errors
    max_abs: Errors = {}
    budget: Errors
    """the relative error allowed, derived from the data: see `longca.bench.check.oracle`"""
    worst_row: Errors = {}
    """largest error of one row over what is allowed there, above 1 is wrong; empty where rows were not looked at"""
    empty_rows_ok: bool | None = None
    """rows without keys gave out 0, LSE −∞ and gradients 0; None where the mask has none"""


class Memory(Frozen):
    """Memory per rank."""

    peak_bytes: PerRank
    """largest during one call, above what was resident before it"""
    absolute_peak_bytes: PerRank
    above_shards_bytes: PerRank = ()
    """of context parallelism: the absolute peak above what was there before the strategy was prepared, less the rank's shards of q, k, v,
    dout, out and, backward, of the gradients: what a strategy takes for itself, kept or not; empty on one device"""
    source: Literal["cuda_allocator", "resident_set"]


class MaskFacts(Frozen):
    """The mask that was really used."""

    digest: Line
    area: Count
    """visible pairs, summed over `num_groups` head groups"""
    num_groups: int = Field(ge=1, le=1 << 20)
    num_bands: Count
    drawn: Named = {}
    """scalars that were drawn or follow from the draw: num_documents, longest_document, prefix …"""
    lengths: dict[Name, DrawnLengths] = Field({}, max_length=MOST_NAMES, exclude_if=_is_empty)
    """lengths that were drawn: documents, and the prefix of each; empty in records of schema 2 and older"""


class Others(Frozen):
    """The use of the device and its machine by others while the cell was measured; of several ranks and machines the most.

    Others are all processes but those of the run. Of a time that is too short to tell, or where the system does not say, nothing is known.
    """

    gpu_processes: int | None = Field(None, ge=0, le=1_000_000)
    """other processes that had the GPU open; None without a GPU, or without NVML"""
    gpu_percent: float | None = Field(None, ge=0, le=1000)
    """the largest share of a sampling period of NVML in which one of them kept the GPU busy"""
    cpu_cores: float | None = Field(None, ge=0, le=1_000_000)
    """CPU cores that others kept busy, on average"""
    duty: float | None = Field(None, gt=0, le=1)
    """most of the time that calls kept the GPU busy; None where it did not rest: of CPUs, sustained calls, and records from before it"""
    again: int = Field(0, ge=0, le=1_000_000)
    """the record takes the place of so many in a row that were disturbed, too"""

    def disturbance(self, on_gpu: bool, num_cores: int) -> str:
        """The use that disturbs a measurement, in words; empty if none does.

        The limits are generous. A process that has a GPU open and does nothing, as a notebook, is none; only where the driver does not say
        what it does, it counts. Of CPUs, half a core is what a desktop does beside, and of many cores a tenth.
        """
        if on_gpu and self.gpu_processes and (self.gpu_percent is None or self.gpu_percent >= GPU_PERCENT):
            busy = "" if self.gpu_percent is None else f", one of them {self.gpu_percent:.0f} % of the time"
            return f"others used the GPU meanwhile ({self.gpu_processes}{busy})"
        if not on_gpu and self.cpu_cores is not None and self.cpu_cores > max(CPU_CORES, CPU_SHARE * num_cores):
            return f"others kept {self.cpu_cores:.1f} of {num_cores} cores busy meanwhile"
        return ""


class Node(Frozen):
    """The machine that measured, as its own process saw it."""

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
            if name.endswith(UNITS) and (isinstance(value, bool | str) or value is None or value < 0
                                         or (name.endswith("_bytes") and not isinstance(value, int))):
                raise ValueError(f"the GPU's {name} is no such number")
        return self


class Software(Frozen):
    python: Line
    packages: Lines
    """version of each package that matters"""
    cuda: Line | None = None
    cudnn: Line | None = None
    nccl: Line | None = None
    container: Line | None = None
    """digest of the image, from LONGCA_CONTAINER"""
    lock: Line | None = None
    """digest of the lock that the packages were installed from; None where they were not"""
    env: Lines = {}
    """environment variables that change results, from a fixed list"""


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
    """number of the Slurm job, "123_4" in an array; None outside Slurm"""
    ranks: tuple[RankEnvironment, ...] = Field((), max_length=MOST_RANKS, exclude_if=_is_empty)
    """the software of each rank by digests, or of all ranks where it is the same; empty where it is not known, and in records of schema
    2 and older"""

    @property
    def digest(self) -> str | None:
        """The digest of what was installed where rank 0 ran; None where it is not known."""
        return self.ranks[0].installed if self.ranks else None


class Record(Frozen):
    """One cell's result."""

    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION
    cell_id: str = Field(pattern=r"^[0-9a-f]{16}$")
    cell: Cell
    study: str = Field(max_length=255)
    run_id: Line
    method_version: Line
    """hash of all that defines how this number was made: see `longca.bench.run.method_version`"""
    playoff: str | None = Field(None, pattern=r"^[0-9a-f]{16}$", exclude_if=_is_empty)
    """of a play-off: an id that all its records share. None, left out of texts, for the cell's own record"""
    turns: Turns | None = Field(None, exclude_if=_is_empty)
    """of a play-off: the order of the samples among those of the other players"""
    repeat: bool = Field(False, exclude_if=_is_empty)
    """the cell was measured a second time, beside its own record, to learn how much such numbers differ; in a play-off, a twin: the same
    player under a second name. Left out of texts where false"""
    measure: dict[Name, Scalar | None] = Field({}, max_length=MOST_NAMES, exclude_if=_is_empty)
    """repeats, limits and all else that was asked (`longca.core.study.Measure`), by name; empty in records of schema 2 and older"""
    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    work: Work | None = None
    """of a control, whatever came of it; None for attention"""
    costs: Costs = {}
    """outside the timed call: see `Cost`"""
    notes: Notes = ()
    """what a reader must know: repaired rows, expanded KV heads, layout"""
    others: Others | None = None
    """None where no process got as far as telling, and in records from before this was looked at"""
    environment: Environment | None = None
    """None where no process got as far as taking it"""
    started_at: str = Field(max_length=40)
    """UTC, ISO 8601"""
    seconds: Seconds

    @model_validator(mode="after")
    def _consistent(self) -> "Record":
        if self.cell_id != self.cell.cell_id:
            raise ValueError(f"cell_id is {self.cell_id}, its cell gives {self.cell.cell_id}")
        _check_start(self.started_at)
        if self.mask is not None and self.mask.area > self.mask.num_groups * self.cell.seqlen**2:
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
        """Raises ValueError where the order of the samples does not fit the rest."""
        in_turn = self.playoff is not None and self.samples is not None
        if (self.turns is not None) != in_turn:
            raise ValueError("the samples of a play-off, and no others, have turns")
        if self.turns is not None and self.samples is not None and len(self.turns.numbers) != len(self.samples.time_ms[0]):
            raise ValueError(f"it has {len(self.samples.time_ms[0])} samples and {len(self.turns.numbers)} turns")


def _check_start(text: str) -> None:
    """Raises ValueError for what is no moment of UTC since 1970 to which some years can be added."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta() or not EARLIEST <= moment <= LATEST:
        raise ValueError(f"started_at is '{text}': it must be a time of UTC, such as 2026-01-31T12:00:00+00:00")
