"""The order of measuring: random, and cheap to follow."""

import random
from collections.abc import Iterable

from longca.bench.pool import worker_key
from longca.core.cell import Cell

BATCH = 32


def shuffled(cells: Iterable[Cell], seed: int) -> list[Cell]:
    """The cells in an order that follows from the seed and their ids alone.

    Cells of one method are shuffled and cut into batches of at most `BATCH`, and the batches of all methods are
    shuffled. A machine that grows slower over an hour thus does so for all methods and lengths alike, while workers are
    started once a batch: some 5 s for 32 cells.
    """
    generator = random.Random(seed)
    by_method: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.cell_id):
        by_method.setdefault(str(worker_key(cell)), []).append(cell)
    batches = []
    for _, group in sorted(by_method.items()):
        generator.shuffle(group)
        batches += [group[start:start + BATCH] for start in range(0, len(group), BATCH)]
    generator.shuffle(batches)
    return [cell for batch in batches for cell in batch]
