"""Duties of every study that is shipped."""

import pytest

from longca.core.plugin import PACKAGE_ROOT, Registry
from longca.core.schema import AS_RELEASED, FIXED_ORDER
from longca.lab.studies.study import load_study

STUDIES = sorted((PACKAGE_ROOT.parent / "config/studies").glob("*.yaml"), key=lambda path: path.name)
LARGE = 2048  # rows of a product that fills a GPU


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_proves_its_timer_and_measures_what_the_device_can_do(path) -> None:
    cells = load_study(str(path)).cells()
    of_control = {
        name: [cell for cell in cells if cell.kernel == name] for name in ("control", "matmul", "device_copy")
    }
    assert len(of_control["control"]) >= 3
    attention = [cell for cell in cells if cell.kernel not in of_control]
    large = 512 if path.stem == "quick" else LARGE  # CPUs without bf16 take a minute for 2K
    assert {cell.dtype for cell in attention} <= {
        cell.dtype for cell in of_control["matmul"] if cell.seqlen >= large
    }
    copy = Registry("kernel").load("device_copy")
    moved = [copy.work(cell.call_spec, cell.seqlen).traffic_bytes for cell in of_control["device_copy"]]
    assert max(moved) >= 2 * (256 << 20)  # several times any L2


def test_the_quick_study_has_every_mask_every_kernel_of_cpus_every_strategy_and_both_directions() -> None:
    cells = load_study("quick").cells()
    kernels = [cell for cell in cells if cell.kind == "kernel"]
    for kernel in ("naive", "sdpa", "flex"):
        actual = {(cell.mask, cell.direction) for cell in kernels if cell.kernel == kernel}
        assert actual == {
            (mask.name, direction)
            for mask in Registry("mask").load_all()
            if mask.number
            for direction in ("fwd", "bwd")
        }
    together = [cell for cell in cells if cell.kind == "cp"]
    assert {cell.strategy for cell in together} == {
        "ulysses",
        "ring_p2p",
        "ring_allgather",
        "usp",
        "loongtrain",
    }
    assert {cell.direction for cell in together} == {"fwd", "bwd"} and {cell.world for cell in together} == {
        2,
        4,
    }
    assert len({cell.seqlen for cell in kernels if cell.kernel == "sdpa"}) >= 2, "a line needs two lengths"


def test_the_papers_grid_is_measured_as_the_study_did_and_with_its_masks() -> None:
    study = load_study("paper")
    cells = study.cells()
    attention = [cell for cell in cells if cell.kernel not in ("control", "matmul", "device_copy")]
    calls = {(cell.kind, "density" in cell.mask_params): study.measure_of(cell) for cell in attention}
    assert {kind: (actual.warmup, actual.repeats) for kind, actual in calls.items()} == {
        ("kernel", False): (5, 20),
        ("kernel", True): (25, 100),
        ("cp", False): (5, 15),
    }
    together = [cell for cell in cells if cell.kind == "cp" and cell.corpus == "prolong512k_long"]
    assert all(cell.mask_params == {"paper_compat": True} for cell in together)
    for strategy in ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain"):
        for mask in ("full_document", "causal_document"):
            seeds = {
                cell.seed
                for cell in together
                if (cell.strategy, cell.mask, cell.kernel) == (strategy, mask, "band")
            }
            assert seeds == set(range(30))
    assert {cell.seed for cell in cells if cell.kind == "cp" and cell.mask in ("full", "causal")} == {0}


def test_each_row_as_released_stands_beside_its_honest_row() -> None:
    def asked(kernel: str) -> set[str]:
        return {
            cell.model_copy(update={"kernel": ""}).model_dump_json()
            for cell in cells
            if cell.kernel == kernel
        }

    cells = load_study("as-released").cells()
    rows = [name for name in Registry("kernel").names() if name.startswith(AS_RELEASED)]
    assert len(rows) == 4
    for name in rows:
        assert asked(name) == asked(name.removeprefix(AS_RELEASED)) != set()


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "as-study",
        "h100-dense",
        "h200-dense",
        "h100-sparse",
        "h200-sparse",
        "h100-cp",
        "h200-cp",
        "h200-cp8",
    ],
)
def test_studies_of_the_paper_take_its_counts_as_the_least(name: str) -> None:
    """20 calls after 5 (of strategies 15), and 100 after 25 of block-sparse masks on the study's GPU; all by
    the protocol: with rests, a warm clock, 0.5 %."""
    study = load_study(name)
    is_its_gpu = not name.startswith("h200")
    for cell in study.cells():
        measure = study.measure_of(cell)
        is_sparse = "density" in cell.mask_params and cell.kind == "kernel" and is_its_gpu
        warmup, repeats = (25, 100) if is_sparse else (5, 15 if cell.kind == "cp" else 20)
        assert measure.warmup >= warmup and measure.repeats >= repeats, cell.title
        assert (measure.precision, measure.duty) == (0.005, 0.5) and measure.warm_seconds >= 1, cell.title


def test_products_last_from_a_millisecond_to_a_tenth_of_a_second() -> None:
    """As attention does: a ceiling of one short product says little of what a device reaches in longer
    calls."""
    for path in (path for path in STUDIES if path.stem.startswith(("h100-", "h200-"))):
        products = [cell for cell in load_study(path.stem).cells() if cell.kernel == "matmul"]
        assert {cell.seqlen for cell in products} == {8192, 16384, 32768}


def test_the_deterministic_study_has_the_masks_of_dense_ones_and_kernels_that_promise_the_same_bits() -> None:
    cells = [cell for cell in load_study("deterministic").cells() if cell.direction == "bwd"]
    kernels = {cell.kernel for cell in cells}
    shipped = {name for name in Registry("kernel", []).names() if name.endswith(FIXED_ORDER)}
    assert kernels == {"band", *shipped}
    assert all(Registry("kernel").load(kernel).deterministic for kernel in kernels)
    band = {cell.cell_id for cell in cells if cell.kernel == "band"}
    for name in ("h100-dense", "h200-dense"):
        dense = [
            cell
            for cell in load_study(name).cells()
            if (cell.kernel, cell.direction, cell.num_kv_heads, cell.seed) == ("band", "bwd", 8, 0)
            and cell.seqlen in (8192, 32768)
            and not cell.mask_params.get("paper_compat")
        ]
        assert {cell.cell_id for cell in dense} == band and len(band) == 24, name
    assert all(cell.call_spec == cells[0].call_spec for cell in cells)
