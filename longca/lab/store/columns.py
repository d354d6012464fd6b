"""The columns of the derived table, each defined once: its value, and its entry in the data dictionary."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

from longca.lab.store.view import View
from longca.lab.studies import COSTS


@dataclass(frozen=True)
class Column:
    """One column. `source` is the underlying field of the record."""

    name: str
    type: Literal["str", "int", "float", "bool", "floats"]
    unit: str
    meaning: str
    source: str
    value: Callable[[View], Any]
    """empty text or None if not applicable"""


def _texts(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items())


def _family(view: View) -> str:
    if "density" in view.cell.mask_params:
        return "block-sparse"
    return "documents" if view.cell.corpus is not None else "no documents"


def _source(view: View, field: str) -> Any:
    return getattr(view.record.environment.source, field) if view.record.environment else None


def _documents(view: View) -> str:
    drawn = view.record.mask.lengths.get("documents") if view.record.mask else None
    if drawn is None:
        return ""
    return (
        " ".join(map(str, drawn.lengths))
        if drawn.lengths
        else f"{drawn.count} from {' '.join(map(str, drawn.quantiles))}"
    )


def _as_float(count: int | None) -> float | None:
    """The number as a float: 16M tokens of full attention have more operations than 64 bits count."""
    return None if count is None else float(count)


def _largest(values: tuple[float, ...] | None) -> float | None:
    return max(values) if values else None


def _of_other_rows(view: View) -> Any:
    """Stands for the columns that do not follow from a record alone: `longca.lab.store.rows.relations`."""
    raise NotImplementedError


COLUMNS: tuple[Column, ...] = (
    # what was asked for
    Column("cell_id", "str", "", "Id of the cell: hash of its complete request", "cell_id",
           lambda v: v.record.cell_id),
    Column("study", "str", "", "Study of the record", "study", lambda v: v.record.study),
    Column("kind", "str", "", "kernel: one device; cp: context parallelism", "cell.kind",
           lambda v: v.cell.kind),
    Column("method", "str", "", "The measured method: kernel, or strategy[parameters]+kernel", "cell",
           lambda v: v.cell.method),
    Column("strategy", "str", "", "Context-parallel strategy; empty on one device", "cell.strategy",
           lambda v: v.cell.strategy or ""),
    Column("strategy_params", "str", "", "Parameters of the strategy; "
                                         "empty for the defaults", "cell.strategy_params",
           lambda v: _texts(v.cell.strategy_params)),
    Column("kernel", "str", "", "Attention operator; under cp the operator of each rank", "cell.kernel",
           lambda v: v.cell.kernel),
    Column("is_control", "bool", "", "A control: a call of known length or work, which validates the timer "
                                     "or gives a ceiling", "work",
           lambda v: v.is_control),
    Column("world", "int", "ranks", "Number of ranks", "cell.world", lambda v: v.cell.world),
    Column("mask", "str", "", "Mask pattern", "cell.mask", lambda v: v.cell.mask),
    Column("mask_family", "str", "", "no documents, documents (lengths from a corpus) or block-sparse",
           "cell.corpus, cell.mask_params", _family),
    Column("mask_params", "str", "", "Parameters of the pattern, including defaults", "cell.mask_params",
           lambda v: _texts(v.cell.mask_params)),
    Column("mask_density_asked", "float", "share", "Requested density of a block-sparse mask", "cell.mask_params.density",  # noqa: E501
           lambda v: v.cell.mask_params.get("density")),
    Column("corpus", "str", "", "Source of document lengths; empty for masks "
                                "without documents", "cell.corpus",
           lambda v: v.cell.corpus or ""),
    Column("seqlen", "int", "tokens", "Tokens over all ranks, all of them keys", "cell.seqlen",
           lambda v: v.cell.seqlen),
    Column("new_tokens", "int", "tokens", "Queries, the last tokens of the sequence: as seqlen if all are",
           "cell.new_tokens, cell.seqlen", lambda v: v.cell.num_queries),
    Column("num_q_heads", "int", "heads", "Query heads", "cell.num_q_heads", lambda v: v.cell.num_q_heads),
    Column("num_kv_heads", "int", "heads", "Key and value heads", "cell.num_kv_heads",
           lambda v: v.cell.num_kv_heads),
    Column("head_dim", "int", "", "Size of one head", "cell.head_dim", lambda v: v.cell.head_dim),
    Column("dtype", "str", "", "Type of q, k, v and of the result", "cell.dtype", lambda v: v.cell.dtype),
    Column("direction", "str", "", "fwd: forward; bwd: backward only", "cell.direction",
           lambda v: v.cell.direction),
    Column("seed", "int", "", "Seed of random values in the mask", "cell.seed", lambda v: v.cell.seed),
    Column("input_values", "str", "", "Values of q, k, v and the gradient of the output: normal, signs, "
                                      "small or constant",
           "cell.input_values", lambda v: v.cell.input_values),
    Column("sustained", "bool", "", "True if calls followed each other without pauses; otherwise each was "
                                    "timed separately, with a cold L2", "cell.sustained",
           lambda v: v.cell.sustained),
    # what happened
    Column("status", "str", "", "ok, unsupported, unavailable, oom, incorrect, "
                                "implausible, error or timeout", "outcome.status",
           lambda v: v.record.outcome.status),
    Column("reason", "str", "", "Reason for a missing number; empty for ok", "outcome", lambda v: v.reason),
    Column("notes", "str", "", "Important notes on this number", "notes",
           lambda v: "; ".join(v.record.notes)),
    # time
    Column("num_samples", "int", "calls", "Timed calls", "samples.time_ms",
           lambda v: None if v.times_ms is None else len(v.times_ms)),
    Column("time_ms_median", "float", "ms", "Median time of a call. Under cp a call lasts as long as its "
                                            "slowest rank",
           "samples.time_ms", lambda v: v.median_ms),
    Column("time_ms_q1", "float", "ms", "First quartile of the times", "samples.time_ms",
           lambda v: v.quartiles_ms[1]),
    Column("time_ms_q3", "float", "ms", "Third quartile of the times", "samples.time_ms",
           lambda v: v.quartiles_ms[3]),
    Column("time_ms_min", "float", "ms", "Shortest time", "samples.time_ms", lambda v: v.quartiles_ms[0]),
    Column("noise", "float", "share", "Interquartile range over median", "samples.time_ms",
           lambda v: v.noise),
    Column("time_ms_low", "float", "ms", "Lower end of the 95 % interval of the median, by order statistics; "
                                         "empty for fewer than six samples", "samples.time_ms",
           lambda v: v.interval_ms and v.interval_ms.low),
    Column("time_ms_high", "float", "ms", "Upper end of the same interval", "samples.time_ms",
           lambda v: v.interval_ms and v.interval_ms.high),
    Column("precision_percent", "float", "%", "Distance from the median to the farther end of its interval, "
                                              "divided by the median", "samples.time_ms",
           lambda v: v.precision_percent),
    Column("drift", "str", "", "Drift of the samples in the order of measurement: rising, falling or none; "
                               "unknown for fewer than ten. They drift if the Mann-Kendall test is "
                               "significant at 1 % and drift_percent is above 1", "samples.time_ms",
           lambda v: v.drift),
    Column("drift_percent", "float", "%", "Median of the last third of the samples minus that of the first "
                                          "third, divided by the overall median",
           "samples.time_ms", lambda v: v.drift_percent),
    Column("time_ms_mean_ranks", "float", "ms", "Median over calls of the mean over ranks: the study's "
                                                "definition of cp times",
           "samples.time_ms", lambda v: None if v.mean_times_ms is None else float(median(v.mean_times_ms))),
    Column("straggler_percent", "float", "%", "Delay of the slowest rank's median time relative to that of "
                                              "the median rank; empty on one",
           "samples.time_ms", lambda v: v.straggler_percent),
    Column("slowest_rank", "int", "", "The rank with the longest median time; "
                                      "empty on one device", "samples.time_ms",
           lambda v: v.slowest_rank),
    Column("samples_ms", "floats", "ms", "All times in the order of measurement, slowest "
                                         "rank", "samples.time_ms",
           lambda v: v.times_ms),
    Column("enqueue_ms", "float", "ms", "Host time to enqueue one call, excluded from time_ms for calls up "
                                        "to some 10 ms; if it exceeds the time of the call, a stream of such "
                                        "calls would be host-bound", "samples.enqueue_ms",
           lambda v: v.samples and v.samples.enqueue_ms),
    Column("warmup", "int", "calls", "Untimed calls before the samples", "samples.warmup",
           lambda v: v.samples and v.samples.warmup),
    Column("timer", "str", "", "cuda_event, or monotonic on a CPU", "samples.timer",
           lambda v: v.samples.timer if v.samples else ""),
    Column("warm_seconds", "float", "s", "Duration of the untimed calls, including pauses; empty in records "
                                         "of schema 1 and 2",
           "samples.warm_seconds", lambda v: v.samples and v.samples.warm_seconds),
    Column("steady", "bool", "", "True if clock and times were steady before the first sample; false if the "
                                 "time limit ended the wait; empty if not tested", "samples.steady",
           lambda v: v.samples and v.samples.steady),
    Column("duty", "float", "share", "Largest share of time in which calls kept the GPU busy; empty without "
                                     "rests: CPUs, sustained calls, and records of schema 1 and 2",
           "samples.duty", lambda v: v.samples and v.samples.duty),
    Column("stopped", "str", "", "Stopping criterion of the samples: precision of their median, their number "
                                 "(repeats) or time",
           "samples.stopped", lambda v: v.samples.stopped if v.samples else ""),
    Column("playoff", "str", "", "The play-off: kernels of one case, timed in turn in one process. All its "
                                 "rows have this id; empty in "
           "the row of the cell itself", "playoff", lambda v: v.record.playoff or ""),
    Column("repeat", "bool", "", "The cell was measured a second time, to learn how much such numbers "
                                 "differ: it has a row of its own "
           "as well. In a play-off: the player's twin, the "
           "same kernel under a second name", "repeat", lambda v: v.record.repeat),
    Column("playoff_rounds", "floats", "", "Of a play-off: the round of each sample; samples of one round "
                                           "are a pair", "turns",
           lambda v: tuple(map(float, v.record.turns.rounds)) if v.record.turns else None),
    Column("playoff_end", "str", "", "In a play-off, why its rounds ended: decided, rounds or time", "turns",
           lambda v: v.record.turns.ending if v.record.turns else ""),
    # work and speed
    Column("area", "int", "pairs", "Visible query-key pairs, exact, summed over head groups", "mask.area",
           lambda v: v.record.mask and v.record.mask.area),
    Column("density", "float", "share", "Visible share of all pairs", "mask.area", lambda v: v.density),
    Column("flops", "float", "FLOP", "Operations from the exact area of the sampled mask: 4 · area · query "
                                     "heads · head dim forward, × 2.5 backward; work on masked pairs inside "
                                     "partial tiles is not counted. For a matrix product of N × N: 2 · N³",
           "mask.area, cell, work.flops", lambda v: _as_float(v.flops)),
    Column("nominal_flops", "float", "FLOP", "The same from requested density · length², as the study counts "
                                             "block-sparse masks; the sampled mask may have more or fewer "
                                             "pairs", "cell", lambda v: _as_float(v.nominal_flops)),
    Column("tflops", "float", "TFLOP/s", "flops over median time, total of all ranks", "mask.area, "
                                                                                       "samples.time_ms",
           lambda v: v.tflops(v.median_ms)),
    Column("nominal_tflops", "float", "TFLOP/s", "nominal_flops over median time, for comparison with the "
                                                 "study", "cell, samples.time_ms",
           lambda v: v.nominal_tflops),
    Column("tflops_per_device", "float", "TFLOP/s", "tflops over the number of ranks", "mask.area, "
                                                                                       "samples.time_ms",
           lambda v: v.per_device(v.median_ms)),
    Column("tflops_per_device_low", "float", "TFLOP/s", "The same at the third quartile of the times",
           "mask.area, samples.time_ms", lambda v: v.per_device(v.quartiles_ms[3])),
    Column("tflops_per_device_high", "float", "TFLOP/s", "The same at the first quartile of the times",
           "mask.area, samples.time_ms", lambda v: v.per_device(v.quartiles_ms[1])),
    Column("tflops_per_device_mean_ranks", "float", "TFLOP/s", "The same from time_ms_mean_ranks", "mask.area, samples.time_ms",  # noqa: E501
           lambda v: v.per_device(None if v.mean_times_ms is None else float(median(v.mean_times_ms)))),
    Column("peak_tflops", "float", "TFLOP/s", "Peak rate of the GPU in this dtype; empty without a source",
           "config/hardware.yaml", _of_other_rows),
    Column("peak_percent", "float", "%", "tflops_per_device over peak_tflops; for a copy, gb_per_s over the "
                                         "GPU's bandwidth",
           "mask.area, work, samples.time_ms", _of_other_rows),
    Column("nominal_ms", "float", "ms", "Nominal duration of a control", "work.duration_ms",
           lambda v: v.record.work and v.record.work.duration_ms),
    Column("traffic_bytes", "int", "bytes", "Nominal bytes read and written by a copy", "work.traffic_bytes",
           lambda v: v.record.work and v.record.work.traffic_bytes),
    Column("gb_per_s", "float", "GB/s", "traffic_bytes over median time", "work.traffic_bytes, "
                                                                          "samples.time_ms",
           lambda v: v.gb_per_s),
    Column("ceiling_tflops", "float", "TFLOP/s", "Rate of a large matrix product in the same study, on the "
                                                 "same device, in the same dtype; empty if none was measured",
           "the records of matmul", _of_other_rows),
    Column("ceiling_gb_per_s", "float", "GB/s", "Rate of a copy within device memory in the same study, on "
                                                "the same device",
           "the records of device_copy", _of_other_rows),
    Column("ceiling_percent", "float", "%", "tflops_per_device of attention over ceiling_tflops",
           "mask.area, samples.time_ms, the records of matmul", _of_other_rows),
    Column("single_tflops", "float", "TFLOP/s", "Under cp, the rate of the same kernel on one such device, "
                                                "in the same study, with the same mask (all tokens of all "
                                                "ranks), heads and direction; empty if not measured", "the "
                                                                                                      "records of the kernel",  # noqa: E501
           _of_other_rows),
    Column("single_percent", "float", "%", "tflops_per_device over single_tflops: efficiency relative to a "
                                           "single GPU with the whole mask",
           "mask.area, samples.time_ms, the records of the kernel", _of_other_rows),
    # correctness
    Column("error_reference", "str", "", "Reference of the check", "accuracy.reference",
           lambda v: v.accuracy.reference if v.accuracy else ""),
    Column("error_scope", "str", "", "Compared part", "accuracy.scope",
           lambda v: v.accuracy.scope if v.accuracy else ""),
    Column("error_tensor", "str", "", "The tensor with the largest ratio of error to budget", "accuracy",
           lambda v: v.worst_tensor or ""),
    Column("error", "float", "relative", "That tensor's error: ‖x − reference‖ / "
                                         "‖reference‖", "accuracy.relative",
           lambda v: v.error(v.worst_tensor)),
    Column("error_budget", "float", "relative", "Error budget of its inputs and dtype", "accuracy.budget",
           lambda v: v.accuracy.budget[v.worst_tensor] if v.accuracy and v.worst_tensor else None),
    Column("budget_ratio", "float", "", "error over error_budget, or the same ratio of the worst row if that "
                                        "is larger: incorrect above 1",
           "accuracy", lambda v: v.budget_ratio(v.worst_tensor)),
    Column("error_out", "float", "relative", "Error of the result", "accuracy.relative.out",
           lambda v: v.error("out")),
    Column("error_lse", "float", "relative", "Error of the log-sum-exp", "accuracy.relative.lse",
           lambda v: v.error("lse")),
    Column("error_dq", "float", "relative", "Error of the gradient of q", "accuracy.relative.dq",
           lambda v: v.error("dq")),
    Column("error_dk", "float", "relative", "Error of the gradient of k", "accuracy.relative.dk",
           lambda v: v.error("dk")),
    Column("error_dv", "float", "relative", "Error of the gradient of v", "accuracy.relative.dv",
           lambda v: v.error("dv")),
    Column("max_abs_error", "float", "", "Largest absolute error of any tensor", "accuracy.max_abs",
           lambda v: _largest(tuple(v.accuracy.max_abs.values())) if v.accuracy else None),
    Column("empty_rows_ok", "bool", "", "True if rows without keys gave 0; empty if the mask has none",
           "accuracy.empty_rows_ok",
           lambda v: v.accuracy.empty_rows_ok if v.accuracy else None),
    Column("deterministic", "bool", "", "True if the bits of all gradients were the same in several runs, of "
           "kernels that promise this; false if they were not; empty for others, and in older records",
           "accuracy.deterministic", lambda v: v.accuracy.deterministic if v.accuracy else None),
    # memory and costs outside the timed call
    Column("peak_bytes", "int", "bytes", "Peak memory of one call above what was resident, largest rank",
           "memory.peak_bytes", lambda v: _largest(v.memory.peak_bytes) if v.memory else None),
    Column("absolute_peak_bytes", "int", "bytes", "Peak memory, largest rank", "memory.absolute_peak_bytes",
           lambda v: _largest(v.memory.absolute_peak_bytes) if v.memory else None),
    Column("above_shards_bytes", "int", "bytes", "Under cp, peak memory of a rank beyond its shards of q, k, "
           "v, the result and all gradients: buffers, plans and tensors saved for backward; largest rank",
           "memory.above_shards_bytes",
           lambda v: _largest(v.memory.above_shards_bytes) if v.memory else None),
    Column("memory_source", "str", "", "cuda_allocator, or resident_set on a CPU", "memory.source",
           lambda v: v.memory.source if v.memory else ""),
    *(Column(cost.name, "float", cost.unit, cost.meaning, f"costs.{cost.name}",
             partial(View.cost, name=cost.name)) for cost in COSTS),
    Column("costs", "str", "", "All costs outside of the timed call", "costs",
           lambda v: _texts({name: f"{value:g}" for name, value in v.record.costs.items()})),
    # the mask that was used
    Column("mask_digest", "str", "", "Digest of the visible pairs: equal masks "
                                     "have equal digests", "mask.digest",
           lambda v: v.record.mask.digest if v.record.mask else ""),
    Column("num_bands", "int", "bands", "Number of bands of the mask", "mask.num_bands",
           lambda v: v.record.mask and v.record.mask.num_bands),
    Column("document_lengths", "str", "tokens", "Sampled lengths of documents, in order; for more than 512, "
                                                "their number and five quantiles. Empty without documents, "
                                                "and in records of schema 2 and "
                                                "older", "mask.lengths", _documents),
    Column("drawn", "str", "", "Random values: documents, prefix …", "mask.drawn",
           lambda v: _texts(dict(v.record.mask.drawn)) if v.record.mask else ""),
    # the state of the GPU
    Column("sm_clock_mhz_median", "float", "MHz", "Median SM clock during the samples, rank 0; in records of "
                                                  "schema 1 and 2 right after "
           "each", "samples.sm_clock_mhz",
           lambda v: float(median(v.samples.sm_clock_mhz)) if v.samples and v.samples.sm_clock_mhz else None),
    Column("mega_cycles_median", "float", "10⁶ cycles", "Median of time × SM clock, rank 0: the cost of a "
                                                        "call independent of the clock. In records of schema "
                                                        "1 and 2 the clock was read after the call, where it "
                                                        "is up to a quarter higher than during a long one",
           "samples.time_ms, samples.sm_clock_mhz", lambda v: v.mega_cycles),
    Column("clock_event_reasons", "str", "", "Clock throttle reasons of the "
                                             "GPU", "samples.clock_event_reasons",
           lambda v: "; ".join(v.samples.clock_event_reasons) if v.samples else ""),
    Column("power_w_median", "float", "W", "Median power, rank 0", "samples.power_w",
           lambda v: float(median(v.samples.power_w)) if v.samples and v.samples.power_w else None),
    Column("joules_per_token", "float", "J", "Energy per token of a call of all ranks, with the power of "
                                             "rank 0. Only for calls without pauses, and calls without rests "
                                             "of at least 160 ms: the power reading is a mean over a second",
           "samples.power_w, samples.time_ms", lambda v: v.joules_per_token),
    Column("temperature_c_max", "float", "°C", "Highest temperature, rank 0", "samples.temperature_c",
           lambda v: _largest(v.samples.temperature_c) if v.samples else None),
    # what else ran meanwhile
    Column("disturbed", "bool", "", "Other processes used the device: at least 5 % of a GPU (or, if the "
                                    "driver does not report usage, had it open); on a CPU, more than half a "
                                    "core and a tenth of all; empty if unknown. The next run measures the "
                                    "cell again, once", "others",
           lambda v: None if v.disturbance is None else bool(v.disturbance)),
    Column("others_gpu_processes", "int", "processes", "Number of other processes with the GPU open, largest "
                                                       "rank", "others.gpu_processes",
           lambda v: v.record.others and v.record.others.gpu_processes),
    Column("others_gpu_percent", "float", "%", "Largest share of an NVML sampling period in which one of "
                                               "them kept the GPU busy, largest rank", "others.gpu_percent",
           lambda v: v.record.others and v.record.others.gpu_percent),
    Column("others_cpu_cores", "float", "cores", "CPU cores kept busy by other processes, mean, on the "
                                                 "busiest machine",
           "others.cpu_cores", lambda v: v.record.others and v.record.others.cpu_cores),
    # where and with what
    Column("device", "str", "", "Model of the GPU, or of the CPU that did the "
                                "work", "environment.nodes", lambda v: v.device),
    Column("device_type", "str", "", "cuda or cpu", "samples.timer, "
                                                    "environment.nodes", lambda v: v.device_type),
    Column("device_uuid", "str", "", "Tells the device from others of its model: the UUID of rank 0's GPU, "
                                     "the machine of a CPU",
           "environment.nodes", lambda v: next(iter(v.units), "")),
    Column("gpus", "str", "", "UUIDs of the GPUs that took part, in the "
                              "order of ranks; empty on a CPU", "environment.nodes.gpu",
           lambda v: v.unit if v.device_type == "cuda" else ""),
    Column("hostname", "str", "", "Machine of rank 0", "environment.nodes", lambda v: v.node.hostname if v.node else ""),  # noqa: E501
    Column("num_nodes", "int", "machines", "Machines that took part", "environment.nodes",
           lambda v: len({node.hostname for node in v.record.environment.nodes}) if v.record.environment else None),  # noqa: E501
    Column("driver", "str", "", "GPU driver", "environment.nodes.gpu",
           lambda v: str(v.node.gpu.get("driver", "")) if v.node else ""),
    Column("python", "str", "", "Version of Python", "environment.software",
           lambda v: v.software.python if v.software else ""),
    Column("torch", "str", "", "Version of PyTorch", "environment.software", lambda v: v.package("torch")),
    Column("triton", "str", "", "Version of Triton", "environment.software", lambda v: v.package("triton")),
    Column("cuda", "str", "", "Version of CUDA", "environment.software",
           lambda v: (v.software and v.software.cuda) or ""),
    Column("cudnn", "str", "", "Version of cuDNN", "environment.software",
           lambda v: (v.software and v.software.cudnn) or ""),
    Column("nccl", "str", "", "Version of NCCL", "environment.software",
           lambda v: (v.software and v.software.nccl) or ""),
    Column("container", "str", "", "Digest of the image", "environment.software",
           lambda v: (v.software and v.software.container) or ""),
    Column("lock", "str", "", "Digest of the lock of the installed "
                              "packages; empty without one", "environment.software",
           lambda v: (v.software and v.software.lock) or ""),
    Column("environment", "str", "", "Digest of the installed software of rank 0; its listing comes with the "
                                     "records. Empty if unknown, as in "
                                     "records of schema 2 and older", "environment.ranks",
           lambda v: v.ran_in.installed if v.ran_in else ""),
    Column("loaded_software", "str", "", "Digest of the software that rank 0 had loaded after the cell: "
                                         "shared objects by build id, and modules without a distribution",
           "environment.ranks", lambda v: (v.ran_in and v.ran_in.loaded) or ""),
    # provenance
    Column("asked", "str", "", "Requested measurement settings: repeats, limits; empty in records of schema "
                               "2 and older",
           "measure", lambda v: _texts(v.record.measure)),
    Column("method_version", "str", "", "Hash of the definition of the measurement", "method_version",
           lambda v: v.record.method_version),
    Column("slurm_job", "str", "", "Slurm job; empty outside Slurm", "environment.slurm_job",
           lambda v: (v.record.environment and v.record.environment.slurm_job) or ""),
    Column("run_id", "str", "", "Id of the run", "run_id", lambda v: v.record.run_id),
    Column("git_sha", "str", "", "Commit of the code", "environment.source",
           lambda v: _source(v, "git_sha") or ""),
    Column("git_dirty", "bool", "", "True if the code had uncommitted changes", "environment.source",
           lambda v: _source(v, "git_dirty")),
    Column("longca", "str", "", "Version of longca", "environment.source",
           lambda v: _source(v, "version") or ""),
    Column("started_at", "str", "UTC", "Start of the measurement", "started_at",
           lambda v: v.record.started_at),
    Column("seconds", "float", "s", "Duration of the whole cell", "seconds", lambda v: v.record.seconds),
    Column("schema_version", "int", "", "Schema of the record", "schema_version",
           lambda v: v.record.schema_version),
)
