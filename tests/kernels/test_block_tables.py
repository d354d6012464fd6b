import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.block_tables import block_tables, not_blocks_of, split_blocks
from longca.masks import build_mask
from tests.kernels.cases import Case

CPU = torch.device("cpu")


def test_lists_are_the_mask_both_ways() -> None:
    mask = build_mask("block_sparse_uniform", seqlen=256, seed=2, num_kv_heads=2, block=32)
    tables = block_tables(mask, CPU, num_lists=6)
    assert (tables.block_q, tables.block_k) == (32, 32) and tables.num_bytes > 0
    for head in range(6):
        seen, seen_by = torch.zeros(2, 8, 8, dtype=torch.bool)
        for block in range(8):
            seen[block, tables.q_to_k[head, block, : tables.q_to_k_counts[head, block]].long()] = True
            seen_by[tables.k_to_q[head, block, : tables.k_to_q_counts[head, block]].long(), block] = True
        assert np.array_equal(seen, mask.grid.visible[head // 3]) and np.array_equal(seen_by, seen)


def test_a_forward_pass_pays_for_the_lists_of_queries_alone() -> None:
    case = Case(build_mask("block_sparse_uniform", seqlen=256, num_kv_heads=2), 4, 2, head_dim=128)
    both, of_queries = (
        block_tables(case.mask, CPU, num_lists=4, of_keys=of_keys) for of_keys in (True, False)
    )
    assert torch.equal(of_queries.q_to_k, both.q_to_k) and torch.equal(
        of_queries.q_to_k_counts, both.q_to_k_counts
    )
    assert of_queries.num_bytes == of_queries.q_to_k.nbytes + of_queries.q_to_k_counts.nbytes < both.num_bytes
    fwd, bwd = (
        Registry("kernel").load("vsa").prepare(case.problem(direction)).costs["metadata_bytes"]
        for direction in ("fwd", "bwd")
    )
    assert bwd - fwd == both.num_bytes - of_queries.num_bytes


def test_split_blocks_are_the_same_mask() -> None:
    mask = build_mask("block_sparse_uniform", seqlen=192, seed=2, num_kv_heads=2, block=64)
    part = split_blocks(mask, 16)
    assert part.traits.block_size == (16, 16) and np.array_equal(part.dense(), mask.dense())
    assert split_blocks(mask, 64) is mask
    shorter = mask.crop((0, 160), (0, 176))  # the last blocks are 32 and 48
    assert np.array_equal(split_blocks(shorter, 16).dense(), shorter.dense())
    with pytest.raises(ValueError, match="48s"):
        split_blocks(mask, 48)


def test_says_what_is_wrong_with_the_blocks() -> None:
    uniform = build_mask("block_sparse_uniform", seqlen=256, num_kv_heads=2, block=64)
    assert not_blocks_of(uniform.traits, 32) is None
    assert "128 × 128" in not_blocks_of(uniform.traits, 128)
    assert "multiples" in not_blocks_of(uniform.crop((0, 250), (0, 256)).traits, 64)
    variable = build_mask("block_sparse_variable", seqlen=256, num_kv_heads=2, mean_block=64)
    assert "one size" in not_blocks_of(variable.traits, 64)
    assert "block masks" in not_blocks_of(build_mask("causal", seqlen=64).traits, 64)
    with pytest.raises(ValueError, match="one size"):
        block_tables(variable, CPU)
