"""One page of the whole quick study, made once; a page costs seconds, so most tests make one of a few
records."""

from pathlib import Path

import pytest

from longca.lab.report.build import build
from longca.lab.store.cells import UnusableFile
from longca.lab.studies.record import Record
from tests.records import quick_study

DAMAGED = UnusableFile(
    Path("results/quick/cells/ab/ab12cd34.json"), "is damaged (not JSON: cut off or overwritten)"
)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return build(quick_study(), [DAMAGED], folder / "report.html", study_title="Quick & <plain>")


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


@pytest.fixture(scope="session")
def few_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    return build(few(), [DAMAGED], folder / "report.html", study_title="Few & <plain>")
