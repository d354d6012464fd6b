"""Prefix trees: what a token sees and where it stands is what its sequences say, and a loss on the tree is
theirs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import longca
from longca.core.errors import UserError
from longca.masks import Mask, band, tree_position_ids, tree_predictions, unrolled_tokens
from tests.helpers.masks.strategies import quick


@st.composite
def trees(draw, most_nodes: int = 12) -> tuple[list[int], list[int]]:
    """Any forest, in any order in which parents come first."""
    count = draw(st.integers(1, most_nodes))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    return parents, draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))


@quick
@given(trees())
def test_a_token_sees_what_it_sees_in_its_sequences(tree):
    mask = Mask.from_tree(*tree)
    positions = tree_position_ids(*tree)
    expected = np.zeros((mask.seqlen_q, mask.seqlen_k), dtype=bool)
    for tokens in unrolled_tokens(*tree):
        assert positions[tokens].tolist() == list(range(len(tokens)))
        expected[np.ix_(tokens, tokens)] |= np.tri(len(tokens), dtype=bool)
    assert np.array_equal(mask.dense(), expected)
    assert mask.area == expected.sum() and band.overlap(mask.bands) is None


def test_depth_first_nodes_have_one_band_each_however_many_they_are():
    parents = [-1, *[0] * 3000, *range(3000, 5999)]  # a star, whose last ray is a chain
    assert len(Mask.from_tree(parents, [2] * 6000).bands) <= 6000
    assert Mask.from_tree([-1, 0, 0], [3, 2, 2]).bands.tolist()[0][:4] == [0, 7, 0, 3]


class Model(torch.nn.Module):
    """One layer of attention, whose positions count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 16)
        self.place = torch.nn.Embedding(64, 16)
        self.read = torch.nn.Linear(16, 11)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        x = (self.embed(tokens) + self.place(positions)).unflatten(1, (2, 8))
        return self.read(x.flatten(1) + longca.attention(x, x, x, mask).flatten(1))


@quick
@given(trees(), st.integers(0, 9))
def test_the_loss_and_its_gradients_are_those_of_the_unrolled_sequences(tree, seed):
    torch.manual_seed(seed)
    model = Model().double()
    tokens = torch.randint(0, 11, (sum(tree[1]),))
    source, target, count = map(torch.from_numpy, tree_predictions(*tree))
    logits = model(tokens, torch.from_numpy(tree_position_ids(*tree)), Mask.from_tree(*tree))
    loss = (count * torch.nn.functional.cross_entropy(logits[source], tokens[target], reduction="none")).sum()
    unrolled = torch.zeros((), dtype=torch.float64)
    for sequence in map(torch.from_numpy, unrolled_tokens(*tree)):
        own = model(tokens[sequence], torch.arange(len(sequence)), Mask.from_windows(len(sequence), (-1, 0)))
        unrolled = unrolled + torch.nn.functional.cross_entropy(
            own[:-1], tokens[sequence][1:], reduction="sum"
        )
    torch.testing.assert_close(loss, unrolled)
    for grads in zip(
        *(torch.autograd.grad(of, list(model.parameters())) for of in (loss, unrolled)), strict=True
    ):
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (([], []), "parents and lengths are one number for each node"),
        (([-1, 0], [3]), "parents and lengths are one number for each node"),
        (([-1, 0], [3, 0]), "a node has at least 1 token, and node 1 has 0"),
        (
            ([-1, 1], [3, 1]),
            "the parent of a node is an earlier node, or −1 for a root, and that of node 1 is 1",
        ),
        (([-1, -2], [3, 1]), "that of node 1 is -2"),
        (([-1, 0.5], [3, 1]), "parents must be whole numbers"),
    ],
)
@pytest.mark.parametrize("call", [Mask.from_tree, tree_position_ids, tree_predictions, unrolled_tokens])
def test_what_is_no_tree(call, tree, said):
    with pytest.raises(UserError, match=r"^This tree is no mask") as refused:
        call(*tree)
    assert said in str(refused.value)
