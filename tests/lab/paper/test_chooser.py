"""The chooser of the study's page, over two GPUs that ran the same cells."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from longca.lab.paper.build import build_paper
from longca.lab.report.content.packing import page_data, unpacked
from longca.lab.studies.record import Record
from tests.helpers.chromium import browser
from tests.helpers.records import record
from tests.helpers.report.cases import cell
from tests.lab.report.test_browser import pytestmark as needs_browser

pytestmark = pytest.mark.long

H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"


def records(*gpus: str) -> list[Record]:
    """Kernels that change places from one GPU to the other."""
    return [
        record(
            cell(kernel, mask, seqlen=seqlen, num_q_heads=64, num_kv_heads=8, head_dim=128),
            gpu=gpu,
            tflops=tflops if gpu == H100 else 900.0 - tflops,
        ).model_copy(update={"study": "h100" if gpu == H100 else "h200"})
        for gpu in gpus
        for kernel, tflops in (("band", 600.0), ("flex", 500.0), ("sdpa", 100.0))
        for mask in ("full", "causal")
        for seqlen in (4096, 8192)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_paper(records(H100, H200), [], tmp_path_factory.mktemp("chooser") / "paper")


def data(page: Path, name: str) -> dict:
    return page_data(page.read_text(encoding="utf-8"), name)


def test_each_gpu_has_its_map_and_its_own_records(page: Path) -> None:
    """Both ran the same cells: a square leads to the record of its GPU, not to the other one's."""
    views = data(page, "views")
    points = data(page, "data")
    count = data(page, "facts")["count"]
    assert count == 24
    rates, studies = (unpacked(points[name], count) for name in ("rate", "study"))
    assert [(view["gpu"], view["seqlen"]) for view in views["views"]] == [
        (gpu, seqlen) for seqlen in (4096, 8192) for gpu in (H100, H200)
    ]
    for view in views["views"]:
        study = "h100" if view["gpu"] == H100 else "h200"
        rows, own = (unpacked(view["entries"][name], view["count"]) for name in ("row", "rate"))
        assert {studies[row] for row in rows} == {study}
        assert [rates[row] for row in rows] == own


def test_points_of_figures_are_those_of_their_gpu(page: Path) -> None:
    points = data(page, "data")
    facts = data(page, "facts")
    count, rows_of = facts["count"], facts["rows"]
    studies = unpacked(points["study"], count)
    text = page.read_text(encoding="utf-8")
    drawing = text[
        text.index('id="dense_forward"') : text.index("</figure>", text.index('id="dense_forward"'))
    ]
    for device, study in ((H100, "h100"), (H200, "h200")):
        panels = [part for part in drawing.split('data-panel="')[1:] if device in part.split('"')[0]]
        rows = [
            row
            for panel in panels
            for group in re.findall(r'data-rows="([^"]+)"', panel)
            for row in rows_of[int(group)].split(",")
        ]
        assert rows and {studies[int(row)] for row in rows} == {study}
    csv = (page.parent / "data/dense_forward.csv").read_text(encoding="utf-8")
    assert not re.search(r"[0-9a-f]{16}-\d", csv) and records(H100)[0].cell_id in csv


def test_a_study_on_one_gpu_is_not_asked_for_it(tmp_path: Path) -> None:
    views = data(build_paper(records(H200), [], tmp_path / "paper"), "views")
    assert {len(switch["options"]) for switch in views["switches"] if switch["name"] == "gpu"} <= {0, 1}


@needs_browser[1]
def test_the_address_opens_the_chapter_at_a_gpu(page: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        assert tab.open(f"{page.as_uri()}#decide?gpu={quote(H200)}&mask=causal", 1400) == []
        shown = tab.run(
            "[document.querySelector('#decide > details').open,"
            " ...['#verdict', '#map-setting'].map((name) => document.querySelector(name).textContent)]"
        )
        assert shown[0] and shown[1].startswith("sdpa ") and "H200" in shown[2]
