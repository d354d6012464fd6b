"""What every study that is shipped must hold."""

import pytest

from longca.core.plugin import PACKAGE_ROOT, Registry
from longca.core.study import load_study

STUDIES = sorted((PACKAGE_ROOT.parent / "config/studies").glob("*.yaml"), key=lambda path: path.name)
LARGE = 2048  # rows of a product that fills a GPU


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_proves_its_timer_and_measures_what_the_device_can_do(path) -> None:
    cells = load_study(str(path)).cells()
    of_control = {name: [cell for cell in cells if cell.kernel == name] for name in ("control", "matmul", "device_copy")}
    assert len(of_control["control"]) >= 3
    attention = [cell for cell in cells if cell.kernel not in of_control]
    assert {cell.dtype for cell in attention} <= {cell.dtype for cell in of_control["matmul"] if cell.seqlen >= LARGE}
    copy = Registry("kernel").load("device_copy")
    assert max(copy.work(cell).traffic_bytes for cell in of_control["device_copy"]) >= 2 * (256 << 20)  # several times any L2
