"""The order of measurement: cells in batches of one group of workers, so that a machine that becomes slower affects all methods alike."""  # noqa: E501

import random
from collections.abc import Iterable

from longca.lab.bench.workers.pool import worker_key
from longca.lab.studies import Cell, mask_name

BATCH = 32  # cells of one group of workers that are measured in a row
VISITS = 2  # batches of each group in a long run


def shuffled(cells: Iterable[Cell], seed: int, device_type: str) -> list[Cell]:
    """The cells in an order that depends only on the seed, their ids and the type of device.

    Cells of one group of workers (a kernel, or all kernels on a CPU; a number of ranks) are shuffled, but
    cells of one mask stay together.
    They are split into batches of `BATCH` cells, or of half of the group's cells where that is more. Then the
    batches of all groups are shuffled. If a machine becomes slower over an hour, this affects all methods and
    lengths alike. Workers are started only once a batch, some 5 s each. Cells of one mask share the built
    mask, and on a CPU also the reference of their results.
    """
    generator = random.Random(seed)
    by_method: dict[str, dict[str, list[Cell]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.cell_id):
        by_method.setdefault(str(worker_key(cell, device_type)), {}).setdefault(mask_name(cell), []).append(
            cell
        )
    batches = []
    for _, by_mask in sorted(by_method.items()):
        names = sorted(by_mask)
        generator.shuffle(names)
        group = [cell for name in names for cell in by_mask[name]]
        size = max(BATCH, -(-len(group) // VISITS))
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    generator.shuffle(batches)
    return [cell for batch in batches for cell in batch]
