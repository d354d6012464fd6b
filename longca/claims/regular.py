"""Masks that equal a regular one at a length: those are heterogeneous in name alone.

A block-causal mask whose documents are single blocks is FULL DOCUMENT; a global window as long as the sequence is
FULL. The masks are built again and looked at, so that no kernel's refusal decides what is regular.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from longca.masks import build_mask

if TYPE_CHECKING:
    from longca.claims.evidence import Point
    from longca.core.cell import Scalar

UNBOUND = -1  # of a window's side, as `longca.masks.traits` has it


def is_heterogeneous(point: Point) -> bool:
    """True if the point's mask equals no regular one, for at least one of its seeds."""
    return any(
        not _is_regular(point.mask, point.mask_params, point.corpus, point.seqlen, seed) for seed in seeds(point)
    )


def seeds(point: Point) -> Iterable[int]:
    return dict.fromkeys(cell.seed for cell in point.cells)


@cache
def _is_regular(name: str, params: str, corpus: str, seqlen: int, seed: int) -> bool:
    """The mask is FULL, CAUSAL, one of these in each document, or one window over the whole sequence."""
    given = dict(part.split("=", 1) for part in params.split(", ") if part)
    mask = build_mask(name, seqlen=seqlen, corpus=corpus or None, seed=seed,
                      **{key: _scalar(value) for key, value in given.items()})
    traits = mask.traits
    if traits.full:
        return True
    if not traits.num_segments or traits.window is None:
        return False
    left, right = traits.window
    return traits.num_segments == 1 or (left == UNBOUND and right in (UNBOUND, 0))


def _scalar(text: str) -> Scalar:
    """The value that a parameter's text in the table stands for."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
