"""The plan of attention in a fixed order: strategies, kernels and lengths that it refuses."""

from __future__ import annotations

from longca.core.plugin import Registry
from longca.cp.schedule.fixed_plan import fixed_refusal
from tests.helpers.cp.case import Case


def test_refusals() -> None:
    problem = Case("causal", 64, 4, 2).problem()

    def refused(strategy: str, world: int, kernel: str = "naive") -> str | None:
        plugin = Registry("strategy").load(strategy)
        return fixed_refusal(
            plugin, problem.mask, problem.call_spec, world, Registry("kernel").load(kernel), "cpu"
        )

    assert refused("ring_p2p", 12) is None
    assert "12 parts for 64 tokens, too few for 13 ranks" in (refused("ring_p2p", 13) or "")
    assert "never change" in (refused("ring_p2p", 2, "sdpa") or "")
    assert "never change" in (refused("ulysses", 2, "band_atomic") or "")
    grid = Case("block_sparse_uniform", 64, 6, 6, params=(("block", 16), ("density", 0.5))).problem()
    ulysses = Registry("strategy").load("ulysses")
    kernel = Registry("kernel").load("naive")
    reason = fixed_refusal(ulysses, grid.mask.select_groups(0, 2), grid.call_spec, 4, kernel, "cpu")
    assert "2 head groups" in (reason or "")
