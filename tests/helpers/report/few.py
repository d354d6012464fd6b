"""Input for pages of tests: a few records, and a file that is no record."""

from pathlib import Path

from longca.lab.store.cells import UnusableFile
from longca.lab.studies.record import Record
from tests.helpers.records import quick_study

DAMAGED = UnusableFile(
    Path("results/quick/cells/ab/ab12cd34.json"), "is damaged (not JSON: cut off or overwritten)"
)


def few() -> list[Record]:
    """A few records of the quick study that have figures of kernels, of strategies and of densities."""
    return [
        entry
        for entry in quick_study()
        if entry.work is not None
        or (entry.cell.kind == "cp" and entry.cell.mask == "causal")
        or (
            entry.cell.mask in ("full", "block_sparse_uniform")
            and entry.cell.seqlen == 2048
            and entry.cell.kernel != "flex"
        )
    ]
