"""Jobs: every cell in one of them, the same ones each time, quickly."""

import re
import subprocess
import sys

import pytest

from longca.core.schema import Work
from longca.lab.bench.plan.shards import OVERHEAD_SECONDS, estimate_seconds, shards, shards_of_one_machine
from longca.lab.studies.grid import Measure
from tests.helpers.bench.misbehaving import cp_cell, kernel_cell


def many(num_cells: int) -> list:
    return [kernel_cell(("naive", "sdpa")[n % 2], seqlen=n + 1) for n in range(num_cells)]


def test_every_cell_is_in_one_job_of_its_kernel_or_its_number_of_ranks():
    cells = [
        *many(300),
        *(
            cp_cell(strategy, world, seqlen=length)
            for strategy in ("ulysses", "ring")
            for world in (2, 4)
            for length in (64, 128)
        ),
    ]
    pieces = shards(cells, 2.0)
    planned = [cell for piece in pieces for cell in piece.cells]
    assert len(planned) == len(cells) and set(planned) == set(cells)
    for piece in pieces:
        assert {(cell.kind, cell.world) for cell in piece.cells} == {(piece.kind, piece.world)}
        assert piece.kind == "cp" or len({cell.kernel for cell in piece.cells}) == 1
        assert piece.minutes <= 2.0 or len(piece.cells) == 1
    names = [piece.name for piece in pieces]
    assert len(set(names)) == len(names) and {"kernel-naive-0", "kernel-naive-1", "cp-w2-0"} <= set(names)
    assert all(re.fullmatch(r"[\w+-]+", name) for name in names)
    assert {cell.strategy for piece in pieces if piece.name == "cp-w2-0" for cell in piece.cells} == {
        "ulysses",
        "ring",
    }
    assert shards(cells, 2.0) == pieces


def test_one_machine_has_one_job():
    kernels = [*many(300)]
    ranks = [cp_cell("ulysses", world, seqlen=64) for world in (2, 4)]
    for cells, job in (
        (kernels, ("kernel-0", "kernel", 1)),
        (ranks, ("cp-0", "cp", 4)),
        ([*kernels, *ranks], ("all-0", "cp", 4)),
    ):
        (piece,) = shards_of_one_machine(cells)
        assert (piece.name, piece.kind, piece.world) == job and list(piece.cells) == cells
        assert piece.name not in {each.name for each in shards(cells, 2.0)}, "`longca run --shard` takes both"
    assert shards_of_one_machine([]) == []


def test_a_long_cell_is_a_job_of_its_own():
    cells = [kernel_cell("naive", seqlen) for seqlen in (64, 1 << 20, 128)]
    pieces = shards(cells, 1.0, rate_flops=1e9, measure=Measure(timeout_s=1e6))
    assert [[cell.seqlen for cell in piece.cells] for piece in pieces] == [[64], [1 << 20], [128]]
    assert pieces[1].minutes > 1.0


def test_no_cells_no_jobs():
    assert shards([], 1.0) == []


def test_cells_keep_their_order():
    pieces = shards(many(300), 1e9)
    assert [[cell.seqlen for cell in piece.cells] for piece in pieces] == [
        list(range(1, 301, 2)),
        list(range(2, 301, 2)),
    ]


def test_the_estimate():
    cell = kernel_cell("naive", 1 << 14)  # 4 · S² · 2 heads · 8
    flops = 4 * (1 << 28) * 2 * 8
    once = Measure.fixed(warmup=1, repeats=1, timeout_s=1e6)
    assert estimate_seconds(cell, flops, once) == pytest.approx(OVERHEAD_SECONDS + 2)
    half = cell.model_copy(update={"mask_params": {"density": 0.5}})
    assert estimate_seconds(half, flops, once) == pytest.approx(OVERHEAD_SECONDS + 1)
    backward = kernel_cell("naive", 1 << 14, direction="bwd")
    assert estimate_seconds(backward, flops, once) == pytest.approx(
        OVERHEAD_SECONDS + 2 * 2.5
    )  # one forward serves all its calls
    assert estimate_seconds(cp_cell("ulysses", 4, seqlen=1 << 14), flops, once) == pytest.approx(
        OVERHEAD_SECONDS + 0.5
    )
    # timed calls stop after max_seconds, but not before three; and nothing goes beyond the timeout
    assert estimate_seconds(
        cell, flops, Measure.fixed(warmup=0, repeats=100, max_seconds=10)
    ) == pytest.approx(OVERHEAD_SECONDS + 10)
    assert estimate_seconds(
        cell, flops, Measure.fixed(warmup=0, repeats=100, max_seconds=1)
    ) == pytest.approx(OVERHEAD_SECONDS + 3)
    assert estimate_seconds(cell, 1.0, Measure(timeout_s=300)) == 300
    # so does the warm-up, after the call in which they run out
    assert estimate_seconds(
        cell, flops / 4, Measure.fixed(warmup=9, repeats=1, max_seconds=5)
    ) == pytest.approx(OVERHEAD_SECONDS + 9 + 4)


def test_the_estimate_of_the_protocol() -> None:
    """Calls of 50 ms on a GPU that rests as long; on a CPU, up to the limit; and calls that half of the
    timeout ends."""
    cell = kernel_cell("naive", 1 << 14)
    flops = 4 * (1 << 28) * 2 * 8
    measure = Measure(warmup=5, repeats=20, max_seconds=4)
    assert estimate_seconds(cell, 20 * flops, measure) == pytest.approx(OVERHEAD_SECONDS + 8 * 0.1 + 30 * 0.1)
    assert estimate_seconds(cell, 20 * flops, measure, on_gpu=False) == pytest.approx(
        OVERHEAD_SECONDS + 8 * 0.05 + 4
    )
    assert estimate_seconds(cell, 1e6 * flops, measure) == pytest.approx(OVERHEAD_SECONDS + 0.5, abs=0.01), (
        "blocks have a least length"
    )
    assert estimate_seconds(cell, flops / 4, measure) == pytest.approx(OVERHEAD_SECONDS + 150 + 8)


def test_planning_needs_no_torch():
    program = (
        "import sys, longca.lab.bench.plan.shards; print([m for m in ('torch', 'numpy', 'pandas') if m "
        "in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )


def test_controls_are_estimated_by_what_they_do():
    once = Measure.fixed(warmup=1, repeats=1, timeout_s=1e6)
    cell = kernel_cell("matmul", 1 << 17, mask="full")
    assert estimate_seconds(cell, 1e12, once, work=Work(flops=10**12)) == pytest.approx(OVERHEAD_SECONDS + 2)
    assert estimate_seconds(cell, 1e12, once, work=Work(traffic_bytes=10**12)) == pytest.approx(
        OVERHEAD_SECONDS + 2
    )
    assert estimate_seconds(cell, 1e12, once, work=Work(duration_ms=500)) == pytest.approx(
        OVERHEAD_SECONDS + 1
    )
    copy = kernel_cell("device_copy", 1 << 20, mask="full")  # as attention it would take minutes
    assert shards([copy], 100.0)[0].minutes * 60 == pytest.approx(OVERHEAD_SECONDS + 0.5, abs=0.1)
