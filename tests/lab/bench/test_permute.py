"""Inputs on their way from contiguous shards to where a strategy wants them."""

import numpy as np
import pytest
import torch

from longca.cp.partition.sharding import even_ranges
from longca.lab.bench.measure.permute import Permutation
from tests.helpers.cp.virtual import VirtualComm, on_virtual_ranks

TOKENS = 11
WORLD = 3
RNG = np.random.default_rng(0)
PLACEMENTS = {
    "stripes": [np.arange(rank, TOKENS, WORLD) for rank in range(WORLD)],
    "zigzag": [np.array([0, 1, 9, 10]), np.array([2, 3, 7, 8]), np.array([4, 5, 6])],
    "any": np.array_split(RNG.permutation(TOKENS), (2, 2)),  # one rank has nothing
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_token_arrives_where_it_belongs(name):
    whole = torch.arange(TOKENS * 6.0).view(TOKENS, 2, 3)
    parts = even_ranges(TOKENS, WORLD)

    def job(comm: VirtualComm) -> tuple[torch.Tensor, float]:
        comm.any, rank = bool, comm.rank
        permutation = Permutation(PLACEMENTS[name], rank)
        assert permutation.mine == parts[rank] and not permutation.is_identity
        mine = whole[parts[rank].start : parts[rank].stop]
        return permutation.apply(mine, comm), permutation.time_ms([mine, mine[:, :1]], comm)

    actual = on_virtual_ranks(job, WORLD)
    for rank, positions in enumerate(PLACEMENTS[name]):
        rows, time_ms = actual[rank]
        assert torch.equal(rows, whole[positions]) and time_ms > 0


def test_contiguous_shards_stay_where_they_are():
    parts = [np.arange(part.start, part.stop) for part in even_ranges(TOKENS, WORLD)]
    assert Permutation(parts, 0).is_identity
    assert Permutation(parts, 0).time_ms([], None) == 0


@pytest.mark.parametrize("positions", [[np.array([0, 1]), np.array([1, 2])], [np.array([0]), np.array([2])]])
def test_a_token_that_is_nowhere_or_twice_is_refused(positions):
    with pytest.raises(ValueError, match="each token once"):
        Permutation(positions, 0)
