"""The index of a folder of reports: the study, then each GPU's studies with their days and counts."""

import re
from pathlib import Path

import pytest

from longca.lab.paper.build import build_paper
from longca.lab.report.build import build
from longca.lab.report.index import write_index
from longca.lab.store.export import export
from tests.helpers.records import gpu_study

MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA X900")


def _folder(folder: Path, gpu: str, day: str) -> int:
    """Records and page of one study in the folder of a GPU. Returns the number of cells with a number."""
    records = [record.model_copy(update={"started_at": f"{day}T10:00:00Z"}) for record in gpu_study(gpu)[:30]]
    twice = next(record for record in records if record.outcome.status == "ok")
    records.append(twice.model_copy(update={"started_at": f"{day}T11:00:00Z"}))  # as controls are
    table, *_ = export(records, folder)
    table.rename(folder / "h100-dense.parquet")
    build(records, [], folder / "h100-dense.html", study_title="Dense kernels on one H100")
    return len({record.cell_id for record in records if record.outcome.status == "ok"})


@pytest.mark.long
def test_the_study_comes_first_and_each_gpu_has_its_own_rows(tmp_path: Path):
    timed = {
        gpu: _folder(tmp_path / name, gpu, day)
        for gpu, name, day in zip(MODELS, ("h100", "x900"), ("2026-11-20", "2026-12-01"), strict=True)
    }
    (tmp_path / "x900/loose.html").write_text("<p>A page of somebody else.</p>")
    (tmp_path / "x900/other.parquet").write_bytes(b"no table")
    build_paper(gpu_study(MODELS[0])[:10], [], tmp_path / "paper")
    index = write_index(tmp_path)
    assert index
    text = index.read_text(encoding="utf-8")
    assert re.findall(r'<a href="([^"]*)"', text) == [
        "paper/index.html",
        *(f"{name}/h100-dense.{ending}" for name in ("h100", "x900") for ending in ("html", "parquet")),
    ]
    first, second = text.split('class="device">')[1:3]
    assert first.startswith("H100<") and second.startswith("X900<")
    assert "2026-11-20" in first and "2026-12-01" not in first and "2026-12-01" in second
    page = (tmp_path / "x900/h100-dense.html").read_text(encoding="utf-8")
    assert f">{timed[MODELS[1]]}<" in second and f"{timed[MODELS[1]]} of 30" in page, "both count alike"
    assert "measured on X900" in second and "measured on" not in first
    assert 'id="theme"' in text and "other.parquet" in text.partition("skipped")[2] and "loose" not in text
