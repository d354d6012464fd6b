"""A page of two GPUs that ran the same cells: each number leads to the record of its own GPU."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longca.lab.paper.build import build_paper
from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data, unpacked
from longca.lab.studies.record import Record
from tests.helpers.records import record
from tests.helpers.report.cases import cell

pytestmark = pytest.mark.long

H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"


def records() -> list[Record]:
    """Kernels that change places from one GPU to the other."""
    return [
        record(
            cell(kernel, mask, seqlen=seqlen, num_q_heads=64, num_kv_heads=8, head_dim=128),
            gpu=gpu,
            tflops=tflops if gpu == H100 else 900.0 - tflops,
        ).model_copy(update={"study": "both"})
        for gpu in (H100, H200)
        for kernel, tflops in (("band", 600.0), ("flex", 500.0), ("sdpa", 100.0))
        for mask in ("full", "causal")
        for seqlen in (4096, 8192)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "both"
    return build(records(), [], folder / "report.html", study_title="Both")


def data(text: str, name: str) -> dict[str, Any]:
    return page_data(text, name)


def devices(text: str) -> dict[str, str]:
    """Anchor → the device of its record."""
    points = data(text, "data")
    names, gpus = (unpacked(points[name], len(records())) for name in ("anchor", "device"))
    assert len(set(names)) == len(records())
    return dict(zip(names, gpus, strict=True))


def test_the_chooser_leads_to_the_records_of_its_gpu(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    of_anchor = devices(text)
    views = data(text, "views")
    assert {view["gpu"] for view in views["views"]} == {H100, H200}
    for view in views["views"]:
        rows = unpacked(view["entries"]["row"], view["count"])
        assert {list(of_anchor.values())[row] for row in rows} == {view["gpu"]}
    ranking = text[text.index('id="ranking"') : text.index("</table>", text.index('id="ranking"'))]
    anchors = re.findall(r'href="#cell-([^"]+)"', ranking)
    assert len(anchors) == 3 and {of_anchor[anchor] for anchor in anchors} == {views["default"]["gpu"]}


def test_every_link_of_the_page_has_its_record(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = set(re.findall(r'href="#cell-([^"]+)"', text))
    of_anchor = devices(text)
    assert linked <= of_anchor.keys() and {of_anchor[anchor] for anchor in linked} == {H100, H200}


def test_files_have_cell_ids_alone(page: Path) -> None:
    noise = pd.read_csv(page.parent / "figures/noise.csv")
    assert set(noise.cell_id) == {record.cell_id for record in records()}


def test_the_studys_page_leads_to_them_too(page: Path) -> None:
    paper = build_paper(records(), [], page.parent.parent / "paper")
    points = data(paper.read_text(encoding="utf-8"), "data")
    count = len(records())
    names, homes, rates = (unpacked(points[name], count) for name in ("anchor", "home", "rate"))
    assert set(homes) == {"../both/report.html"}
    of_anchor = devices(page.read_text(encoding="utf-8"))
    assert len(set(names)) == count and set(names) == of_anchor.keys()
    fast = {of_anchor[name] for name, rate in zip(names, rates, strict=True) if rate == max(rates, key=float)}
    assert fast == {H200}  # sdpa, which is slow on the other one
