"""Fixed parts: a function of the length alone, dealt evenly, and together the whole mask."""

import numpy as np
import pytest

from longca.cp.partition.fixed_parts import TILE, chunk_lengths, deal_parts, num_parts, parts_of
from tests.helpers.cp.case import STATIC_MASKS, Case


@pytest.mark.parametrize("seqlen", [0, 1, 23, 24, 1000, 24575, 24576, 100_001, 1 << 20])
def test_chunks_are_even_and_begin_at_tiles_where_these_are_many(seqlen: int) -> None:
    lengths = chunk_lengths(seqlen)
    assert lengths.sum() == seqlen and len(lengths) == 2 * num_parts(seqlen)
    if seqlen < 24576:
        assert lengths.max() - lengths.min() <= 1
    else:
        assert (lengths[:-1] % TILE == 0).all()
        assert lengths.max() - lengths.min() < 2 * TILE


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 12])
@pytest.mark.parametrize("mask", ["causal", "full_document"])
def test_every_round_has_a_part_for_each_rank(mask: str, world: int) -> None:
    sharding = deal_parts(Case(mask, 480, 1, 1).problem().mask, world)
    for first in range(0, 12, world):
        block = sharding.part_owner[first : first + world]
        assert len(set(block.tolist())) == len(block)
    assert sharding.num_tokens.sum() == 480
    if 12 % world == 0:
        assert (sharding.num_tokens == 480 // world).all()


def test_longer_sequences_have_more_parts() -> None:
    assert [num_parts(length) for length in (1, 12 << 14, (12 << 14) + 1, 1 << 20)] == [12, 12, 24, 96]


@pytest.mark.parametrize("name", [*STATIC_MASKS, "block_sparse_uniform", "block_sparse_variable"])
def test_parts_are_the_whole_mask(name: str) -> None:
    size = "mean_block" if name.endswith("variable") else "block"
    params = ((size, 8), ("density", 0.3)) if name.startswith("block_sparse") else ()
    mask = Case(name, 120, 2, 2, params=params).problem().mask
    dense = mask.dense().reshape(-1, 120, 120)
    rebuilt = np.zeros_like(dense)
    for part in parts_of(mask, deal_parts(mask, 3)):
        rows, keys = (np.concatenate([np.array(one) for one in ranges]) for ranges in (part.rows, part.keys))
        field = part.mask.dense().reshape(-1, len(rows), len(keys))
        rebuilt[:, rows[:, None], keys] = field
        for one in part.keys:  # nothing is asked for in vain at their ends
            column = np.flatnonzero(field.any(axis=(0, 1)))
            assert (
                len(one) and keys[column[0]] == part.keys[0].start and keys[column[-1]] == part.keys[-1][-1]
            )
    assert np.array_equal(rebuilt, dense)
