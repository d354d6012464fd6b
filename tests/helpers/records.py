"""Records that no machine measured: whole studies of plausible, repeatable numbers, for tests of the store
and of the page."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from longca.core.schema import Work
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import (
    Failed,
    Implausible,
    Incorrect,
    Ok,
    Outcome,
    OutOfMemory,
    TimedOut,
    Unavailable,
    Unsupported,
)
from longca.lab.studies.record import (
    Accuracy,
    Environment,
    MaskFacts,
    Memory,
    Node,
    Record,
    Samples,
    Software,
    Source,
)

DOCUMENT_MASKS = (
    "full_document",
    "causal_document",
    "shared_question",
    "causal_blockwise",
    "prefix_lm_document",
)
STATIC_MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {},
    "full_document": {},
    "causal_document": {},
    "sliding_window": {"window": 256},
    "causal_sliding_window": {"window": 256},
    "shared_question": {},
    "causal_blockwise": {},
    "prefix_lm": {},
    "prefix_lm_document": {},
    "global_sliding_window": {"num_global": 64, "window": 128},
    "block_causal_document": {"block": 128},
}
SPARSE_MASKS = [
    ("block_sparse_uniform", {"block": 64, "density": 0.2, "scores": "random"}),
    ("block_sparse_uniform", {"block": 64, "density": 0.5, "scores": "random"}),
    ("block_sparse_variable", {"mean_block": 128, "density": 0.5}),
]
DENSITY: dict[str, Callable[[int, dict[str, Any]], float]] = {
    "full": lambda s, p: 1.0,
    "causal": lambda s, p: (s + 1) / (2 * s),
    "full_document": lambda s, p: 0.26,
    "causal_document": lambda s, p: 0.13,
    "sliding_window": lambda s, p: min(1.0, (2 * p["window"] + 1) / s),
    "causal_sliding_window": lambda s, p: min(0.5, (p["window"] + 1) / s),
    "shared_question": lambda s, p: 0.21,
    "causal_blockwise": lambda s, p: 0.19,
    "prefix_lm": lambda s, p: 0.61,
    "prefix_lm_document": lambda s, p: 0.17,
    "global_sliding_window": lambda s, p: min(1.0, (2 * p["window"] + 2 * p["num_global"]) / s),
    "block_causal_document": lambda s, p: 0.18,
    "block_sparse_uniform": lambda s, p: p["density"],
    "block_sparse_variable": lambda s, p: p["density"],
}
CONTROLS: dict[str, Callable[[Cell], Work]] = {
    "control": lambda cell: Work(duration_ms=cell.seqlen / 1024),
    "matmul": lambda cell: Work(flops=2 * cell.seqlen**3),
    "device_copy": lambda cell: Work(traffic_bytes=4 * cell.seqlen * cell.num_q_heads * cell.head_dim),
}
CONTROL_ACCURACY = {
    "control": Accuracy(
        reference="nominal duration", scope="all", relative={"time": 0.0031}, budget={"time": 0.05}
    ),
    "matmul": Accuracy(
        reference="float64", scope="64 of 2048 rows", relative={"out": 0.0017}, budget={"out": 0.0039}
    ),
    "device_copy": Accuracy(
        reference="the source", scope="all", relative={"copy": 0.0}, budget={"copy": 0.0}
    ),
}
Rate = Callable[[float], float]  # density → TFLOP/s of visible pairs


def quick_study() -> list[Record]:
    """The quick study on a CPU, with one cell of every kind of misfortune."""
    return list(_quick_study())


def gpu_study(gpu: str = "NVIDIA H200") -> list[Record]:
    """Some dense kernels on a GPU: two head counts, three seeds of documents, longer sequences, every clock
    recorded."""
    return list(_gpu_study(gpu))


@cache
def _quick_study() -> tuple[Record, ...]:
    speeds: dict[str, Rate] = {
        "naive": lambda d: 0.021 * d,
        "sdpa": lambda d: 0.068 * d,
        "flex": lambda d: 0.055 * d / (d + 0.08),
    }
    return tuple(record for cell in _quick_cells() if (record := _quick_record(cell, speeds)))


@cache
def _gpu_study(gpu: str) -> tuple[Record, ...]:
    speeds: dict[str, Rate] = {
        "naive": lambda d: 60 * d,
        "sdpa": lambda d: 350 * d,
        "flex": lambda d: 490 * d / (d + 0.05),
        "fa2": lambda d: 360 * d / (d + 0.02),
        "fa3": lambda d: 700 * d / (d + 0.03),
        "cudnn": lambda d: 660 * d / (d + 0.03),
        "flashmask": lambda d: 420 * d / (d + 0.04),
    }
    records = []
    for mask, params in STATIC_MASKS.items():
        for seed in (0, 1, 2) if mask in DOCUMENT_MASKS else (0,):
            for kernel, heads, seqlen, direction in _product(
                speeds, (8, 64), (4096, 8192, 16384, 32768), ("fwd", "bwd")
            ):
                cell = _cell(
                    kernel, mask, params, seqlen, direction, heads=(64, heads), head_dim=128, seed=seed
                )
                records.append(_gpu_record(cell, speeds, gpu))
    for kernel, seqlen in (("control", 1024), ("matmul", 8192), ("matmul", 16384), ("device_copy", 65536)):
        records.append(record(_cell(kernel, "full", {}, seqlen, "fwd", heads=(64, 8), head_dim=128), gpu=gpu))
    return tuple(records)


def record(
    cell: Cell, outcome: Outcome | None = None, *, tflops: float = 0.05, gpu: str = "", **fields: Any
) -> Record:
    """One record of that cell; an ok one has samples at about that many TFLOP/s, or of what controls are made
    to do."""
    rng = np.random.default_rng(int(hashlib.sha256(f"{cell.cell_id}{gpu}".encode()).hexdigest()[:12], 16))
    outcome = outcome or Ok()
    facts = _facts(cell, rng)
    content: dict[str, Any] = {
        "cell_id": cell.cell_id,
        "cell": cell,
        "study": "h200" if gpu else "quick",
        "run_id": "20261120-100000-7f3a",
        "method_version": hashlib.sha256(f"{cell.method}{gpu}".encode()).hexdigest()[:12],
        "outcome": outcome,
        "work": CONTROLS[cell.kernel](cell) if cell.kernel in CONTROLS else None,
        "mask": None if outcome.status == "unavailable" else facts,
        "environment": _environment(gpu, cell.world),
        "started_at": f"2026-11-20T10:{rng.integers(0, 60):02d}:{rng.integers(0, 60):02d}Z",
        "seconds": round(float(rng.uniform(0.2, 9)), 3),
    }
    if outcome.status in ("ok", "incorrect"):
        content["accuracy"] = _accuracy(cell, rng, 9.0 if outcome.status == "incorrect" else 0.5)
    if outcome.status == "ok":
        time_ms = (
            control_ms(cell, gpu)
            if cell.kernel in CONTROLS
            else cell.flops(facts.area, facts.num_groups) / tflops / 1e9
        )
        content |= {
            "samples": _samples(cell, rng, time_ms, gpu),
            "memory": _memory(cell, rng, gpu),
            "costs": {
                "mask_ms": 0.31,
                "plan_ms": round(float(rng.uniform(0.1, 2)), 3),
                "oracle_ms": 41.5,
                "metadata_bytes": 4096.0,
            },
        }
    return Record(**(content | fields))


def control_ms(cell: Cell, gpu: str = "") -> float:
    """The duration of a control: products at 740 TFLOP/s on a GPU or 0.12 elsewhere, copies at 4000 GB/s or
    12."""
    work = CONTROLS[cell.kernel](cell)
    tflops, gb_per_s = (740, 4000) if gpu else (0.12, 12)
    return work.duration_ms or (work.flops or 0) / tflops / 1e9 + (work.traffic_bytes or 0) / gb_per_s / 1e6


def _quick_cells() -> Iterator[Cell]:
    kernels = ("naive", "sdpa", "flex")
    for (mask, params), kernel, seqlen, direction in _product(
        STATIC_MASKS.items(), kernels, (512, 1024, 2048), ("fwd", "bwd")
    ):
        yield _cell(kernel, mask, params, seqlen, direction)
    for (mask, params), kernel, seqlen, direction in _product(
        SPARSE_MASKS, kernels, (1024, 2048), ("fwd", "bwd")
    ):
        yield _cell(kernel, mask, params, seqlen, direction)
    for seqlen in (512, 1024, 2048):
        yield _cell("control", "full", {}, seqlen, "fwd")
    yield _cell("matmul", "full", {}, 2048, "fwd")
    yield _cell("device_copy", "full", {}, 1 << 18, "fwd")
    for (mask, params), direction in _product(STATIC_MASKS.items(), ("fwd", "bwd")):
        yield _cell("sdpa", mask, params, 1024, direction, strategy="ulysses", world=2)


def _quick_record(cell: Cell, speeds: dict[str, Rate]) -> Record:
    at = (cell.kernel, cell.mask, cell.seqlen, cell.direction)
    density = DENSITY[cell.mask](cell.seqlen, cell.mask_params)
    slower = (0.8 if cell.direction == "bwd" else 1) * (cell.seqlen / 2048) ** 0.3
    tflops = speeds.get(cell.kernel, lambda d: 1.0)(density) * slower
    if cell.kernel == "flex" and cell.direction == "bwd":
        return record(cell, Unsupported(reason="FlexAttention has no backward on a CPU"))
    if cell.kernel == "flex" and cell.mask == "block_sparse_variable":
        return record(cell, Unavailable(reason="module 'triton' is not installed"))
    if at == ("naive", "full", 2048, "bwd"):
        return record(cell, OutOfMemory(requested_bytes=3 << 30, where="bwd"))
    if at == ("sdpa", "prefix_lm", 2048, "fwd"):
        return record(cell, Incorrect(reason="out is off by 0.031, allowed is 0.0034"))
    if at == ("sdpa", "causal_blockwise", 1024, "bwd") and cell.kind == "kernel":
        log = (
            'Traceback (most recent call last):\n  File "sdpa.py", line 80, in backward\nRuntimeError: '
            'Inplace <update> & "co"'
        )
        return record(
            cell, Failed(type="RuntimeError", message='Inplace <update> of an input & "co"', log=log)
        )
    if at == ("naive", "prefix_lm_document", 2048, "bwd"):
        return record(cell, TimedOut(seconds=120))
    if at == ("naive", "shared_question", 2048, "bwd"):
        return record(cell, Implausible(reason="4 000 TFLOP/s, and this CPU has at most 3.1"))
    return record(cell, tflops=tflops * 1.7 if cell.kind == "cp" else tflops)


def _gpu_record(cell: Cell, speeds: dict[str, Rate], gpu: str) -> Record:
    density = DENSITY[cell.mask](cell.seqlen, cell.mask_params)
    if cell.kernel == "naive" and cell.seqlen >= 32768:
        return record(
            cell, OutOfMemory(requested_bytes=64 * cell.seqlen**2 * 2, where=cell.direction), gpu=gpu
        )
    if cell.kernel == "fa3" and cell.mask in ("prefix_lm", "global_sliding_window", "shared_question"):
        return record(cell, Unsupported(reason="FA3 takes causal, window and document masks only"), gpu=gpu)
    if cell.kernel == "cudnn" and cell.num_kv_heads == 64:
        return record(cell, Unavailable(reason="module 'cudnn' is not installed"), gpu=gpu)
    efficiency = 1 / (1 + 1500 / cell.seqlen) * (0.85 if cell.direction == "bwd" else 1)
    return record(cell, tflops=speeds[cell.kernel](density) * efficiency, gpu=gpu)


def _cell(
    kernel: str,
    mask: str,
    params: dict[str, Any],
    seqlen: int,
    direction: Any,
    *,
    heads: tuple[int, int] = (8, 2),
    head_dim: int = 64,
    seed: int = 0,
    strategy: str | None = None,
    world: int = 1,
) -> Cell:
    return Cell(
        kind="cp" if strategy else "kernel",
        kernel=kernel,
        strategy=strategy,
        world=world,
        mask=mask,
        mask_params=params,
        corpus="pile" if mask in DOCUMENT_MASKS else None,
        seqlen=seqlen,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        dtype="bf16",
        direction=direction,
        seed=seed,
    )


def _product(*axes: Any) -> Iterator[tuple[Any, ...]]:
    import itertools

    return itertools.product(*axes)


def _facts(cell: Cell, rng: np.random.Generator) -> MaskFacts:
    area = int(DENSITY[cell.mask](cell.seqlen, cell.mask_params) * cell.num_pairs * (1 + 0.2 * cell.seed))
    drawn = {"num_documents": 7, "longest_document": cell.seqlen // 4} if cell.corpus else {}
    groups = cell.num_kv_heads if "density" in cell.mask_params else 1
    return MaskFacts(
        digest=f"{rng.integers(1 << 62):016x}",
        area=area * groups,
        num_groups=groups,
        num_bands=11,
        drawn=drawn,
    )


def _samples(cell: Cell, rng: np.random.Generator, time_ms: float, gpu: str) -> Samples:
    spread = 0.004 if gpu or cell.kernel in CONTROLS else 0.03
    ranks = [
        [
            round(float(time_ms * (1 + spread * abs(rng.normal())) * (1 + 0.05 * (step == 0))), 5)
            for step in range(10 if gpu else 5)
        ]
        for _ in range(cell.world)
    ]
    if not gpu:
        return Samples(time_ms=ranks, warmup=1, timer="monotonic")
    return Samples(
        time_ms=ranks,
        warmup=3,
        timer="cuda_event",
        sm_clock_mhz=[1980.0 - 15 * (step % 3) for step in range(10)],
        clock_event_reasons=("sw_power_cap",) if cell.seqlen >= 32768 else (),
        power_w=[640.0] * 10,
        temperature_c=[58.0] * 10,
    )


def _accuracy(cell: Cell, rng: np.random.Generator, scale: float) -> Accuracy:
    if cell.kernel in CONTROLS:
        return CONTROL_ACCURACY[cell.kernel]
    tensors = ("out", "lse") if cell.direction == "fwd" else ("out", "dq", "dk", "dv")
    budget = dict.fromkeys(tensors, 0.0034)
    relative = {tensor: float(0.0034 * scale * rng.uniform(0.7, 1.1)) for tensor in tensors}
    return Accuracy(
        reference="float64",
        scope="all",
        relative=relative,
        max_abs=dict.fromkeys(tensors, 0.01),
        budget=budget,
    )


def _memory(cell: Cell, rng: np.random.Generator, gpu: str) -> Memory:
    row = cell.seqlen * 4 if cell.kernel == "naive" else cell.head_dim * 6
    peak = int(
        cell.num_q_heads * cell.seqlen * row * (2 if cell.direction == "bwd" else 1) * rng.uniform(0.95, 1.05)
    )
    return Memory(
        peak_bytes=[peak] * cell.world,
        absolute_peak_bytes=[peak + (400 << 20)] * cell.world,
        source="cuda_allocator" if gpu else "resident_set",
    )


def _environment(gpu: str, world: int) -> Environment:
    facts = (
        {
            "name": gpu,
            "uuid": "GPU-00000000",
            "memory_bytes": 150754820096,
            "driver": "580.159",
            "power_limit_w": 700.0,
            "ecc": True,
            "mig": False,
        }
        if gpu
        else {}
    )
    node = Node(
        hostname="gpu-07" if gpu else "bench",
        os="Linux-6.1-x86_64",
        cpu="Example CPU @ 2.1 GHz",
        num_cores=16 if gpu else 2,
        memory_bytes=128 << 30 if gpu else 8 << 30,
        gpu=facts,
    )
    packages = (
        {"torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "2.4.6"}
        if gpu
        else {"torch": "2.13.0+cpu", "numpy": "2.4.6"}
    )
    software = Software(
        python="3.11.9",
        packages=packages,
        cuda="13.0" if gpu else None,
        cudnn="9.19.0" if gpu else None,
        env={"OMP_NUM_THREADS": "2"},
    )
    return Environment(
        nodes=[node] * world,
        software=software,
        source=Source(version="0.1.0", git_sha="3f9d2c1" + "0" * 33, git_dirty=False),
    )
