"""Masks that equal a regular one at a length: those are heterogeneous in name alone.

A block-causal mask whose documents are single blocks is FULL DOCUMENT; a global window as long as the
sequence is FULL. The masks are built again and looked at, so that no kernel's refusal decides what is
regular.
"""

from __future__ import annotations

from ast import literal_eval
from functools import cache
from typing import TYPE_CHECKING, Any

from longca.core import UserError
from longca.masks import build_mask

if TYPE_CHECKING:
    from longca.lab.claims.evidence import Point

UNBOUND = -1  # of a window's side, as `longca.masks.traits` has it


def is_heterogeneous(point: Point) -> bool:
    """True if the point's mask equals no regular one, for at least one of its seeds."""
    return any(
        not _is_regular(point.mask, point.mask_params, point.corpus, point.seqlen, seed)
        for seed in point.seeds
    )


@cache
def _is_regular(name: str, params: str, corpus: str, seqlen: int, seed: int) -> bool:
    """The mask is FULL, CAUSAL, one of these in each document, or one window over the whole sequence."""
    given: dict[str, Any] = {}
    for part in filter(None, params.split(", ")):
        key, _, value = part.partition("=")
        given[key] = _scalar(value)
    try:
        traits = build_mask(name, seqlen=seqlen, corpus=corpus or None, seed=seed, **given).traits
    except UserError:  # documents of a corpus that is not here cannot be drawn again
        return False
    if traits.full:
        return True
    if not traits.num_segments or traits.window is None:
        return False
    left, right = traits.window
    return traits.num_segments == 1 or (left == UNBOUND and right in (UNBOUND, 0))


def _scalar(text: str) -> Any:
    """The value that a parameter's text in the table stands for: a flag, a number or text."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text
