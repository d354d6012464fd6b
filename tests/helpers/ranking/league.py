"""Records of kernels in a fixed order and in any order, whose bits were compared or not."""

from typing import Any

from longca.lab.studies import Record
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Incorrect, Outcome, Unsupported
from tests.helpers.records import record

H200 = "NVIDIA H200"
IN_ANY_ORDER = {"fa3": 640.0, "fa4": 650.0, "flex": 430.0}
PROMISING = {"band": 600.0, "fa3_deterministic": 480.0, "fa4_deterministic": 520.0}
MASKS = ("causal", "full", "prefix_lm")


def league_cell(kernel: str, mask: str = "causal", direction: Any = "bwd", seqlen: int = 8192) -> Cell:
    return Cell(
        kind="kernel",
        kernel=kernel,
        mask=mask,
        seqlen=seqlen,
        num_q_heads=64,
        num_kv_heads=8,
        head_dim=128,
        dtype="bf16",
        direction=direction,
    )


def with_bits(measured: Record, same: bool | None = True) -> Record:
    """The record with what the comparison of its bits said."""
    assert measured.accuracy is not None
    runs = 0 if same is None else 4
    accuracy = measured.accuracy.model_copy(update={"deterministic": same, "bit_runs": runs})
    return measured.model_copy(update={"accuracy": accuracy})


def dense_records() -> list[Record]:
    """A study of all kernels in any order, forward and backward; `band` was not asked for its bits."""
    return [
        record(league_cell(kernel, mask, direction), tflops=tflops, gpu=H200, study="dense")
        for mask in MASKS
        for direction in ("fwd", "bwd")
        for kernel, tflops in {**IN_ANY_ORDER, "band": 600.0}.items()
    ]


def league_records(**fields: Any) -> list[Record]:
    """A study of backward in a fixed order: `fa4_deterministic` cannot do one mask, and under another the
    bits of `fa3_deterministic` differ."""
    records = []
    for mask in MASKS:
        for kernel, tflops in PROMISING.items():
            outcome: Outcome | None = None
            if (kernel, mask) == ("fa4_deterministic", "prefix_lm"):
                outcome = Unsupported(reason="no lists of blocks")
            if (kernel, mask) == ("fa3_deterministic", "full"):
                outcome = Incorrect(reason="not deterministic: 4 backward calls gave 2 different dq")
            made = record(
                league_cell(kernel, mask), outcome, tflops=tflops, gpu=H200, study="deterministic", **fields
            )
            records.append(made if made.accuracy is None else with_bits(made, outcome is None))
    return records
