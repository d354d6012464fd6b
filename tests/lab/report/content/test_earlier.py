"""Records of earlier kernels are named wherever they are shown, by one rule and in the same words."""

import re
from pathlib import Path

from longca.lab.report.build import build
from longca.lab.report.content.earlier import earlier_text
from longca.lab.report.index import write_index
from longca.lab.store.export import export
from longca.lab.studies import Environment, Record, Source
from longca.predict.earlier import EARLIER_RECORDS
from tests.helpers.compare import cell
from tests.helpers.records import record

H200 = "NVIDIA H200"


def at(made: Record, sha: str) -> Record:
    """The record as one that was measured at another commit."""
    assert isinstance(made.environment, Environment)
    source = Source(version="1", git_sha=sha, git_dirty=False)
    return made.model_copy(update={"environment": made.environment.model_copy(update={"source": source})})


def texts(path: Path) -> str:
    """The words of a page or an index, without marks."""
    return " ".join(re.sub("<[^>]*>", "", path.read_text(encoding="utf-8")).split())


def test_a_page_and_the_index_say_what_choose_says(tmp_path: Path) -> None:
    band, flex = (cell(kind="cp", strategy="ring_p2p", world=2, kernel=kernel) for kernel in ("band", "flex"))
    name = band.method
    rest = "docs/results/h200/band.md has numbers of the present ones, on one GPU"
    assert earlier_text([name]) == f"{name}: measured with earlier kernels; {rest}" and not earlier_text([])
    for number, sha in enumerate((EARLIER_RECORDS[0] + "0" * 33, "f" * 40)):
        records = [at(record(asked, gpu=H200), sha) for asked in (band, flex)]
        folder = tmp_path / str(number) / "h200"
        table, *_ = export(records, folder)
        table.rename(folder / "h200-cp.parquet")
        page = build(records, [], folder / "h200-cp.html", study_title="Strategies")
        index = write_index(folder.parent)
        assert index
        for text in (texts(page), texts(index)):
            assert (f"1 of 2 cells ran earlier kernels ({name}); {rest}." in text) == (number == 0)
            assert ("ran earlier kernels" in text) == (number == 0)
