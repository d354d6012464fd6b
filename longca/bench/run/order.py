"""The order of measuring: random, and cheap to follow."""

import random
from collections.abc import Iterable

from longca.bench.workers.pool import worker_key
from longca.core.cell import Cell
from longca.masks.build import mask_name

BATCH = 32
VISITS = 2  # of each group in a long run


def shuffled(cells: Iterable[Cell], seed: int, device_type: str) -> list[Cell]:
    """The cells in an order that follows from the seed, their ids and the type of device alone.

    Cells of one group of workers (a kernel, on a CPU all of them; a number of ranks) are shuffled, those of one mask together, and cut
    into batches: of `BATCH` cells, or of half of the group's where that is more. The batches of all groups are shuffled. A machine that
    grows slower over an hour thus does so for all methods and lengths alike, while workers are started once a batch, some 5 s each, and
    the cells of one mask find it already built, and on a CPU also the reference that their results are checked against.
    """
    generator = random.Random(seed)
    by_method: dict[str, dict[str, list[Cell]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.cell_id):
        by_method.setdefault(str(worker_key(cell, device_type)), {}).setdefault(mask_name(cell), []).append(cell)
    batches = []
    for _, by_mask in sorted(by_method.items()):
        names = sorted(by_mask)
        generator.shuffle(names)
        group = [cell for name in names for cell in by_mask[name]]
        size = max(BATCH, -(-len(group) // VISITS))
        batches += [group[start:start + size] for start in range(0, len(group), size)]
    generator.shuffle(batches)
    return [cell for batch in batches for cell in batch]
