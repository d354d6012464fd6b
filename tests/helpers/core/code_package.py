"""Files of a small package, of which a test changes some."""

from collections.abc import Callable

MAIN = '''
"""A module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from longca.ops.tiles import SIZE, tile

if TYPE_CHECKING:
    from longca.masks import Mask

LIMIT: int = 3  # of something


def run(mask: Mask, rows: int = 4) -> int:
    """Runs."""
    return tile(rows) * SIZE + math.floor(np.sqrt(LIMIT))
'''


TILES = "SIZE = 64\n\n\ndef tile(rows):\n    return rows // SIZE\n"
OTHER = "SIZE = 32\n\n\ndef tile(rows):\n    return rows // SIZE + 1\n"
Package = Callable[[dict[str, str]], str]


def plain(**changes: str) -> dict[str, str]:
    return {"main.py": MAIN, "ops/tiles.py": TILES, "ops/other.py": OTHER, **changes}
