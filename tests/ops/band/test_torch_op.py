"""Plans as the tables and numbers that operators of torch take."""

from dataclasses import fields

import pytest
import torch

from longca.masks import build_mask
from longca.ops.band.config import choose_tiles
from longca.ops.band.plan import plan_band_attention
from longca.ops.band.tables.schedule import AddOrder
from longca.ops.band.torch_op import flatten, unflatten

CPU = torch.device("cpu")
HOPPER = (9, 0)


@pytest.mark.parametrize("order", [None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST])
def test_operators_of_torch_see_the_whole_plan(order: AddOrder | None) -> None:
    """They take tables and numbers, of which a plan is made again."""
    plan = plan_band_attention(
        build_mask("causal", seqlen=1024),
        num_q_heads=8,
        num_kv_heads=1,
        head_dim=128,
        device=CPU,
        tiles=choose_tiles(128, HOPPER, dq_order=order),
    )
    again = unflatten(*flatten(plan), torch.empty(1024, 8, 128), torch.empty(1024, 1, 128))
    assert any(schedule.stores_first for schedule, _ in plan.kernels.values()) is (
        order is AddOrder.FROM_FIRST
    )
    for kernel, (schedule, config) in plan.kernels.items():
        actual, found_config = again.kernels[kernel]
        assert found_config == config
        for field in fields(schedule):
            first = getattr(schedule, field.name)
            other = getattr(actual, field.name)
            assert (
                first is other
                if isinstance(first, torch.Tensor)
                else (first, type(first)) == (other, type(other))
            ), field.name
