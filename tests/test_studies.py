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


def test_the_quick_study_has_every_mask_every_kernel_of_cpus_every_strategy_and_both_directions() -> None:
    cells = load_study("quick").cells()
    kernels = [cell for cell in cells if cell.kind == "kernel"]
    for kernel in ("naive", "sdpa", "flex"):
        found = {(cell.mask, cell.direction) for cell in kernels if cell.kernel == kernel}
        assert found == {(mask, direction) for mask in Registry("mask").names() for direction in ("fwd", "bwd")}
    together = [cell for cell in cells if cell.kind == "cp"]
    assert {cell.strategy for cell in together} == {"ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain"}
    assert {cell.direction for cell in together} == {"fwd", "bwd"} and {cell.world for cell in together} == {2, 4}
    assert len({cell.seqlen for cell in kernels if cell.kernel == "sdpa"}) >= 2, "a line needs two lengths"
