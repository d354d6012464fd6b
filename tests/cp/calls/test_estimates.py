"""Estimates of strategies' calls: lower bounds hold, and hide no faster strategy."""

import subprocess
import sys
from typing import Literal

import pytest

from longca.core import CallSpec
from longca.core.plugin import Registry
from longca.cp.calls.estimates import Estimate, Forecaster, fastest
from longca.cp.schedule.work_partition import WorkPartition
from longca.masks import Mask, build_mask

STRATEGIES = ("loongtrain", "ring_allgather", "ring_p2p", "ulysses", "usp")


def call(direction: Literal["fwd", "bwd"] = "bwd", dtype: Literal["bf16", "fp32"] = "bf16") -> CallSpec:
    return CallSpec(64, 8, 128, dtype, direction)


def partition(strategy: str, mask: Mask, world: int) -> WorkPartition:
    return (
        Registry("strategy")
        .load(strategy)
        .partition_call(mask, call(), world, Registry("kernel").load("band"), "cuda")
    )


def test_seconds_are_those_of_records_and_none_elsewhere():
    work = partition("ring_p2p", build_mask("causal", seqlen=16384), 2)
    forecaster = Forecaster(Registry("kernel").load("band"), "symmetric", 8)
    both = forecaster.estimate(work, call())
    forward = forecaster.estimate(work, call("fwd"))
    assert both is not None and forward is not None
    assert 2 * forward.seconds < both.seconds < 6 * forward.seconds
    assert forecaster.estimate(work, call(dtype="fp32")) is None
    assert Forecaster(Registry("kernel").load("control"), "nccl", 8).estimate(work, call()) is None


@pytest.mark.parametrize("name", ["causal", "causal_document", "sliding_window", "block_causal_document"])
def test_lower_bounds_hold(name: str):
    mask = build_mask(name, seqlen=16384)
    forecaster = Forecaster(Registry("kernel").load("band"), "nccl", 2)
    for strategy in STRATEGIES:
        for world in (2, 4, 6):
            estimate = forecaster.estimate(partition(strategy, mask, world), call())
            assert estimate is not None
            assert 0 < estimate.least_s <= estimate.seconds * (1 + 1e-12), (strategy, world)


def test_the_fastest_is_found_without_what_cannot_be_faster():
    asked = []

    def estimate(name: str, least_s: float, seconds: float) -> Estimate:
        return Estimate(least_s, lambda: asked.append(name) or seconds)

    estimates = {
        "slow": estimate("slow", 4.0, 9.0),
        "equal": estimate("equal", 2.0, 3.0),
        "first bound": estimate("first bound", 1.0, 3.0),
        "within rounding": estimate("within rounding", 3.0 * (1 + 1e-12), 3.0),
    }
    assert fastest(estimates) == "equal", "the first of equal ones"
    assert asked == ["first bound", "equal", "within rounding"]
    assert estimates["slow"].seconds == 9.0


def test_estimates_of_several_masks_add_up():
    both = Estimate.sum_of([Estimate.of(2.0), Estimate(1.0, lambda: 5.0)])
    assert (both.least_s, both.seconds) == (3.0, 7.0)


def test_a_given_strategy_loads_no_models_of_time():
    program = (
        "import sys, longca; mask = longca.build_mask('causal', seqlen=16); "
        "longca.context_parallel(mask, strategy='ring_p2p', num_q_heads=2, head_dim=16).close(); "
        "sys.exit(', '.join(name for name in sys.modules if name.startswith('longca.predict')) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
