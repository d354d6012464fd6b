"""Forward and backward of whole plans, up to 96 ranks, against dense attention in float64."""

import numpy as np
import pytest
import torch

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.masks import Mask, band, build_mask
from tests.helpers.cp.case import STATIC_MASKS
from tests.helpers.cp.plan_run import PlanRun
from tests.helpers.kernels.plain_attention import plain_attention

SCHEDULES = {
    "gather": Gather(),
    "gather-first": Gather(0),
    "gather-3": Gather(3),
    "ring": Ring(),
    "double-ring": Ring(2),
    "two-way": Ring(two_way=True),
}
MASKS = STATIC_MASKS | {
    "prefix_tree": {"trees": 2, "branches": 3}, "sink_local": {"num_sinks": 3, "window": 9}, "chunked_local": {"chunk": 20},  # noqa: E501
    "longformer": {"num_global": 3, "window": 4, "dilation": 3}, "hstu": {"num_context": 3, "num_candidates": 4}}  # fmt: skip  # noqa: E501
NAMES = ("contiguous", "zigzag", "stripes", "heap-8", "level-8")
HEADS = ((4, 4), (4, 1))


def check(
    mask: Mask, world: int, permutation: str, schedule: Gather | Ring, heads: tuple[int, int] = (4, 1)
) -> None:
    generator = torch.Generator().manual_seed(mask.seqlen_q)
    num_q_heads, num_kv_heads = heads
    q, k, v, dout = (
        torch.randn(mask.seqlen_q, count, 8, generator=generator, dtype=torch.float64)
        for count in (num_q_heads, num_kv_heads, num_kv_heads, num_q_heads)
    )
    expected = plain_attention(q, k, v, dout, mask.dense())
    run = PlanRun(schedule.plan(mask, make_sharding(permutation, mask, world)), q, k, v)
    out, lse = run.forward()
    torch.testing.assert_close((out, lse), (expected.out, expected.lse), atol=1e-12, rtol=0)
    torch.testing.assert_close(run.backward(out, lse, dout), expected.grads, atol=1e-11, rtol=0)


@pytest.mark.parametrize("permutation", NAMES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.sample(7)
def test_every_mask(name: str, schedule: str, permutation: str):
    number = list(MASKS).index(name) + NAMES.index(permutation)
    mask = build_mask(name, seqlen=64 if "block" in MASKS[name] else 61 + number, **MASKS[name])
    check(mask, (2, 4, 6)[number % 3], permutation, SCHEDULES[schedule], HEADS[number // 3 % 2])


@pytest.mark.parametrize(
    ("name", "permutation"),
    [
        ("causal_document", "contiguous"),
        ("causal", "zigzag"),
        ("shared_question", "stripes"),
        ("prefix_lm", "heap-8"),
    ],
)
@pytest.mark.parametrize(
    ("world", "schedule"),
    [(3, Gather()), (5, Ring()), (24, Ring(8)), (24, Ring(two_way=True)), (96, Gather()), (96, Ring())],
)
@pytest.mark.sample(6)  # 96 ranks by a gather, whose steps are few
def test_many_ranks(name: str, permutation: str, world: int, schedule: Gather | Ring):
    check(build_mask(name, seqlen=2 * 96 + 1), world, permutation, schedule)


@pytest.mark.parametrize("permutation", NAMES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_without_keys(schedule: str, permutation: str):
    bands = band.make(
        [0, 20, 40], [10, 40, 60], [30, 0, 50], [60, 30, 60], [-band.INF, -25, -5], [band.INF, 5, 5]
    )
    mask = Mask(70, 70, (bands,))
    assert not np.all(mask.dense().any(axis=1)), "some rows see no key"
    check(mask, 4, permutation, SCHEDULES[schedule])


@pytest.mark.parametrize("permutation", NAMES)
@pytest.mark.parametrize("schedule", ["gather", "ring"])
def test_block_masks_that_differ_by_kv_head(schedule: str, permutation: str):
    mask = build_mask("block_sparse_uniform", seqlen=128, num_kv_heads=2, block=16, density=0.4)
    check(mask, 3, permutation, SCHEDULES[schedule], (4, 2))


@pytest.mark.parametrize("permutation", NAMES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_ranks_than_tokens(schedule: str, permutation: str):
    check(build_mask("causal", seqlen=5), 8, permutation, SCHEDULES[schedule])
