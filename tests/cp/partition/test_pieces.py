"""The pieces of a mask's bands on the chunks of a sharding: few bands in each step."""

import numpy as np

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.ring_and_gather import Ring
from longca.masks import build_mask
from tests.helpers.cp.plans import all_steps


def test_zigzag_causal_has_three_bands_in_a_step_at_most():
    mask = build_mask("causal", seqlen=960)
    steps = all_steps(Ring().plan(mask, make_sharding("zigzag", mask, 8)))
    assert max(len(step.mask.bands) for step in steps) == 3
    assert np.ptp([step.area for step in steps if step.number]) == 0


def test_a_step_without_hidden_pairs_is_one_band():
    """The first of three chunks of keys, seen by all queries of a later rank whose own chunks lie apart."""
    plan = Ring().plan(
        build_mask("causal", seqlen=600), make_sharding("zigzag", build_mask("causal", seqlen=600), 3)
    )
    step = next(step for step in plan.steps(2) if step.number)
    assert step.mask.traits.full and len(step.mask.groups[0]) == 1
    assert step.mask.area == step.area and (step.mask.seqlen_q, step.mask.seqlen_k) == (200, step.num_keys)
