"""Cells and records of two runs, made up."""

from typing import Any

from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Outcome
from longca.lab.studies.record import MaskFacts, Record, Samples
from tests.helpers.records import record

H200 = "NVIDIA H200"
H100 = "NVIDIA H100 80GB HBM3"


def cell(**fields: Any) -> Cell:
    asked: dict[str, Any] = {
        "kind": "kernel",
        "kernel": "fa3",
        "mask": "causal",
        "seqlen": 8192,
        "num_q_heads": 64,
        "num_kv_heads": 8,
        "head_dim": 128,
        "dtype": "bf16",
        "direction": "fwd",
    }
    return Cell(**asked | fields)


def timed(
    ms: float = 1.0,
    spread: float = 0.001,
    *,
    gpu: str = H200,
    digest: str = "0" * 16,
    asked: Cell | None = None,
    **fields: Any,
) -> Record:
    """A record with five times around `ms`, the first and third quartile `spread` of it away."""
    asked = asked or cell()
    times = tuple(ms * (1 + spread * step) for step in (-2, -1, 0, 1, 2))
    samples = Samples(time_ms=(times,) * asked.world, warmup=1, timer="cuda_event")
    return record(asked, gpu=gpu, **{"mask": _mask(asked, digest), "samples": samples} | fields)


def failed(outcome: Outcome, asked: Cell | None = None) -> Record:
    """A record with the same mask and without a time."""
    asked = asked or cell()
    return record(asked, outcome, gpu=H200, mask=_mask(asked, "0" * 16))


def _mask(asked: Cell, digest: str) -> MaskFacts:
    return MaskFacts(digest=digest, area=asked.seqlen * (asked.seqlen + 1) // 2, num_groups=1, num_bands=1)
