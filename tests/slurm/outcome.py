"""Outcomes of a study and of its jobs."""

import re

import numpy as np
import pandas as pd

from tests.slurm.cluster.cluster import Job
from tests.slurm.project import Project

NUM_CELLS = 8  # of the study of accidents
TIMES = re.compile(
    r"noise|notes|num_samples|stopped|steady|drift.*|precision_percent"
    r"|warmup|warm_seconds|mega_cycles_median|straggler_percent|slowest_rank|samples_ms|time_ms_.*|.*_ms|seconds|costs"
    r"|(nominal_|single_|ceiling_)?tflops.*|gb_per_s|(peak|single|ceiling)_percent|ceiling_.*|disturbed|others_.*"
)
RESIDENT = {
    "peak_bytes",
    "absolute_peak_bytes",
    "above_shards_bytes",
}  # as the system happens to hand out memory
PROVENANCE = {"hostname", "device_uuid", "num_nodes", "slurm_job", "run_id", "started_at", "loaded_software"}
ERRORS = re.compile(r"(error|max_abs_error|budget_ratio|error_(budget|out|lse|dq|dk|dv))")
# Times by which errors may differ: each run draws anew what changes between timed calls, and an error is the
# worst of all judged calls, of which a busy machine has more.
SAME_ERROR = 10.0
DRAWN = {"error_tensor"}  # the tensor with the largest of these errors
# sections of the page; that of support also names controls whose timer a busy machine has disturbed
TIMELESS = "records", "dictionary"


def differences(one: Project, other: Project) -> set[str]:
    """The differences between two runs of a study beside times, memory and provenance: columns of the table,
    sections of the page."""
    tables = [
        _of_cells(pd.read_csv(project.results / "records.csv")).set_index("cell_id").sort_index()
        for project in (one, other)
    ]
    # the error of a control is one of time, and each machine that measures has its own
    controls = [set(table.index[table["is_control"]]) for table in tables]
    first, second = [x[~x["is_control"]] for x in tables]
    if controls[0] != controls[1] or not (
        first.index.equals(second.index) and first.columns.equals(second.columns)
    ):
        return {"cells, or columns"}
    names = {
        str(name)
        for (name, here), (_, there) in zip(first.items(), second.items(), strict=True)
        if not _same(here, there)
    }
    pages = [_sections((project.results / "report.html").read_text()) for project in (one, other)]
    unequal = {name for name in TIMELESS if pages[0][name] != pages[1][name]} | pages[0].keys() ^ pages[
        1
    ].keys()
    return {name for name in names if not TIMES.fullmatch(name)} - RESIDENT - PROVENANCE - DRAWN | unequal


def _of_cells(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells: who plays off, and which cells a job measures twice, depends on times and on
    jobs."""
    return table[table.playoff.isna() & ~table.repeat]


def _same(first: pd.Series, other: pd.Series) -> bool:
    if ERRORS.fullmatch(str(first.name)):
        lower = np.minimum(first, other)
        upper = np.maximum(first, other)
        return bool((upper <= SAME_ERROR * lower).eq(first.notna()).all()) and first.isna().equals(
            other.isna()
        )
    return first.equals(other)


def _sections(page: str) -> dict[str, str]:
    """By the id of each."""
    return dict(re.findall(r'<section[^>]* id="([a-z]+)"(.*?)(?=<section|$)', page, re.DOTALL))


def slow_cells(project: Project) -> bool:
    """One cell of the slow kernel is done, and others are not."""
    return len(project.cells()) in (5, 6, 7)


def ended_well(project: Project, kept: dict[str, tuple[str, int]]) -> None:
    cells = project.cells()
    assert [status for status, _ in cells.values()] == ["ok"] * NUM_CELLS
    assert kept and {cell: cells[cell] for cell in kept} == kept, "what was measured stays as it was"
    assert (project.results / "report.html").stat().st_size > 0


def states(jobs: list[Job], rule: str = "") -> list[str]:
    return [job.state for job in jobs if job.name.startswith(rule)]
