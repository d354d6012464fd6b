"""A tree of drafted tokens at the end of a context, as speculative decoding verifies it in one call."""

from typing import Literal

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks.contract import Draw, Pattern
from longca.masks.forms.tree import of_tree, renumbered
from longca.masks.mask import Mask

DRAFTED = 64  # tokens of the tree, where all tokens of the sequence are queries


class SpeculativeTree(Pattern):
    label = "Speculative tree"
    family = "heterogeneous"
    definition = (
        "j ≤ i and j is in the context, or i itself, or above i in the tree of the last tokens, whose "
        "branches are drawn"
    )
    stochastic = True

    class Params(Frozen):
        levels: int = Field(8, ge=1, le=4096)
        """most tokens on a way from the context to a leaf"""
        branches: int = Field(4, ge=1, le=4096)
        """most tokens that follow a token; where all are full, a further one follows the context"""
        order: Literal["depth", "breadth"] = "breadth"
        """order of the tree's tokens in the sequence"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """The tree has the new tokens, one a node; the last 64 of the sequence where all are queries."""
        num_drafted = min(DRAFTED, draw.seqlen) if draw.new_tokens is None else draw.new_tokens
        drafted = renumbered(_parents(draw.rng, num_drafted, params), params.order)
        num_cached = draw.seqlen - num_drafted
        context = [-1] if num_cached else []
        above = np.array(context + [parent + len(context) for parent in drafted])
        lengths = np.array([num_cached] * len(context) + [1] * num_drafted)
        tree = of_tree(above, lengths)
        return draw.mask(tree.bands(), **tree.params)


def _parents(rng: np.random.Generator, num_tokens: int, params: SpeculativeTree.Params) -> list[int]:
    """The token that each one follows, −1 for the context: drawn among all earlier ones that have room."""
    parents = [-1]
    level = [1]
    room = [params.branches]
    is_open = [0] if params.levels > 1 else []
    for token in range(1, num_tokens):
        if is_open:
            chosen = int(rng.integers(len(is_open)))
            parent = is_open[chosen]
            room[parent] -= 1
            if not room[parent]:
                is_open[chosen] = is_open[-1]
                is_open.pop()
        else:
            parent = -1
        parents.append(parent)
        level.append(1 if parent < 0 else level[parent] + 1)
        room.append(params.branches)
        if level[token] < params.levels:
            is_open.append(token)
    return parents
