"""Trees of sequences that share prefixes, as rollouts of several prompts have them."""

from typing import Literal

import numpy as np
from pydantic import Field

from longca.core import Frozen
from longca.masks.contract import Draw, Pattern
from longca.masks.forms.tree import of_tree, renumbered
from longca.masks.mask import Mask

MOST_DRAWN = 1 << 20  # size of the random numbers that share out tokens among nodes


class PrefixTree(Pattern):
    label = "Prefix tree"
    family = "heterogeneous"
    definition = (
        "j ≤ i and the node of j is that of i or above it; trees of U{1..branches} branches and "
        "random lengths"
    )
    stochastic = True

    class Params(Frozen):
        trees: int = Field(4, ge=1, le=4096)
        """prompts in the sequence"""
        levels: int = Field(2, ge=0, le=64)
        """levels of nodes below each prompt"""
        branches: int = Field(6, ge=1, le=4096)
        """largest number of nodes below a node"""
        order: Literal["depth", "breadth"] = "depth"
        """order of a tree's nodes in the sequence"""

    def build(self, draw: Draw, params: Params) -> Mask:
        """Nodes are drawn level by level, as many as the sequence has tokens for."""
        parents = _parents(draw, params)
        if params.order == "depth":
            parents = renumbered(parents, "depth")
        lengths = _shares(draw.rng, draw.seqlen, len(parents))
        tree = of_tree(parents, lengths)
        return draw.mask(
            tree.bands(),
            **tree.params,
            unrolled_tokens=tree.num_unrolled_tokens,
            unrolled_area=tree.unrolled_area,
        )


def _parents(draw: Draw, params: PrefixTree.Params) -> list[int]:
    """The parent of each node, all trees level by level, of at most as many nodes as there are tokens."""
    parents = [-1] * min(params.trees, draw.seqlen)
    level = range(len(parents))
    for _ in range(params.levels):
        start = len(parents)
        for node in level:
            count = int(draw.rng.integers(1, params.branches, endpoint=True))
            parents += [node] * min(count, draw.seqlen - len(parents))
        level = range(start, len(parents))
    return parents


def _shares(rng: np.random.Generator, seqlen: int, num_nodes: int) -> np.ndarray:
    """Random lengths of at least 1 that sum to `seqlen`."""
    upto = np.cumsum(rng.integers(1, MOST_DRAWN, num_nodes))
    return np.diff(upto * (seqlen - num_nodes) // upto[-1], prepend=0) + 1
