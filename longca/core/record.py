"""The record of a measured cell. It holds raw facts only; medians, TFLOP/s and verdicts are derived later."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from longca.core.cell import Cell, Scalar
from longca.core.schema import Frozen

SCHEMA_VERSION = 1
GPU_PERCENT, CPU_CORES, CPU_SHARE = 5.0, 0.5, 0.1  # use by others that is still no disturbance


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
    requested_bytes: int | None
    """of the allocation that failed, where the allocator says so"""
    where: str
    """stage: inputs, prepare, oracle, fwd, bwd"""


class Incorrect(Frozen):
    """It ran and its result is wrong: never a speed."""

    status: Literal["incorrect"] = "incorrect"
    reason: str


class Failed(Frozen):
    """It raised, or its process died."""

    status: Literal["error"] = "error"
    type: str
    message: str
    log: str = ""
    """end of the traceback or of the process's output"""


class TimedOut(Frozen):
    """It was not done in time and was stopped."""

    status: Literal["timeout"] = "timeout"
    seconds: float


Outcome = Annotated[Ok | Unsupported | Unavailable | OutOfMemory | Incorrect | Failed | TimedOut, Field(discriminator="status")]
STATUSES = ("ok", "unsupported", "unavailable", "oom", "incorrect", "error", "timeout")


class Samples(Frozen):
    """Times as measured, in order."""

    time_ms: tuple[tuple[float, ...], ...]
    """[rank][iteration]"""
    warmup: int
    timer: str
    """"cuda_event" or "monotonic" """
    sm_clock_mhz: tuple[float, ...] = ()
    """rank 0's SM clock beside each sample; empty where there is none"""
    clock_event_reasons: tuple[str, ...] = ()
    """reasons for which the GPU held its clock back during the samples, as NVML names them"""
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[float, ...] = ()
    stopped: Literal["repeats", "time"] = "repeats"
    enqueue_ms: float | None = None
    """what a call costs the host of a GPU, hidden from the times up to some 10 ms; of several ranks the most"""


class Work(Frozen):
    """The work of one call of a control, by construction; each field where it applies. Attention's work follows from its mask instead."""

    duration_ms: float | None = None
    """it lasts so long"""
    flops: int | None = None
    """floating-point operations"""
    traffic_bytes: int | None = None
    """read from the device's memory and written to it"""


class Accuracy(Frozen):
    """Distance from the reference, for each tensor: ‖x − ref‖ / ‖ref‖ (Frobenius) and the largest absolute error."""

    reference: str
    """what it was compared with: "float64"; for a control also "nominal duration" or "the source" """
    scope: str
    """what part was compared: "all", or which heads"""
    relative: dict[str, float]
    max_abs: dict[str, float] = {}
    budget: dict[str, float]
    """the relative error allowed, derived from the data: see `longca.bench.check.oracle`"""
    worst_row: dict[str, float] = {}
    """largest error of one row over what is allowed there, above 1 is wrong; empty where rows were not looked at"""
    empty_rows_ok: bool | None = None
    """rows without keys gave out 0, LSE −∞ and gradients 0; None where the mask has none"""


class Memory(Frozen):
    """Memory per rank."""

    peak_bytes: tuple[int, ...]
    """largest during one call, above what was resident before it"""
    absolute_peak_bytes: tuple[int, ...]
    above_shards_bytes: tuple[int, ...] = ()
    """of context parallelism: the absolute peak above what was there before the strategy was prepared, less the rank's shards of q, k, v,
    dout, out and, backward, of the gradients: what a strategy takes for itself, kept or not; empty on one device"""
    source: Literal["cuda_allocator", "resident_set"]


class MaskFacts(Frozen):
    """The mask that was really used."""

    digest: str
    area: int
    """visible pairs, summed over `num_groups` head groups"""
    num_groups: int
    num_bands: int
    drawn: dict[str, Scalar] = {}
    """scalars that were drawn or follow from the draw: num_documents, longest_document, prefix …"""


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
    again: int = Field(0, ge=0, le=1_000_000)
    """the record takes the place of so many in a row that were disturbed, too"""

    def disturbance(self, on_gpu: bool, num_cores: int) -> str:
        """What of it disturbs a measurement, in words; empty if nothing does.

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

    hostname: str
    os: str
    cpu: str
    num_cores: int
    memory_bytes: int
    gpu: dict[str, Any] = {}
    """name, uuid, memory, driver, power limit, clocks, persistence, MIG … ; empty without a GPU"""


class Software(Frozen):
    python: str
    packages: dict[str, str]
    """version of each package that matters"""
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    container: str | None = None
    """digest of the image, from LONGCA_CONTAINER"""
    lock: str | None = None
    """digest of the lock that the packages were installed from; None where they were not"""
    env: dict[str, str] = {}
    """environment variables that change results, from a fixed list"""


class Source(Frozen):
    version: str
    git_sha: str | None
    git_dirty: bool | None


class Environment(Frozen):
    nodes: tuple[Node, ...]
    """one for each rank"""
    software: Software
    source: Source
    slurm_job: str | None = None
    """number of the Slurm job, "123_4" in an array; None outside Slurm"""


class Record(Frozen):
    """One cell's result."""

    schema_version: Literal[1] = SCHEMA_VERSION
    cell_id: str
    cell: Cell
    study: str
    run_id: str
    method_version: str
    """hash of all that defines how this number was made: see `longca.bench.run.method_version`"""
    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    work: Work | None = None
    """of a control, whatever came of it; None for attention"""
    costs: dict[str, float] = {}
    """outside the timed call: see `longca.core.costs`"""
    notes: tuple[str, ...] = ()
    """what a reader must know: repaired rows, expanded KV heads, layout"""
    others: Others | None = None
    """None where no process got as far as telling, and in records from before this was looked at"""
    environment: Environment | None = None
    """None where no process got as far as taking it"""
    started_at: str
    """UTC, ISO 8601"""
    seconds: float

    @model_validator(mode="after")
    def _consistent(self) -> "Record":
        if self.cell_id != self.cell.cell_id:
            raise ValueError(f"cell_id is {self.cell_id}, its cell gives {self.cell.cell_id}")
        status = self.outcome.status
        if status == "ok" and (self.samples is None or self.accuracy is None):
            raise ValueError("an ok record needs samples and accuracy: no timing without a passed check")
        if status == "incorrect" and self.accuracy is None:
            raise ValueError("an incorrect record needs its errors")
        if status != "ok" and self.samples is not None:
            raise ValueError(f"a record that is {status} has no samples")
        return self
