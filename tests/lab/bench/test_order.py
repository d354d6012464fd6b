"""The order of cells: random by the seed, and cells of one mask together."""

import itertools

from longca.lab.bench.plan.order import BATCH, shuffled
from longca.lab.bench.workers.pool import worker_key
from tests.helpers.bench.cells import small_cell
from tests.helpers.bench.misbehaving import cp_cell, kernel_cell


def test_the_order_is_random_follows_from_the_seed_and_starts_few_workers():
    cells = [kernel_cell(kernel, seqlen) for kernel in ("a", "b", "c") for seqlen in range(1, 101)]
    cells += [cp_cell("s", world, seqlen=seqlen) for world in (2, 4) for seqlen in range(8, 12)]
    order = shuffled(cells, 1, "cuda")
    assert order == shuffled(reversed(cells), 1, "cuda") != shuffled(cells, 2, "cuda")
    assert sorted(order, key=lambda cell: cell.cell_id) == sorted(cells, key=lambda cell: cell.cell_id)
    changes = sum(
        worker_key(first, "cuda") != worker_key(two, "cuda") for first, two in itertools.pairwise(order)
    )
    assert 4 <= changes < 3 * -(-100 // BATCH) + 2
    lengths = [cell.seqlen for cell in order if cell.kernel == "a"]
    assert lengths != sorted(lengths)


def test_cells_of_one_mask_follow_each_other():
    cells = [
        small_cell("naive", "causal", direction, seqlen=seqlen)
        for seqlen in range(1, 13)
        for direction in ("fwd", "bwd")
    ]
    order = shuffled(cells, 0, "cuda")
    assert all(first.seqlen == other.seqlen for first, other in zip(order[::2], order[1::2], strict=True))


def test_on_a_cpu_all_kernels_of_one_mask_follow_each_other_in_one_process():
    cells = [
        small_cell(kernel, "causal", direction, seqlen=seqlen)
        for kernel in ("naive", "sdpa", "flex")
        for seqlen in range(1, 13)
        for direction in ("fwd", "bwd")
    ]
    order = shuffled(cells, 0, "cpu")
    assert len({worker_key(cell, "cpu") for cell in order}) == 1
    assert all(
        len({cell.seqlen for cell in order[start : start + 6]}) == 1 for start in range(0, len(order) - 6, 6)
    )
