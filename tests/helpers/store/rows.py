"""Rows of the derived table, from records of one cell."""

from longca.core.hardware import load_hardware
from longca.lab.store.table import columns
from longca.lab.studies.cell import Cell
from longca.lab.studies.record import MaskFacts, Samples
from tests.helpers.records import record

CELL = Cell(
    kind="kernel",
    kernel="sdpa",
    mask="causal",
    seqlen=100,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    dtype="bf16",
    direction="fwd",
)
FACTS = MaskFacts(digest="0" * 16, area=5050, num_groups=1, num_bands=1)


def rows(records, hardware=None):
    """One dictionary a record."""
    values = columns(records, hardware)
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def one(cell=CELL, outcome=None, **fields):
    return rows([record(cell, outcome, **{"mask": FACTS, **fields})], load_hardware())[0]


def samples(*ranks, timer="monotonic", **fields):
    return Samples(time_ms=ranks, warmup=1, timer=timer, **fields)


def control(kernel, **changes):
    return CELL.model_copy(update={"kernel": kernel, "mask": "full", "seqlen": 2048, **changes})


def changed(**fields):
    return Cell(**CELL.model_dump() | fields)
