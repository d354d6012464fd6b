"""Trees of sequences that share prefixes: rollouts, several answers to a prompt, trees of reasoning.

A node is a run of tokens. A token sees the tokens of the nodes above its own, and the earlier tokens of its
own: exactly what it would see in each of the sequences from a root to a leaf.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple

import numpy as np

from longca.masks import band
from longca.masks.band import spread
from longca.masks.forms.values import check_total, refused, whole_numbers


class TreePredictions(NamedTuple):
    """Predictions of the sequences of a tree: `target[n]` from `source[n]`, both numbers of tokens, in
    `count[n]` sequences.

    The sum of count · loss(logits[source], tokens[target]) is the sum of the losses of all sequences.
    """

    source: np.ndarray  # int64 (n,)
    target: np.ndarray  # int64 (n,), ascending
    count: np.ndarray  # int64 (n,)  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count here


def tree_position_ids(parents: Any, lengths: Any) -> np.ndarray:
    """The position of each token in the sequences that it belongs to, int64 (tokens,).

    Args:
        parents, lengths: as of `Mask.from_tree`.
    """
    with refused("This tree"):
        tree = of_tree(parents, lengths)
    return np.arange(tree.seqlen) - np.repeat(tree.bounds[:-1] - tree.depths, tree.lengths)


def tree_predictions(parents: Any, lengths: Any) -> TreePredictions:
    """The pairs of tokens of which the first predicts the second, each with the number of sequences that have
    it.

    The last token of a node predicts the first token of each node below it. Arguments as of `Mask.from_tree`.
    """
    with refused("This tree"):
        tree = of_tree(parents, lengths)
    source = np.arange(-1, tree.seqlen - 1)
    source[tree.bounds[:-1]] = np.where(tree.parents < 0, -1, tree.bounds[1:][tree.parents] - 1)
    target = np.flatnonzero(source >= 0)
    return TreePredictions(source[target], target, np.repeat(tree.leaves, tree.lengths)[target])


def unrolled_tokens(parents: Any, lengths: Any) -> list[np.ndarray]:
    """For each leaf, the numbers of the tokens of its sequence, from the root on. Arguments as of
    `Mask.from_tree`."""
    with refused("This tree"):
        tree = of_tree(parents, lengths)
    sequences = []
    for leaf in np.flatnonzero(tree.is_leaf).tolist():
        nodes = [leaf]
        while tree.parents[nodes[-1]] >= 0:
            nodes.append(int(tree.parents[nodes[-1]]))
        sequences.append(spread(tree.bounds[nodes[::-1]], tree.bounds[np.array(nodes[::-1]) + 1])[1])
    return sequences


class SequenceTree(NamedTuple):
    """A checked tree, or several; node n has the tokens bounds[n]..bounds[n + 1]."""

    parents: np.ndarray  # int64 (nodes,), −1 for a root; less than the node's own number
    lengths: np.ndarray  # int64 (nodes,)
    bounds: np.ndarray  # int64 (nodes + 1,)
    depths: np.ndarray  # int64 (nodes,): tokens above the node
    leaves: np.ndarray  # int64 (nodes,): leaves at or below the node

    @property
    def seqlen(self) -> int:
        return int(self.bounds[-1])

    @property
    def is_leaf(self) -> np.ndarray:
        return np.bincount(self.parents[self.parents >= 0], minlength=len(self.parents)) == 0

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The tree as parameters of a mask, which records keep: `node_above` is the number of the node above,
        counted from 1, and 0 for a root."""
        return {"node_above": self.parents + 1, "node_lengths": self.lengths}

    @property
    def num_unrolled_tokens(self) -> int:
        """Tokens of all sequences, each with its own copy of what it shares."""
        return int(((self.depths + self.lengths) * self.is_leaf).sum())

    @property
    def unrolled_area(self) -> int:
        """Visible pairs of all sequences under a causal mask."""
        tokens = (self.depths + self.lengths)[self.is_leaf]
        return int((tokens * (tokens + 1) // 2).sum())

    def bands(self) -> np.ndarray:
        """For each node, one band for each run of nodes at or below it: a single one where nodes come depth
        first."""
        node, first, last = _runs_below(self.parents)
        return band.make(
            self.bounds[first], self.bounds[last], self.bounds[node], self.bounds[node + 1], hi=0
        )


def of_tree(parents: Any, lengths: Any) -> SequenceTree:
    """The checked tree. Raises ValueError for arguments that are none."""
    above = whole_numbers(parents, "parents")
    tokens = whole_numbers(lengths, "lengths of nodes")
    if above.ndim != 1 or above.shape != tokens.shape or len(above) == 0:
        raise ValueError(
            f"parents and lengths are one number for each node, and they are {above.shape} and {tokens.shape}"
        )
    if tokens.min() < 1:
        raise ValueError(f"a node has at least 1 token, and node {int(tokens.argmin())} has {tokens.min()}")
    check_total(tokens, "lengths of nodes")
    wrong = np.flatnonzero((above < -1) | (above >= np.arange(len(above))))
    if len(wrong):
        raise ValueError(
            f"the parent of a node is an earlier node, or −1 for a root, and that of node {wrong[0]} is "
            f"{above[wrong[0]]}"
        )
    depths = np.zeros(len(above), dtype=np.int64)
    leaves = np.zeros(len(above), dtype=np.int64)
    order = above.tolist()
    for node, parent in enumerate(order):
        if parent >= 0:
            depths[node] = depths[parent] + tokens[parent]
    leaves[:] = np.bincount(above[above >= 0], minlength=len(above)) == 0
    for node in range(len(order) - 1, -1, -1):
        if order[node] >= 0:
            leaves[order[node]] += leaves[node]
    return SequenceTree(above, tokens, np.concatenate([[0], np.cumsum(tokens)]), depths, leaves)


def renumbered(parents: list[int], order: Literal["depth", "breadth"]) -> list[int]:
    """The same trees with their nodes in another order: each before those below it and these before its next
    sibling ("depth"), or level by level ("breadth").

    Args:
        parents: −1 for a root, else the number of an earlier node.

    Returns: The parents in the new order.
    """
    below: list[list[int]] = [[] for _ in parents]
    waiting: deque[int] = deque()
    for node, parent in enumerate(parents):
        (waiting if parent < 0 else below[parent]).append(node)
    number = [0] * len(parents)
    ordered: list[int] = []
    while waiting:
        node = waiting.popleft()
        number[node] = len(ordered)
        ordered.append(-1 if parents[node] < 0 else number[parents[node]])
        if order == "depth":
            waiting.extendleft(reversed(below[node]))
        else:
            waiting.extend(below[node])
    return ordered


def _runs_below(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(node, first, last): the nodes first..last are at or below that node, as maximal runs."""
    runs: list[list[tuple[int, int]]] = [[(node, node + 1)] for node in range(len(parents))]
    for node in range(len(parents) - 1, 0, -1):  # all below it have been added, since they come later
        parent = int(parents[node])
        if parent >= 0:
            runs[parent] = _merged(runs[parent], runs[node])
    flat = [(node, *run) for node, own in enumerate(runs) for run in own]
    node, first, last = np.array(flat, dtype=np.int64).T
    return node, first, last


def _merged(own: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of two lists of disjoint runs, as sorted runs that do not touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(own + other):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged
