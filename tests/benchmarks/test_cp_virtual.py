"""Tests of virtual ranks, at toy size on a CPU."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cp import virtual as cp_virtual
from benchmarks.cp.step_times import Clock, Passes
from benchmarks.cp.virtual_ranks import FEWEST_RANKS, VirtualRanks, interpolated
from longca.core.plugin import Registry
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.work_partition import WorkPartition
from longca.kernels.contract import Contribution, Problem
from longca.lab.studies.grid import Measure
from tests.helpers.cp.case import Case
from tools.table import read_records

TINY = [
    "--device",
    "cpu",
    "--tokens",
    "64",
    "--heads",
    "8:4",
    "--head-dim",
    "16",
    "--seconds",
    "10000",
    "--kernel",
    "naive",
]
MEASURE = Measure.fixed(warmup=0, repeats=1, max_seconds=0.01)


def divided(
    strategy: str, mask: str, world: int, heads: tuple[int, int] = (8, 4), **params: int
) -> tuple[WorkPartition, Case]:
    case = Case(mask, 32 * world, *heads, strategy=strategy, params=tuple(params.items()))
    return Registry("strategy").load(strategy).partition_work(
        case.problem(), Registry("kernel").load("naive"), world
    ), case


class CountingClock(Clock):
    """Runs each call once, and says it took a second."""

    def __init__(self) -> None:
        super().__init__(Registry("kernel").load("naive"), torch.device("cpu"), MEASURE)
        self.calls = 0

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        self.calls += 1
        return 1.0


class PairsClock(CountingClock):
    """Kernels whose time is that of their pairs, and nothing beside them takes any."""

    def __init__(self, pair_s: float, passes: Passes | None = None) -> None:
        super().__init__()
        self.pair_s = pair_s
        self._counted = passes or Passes(0.0, 0.0, 0.0)

    def steps(self, plan: Plan, rank: int, problem: Problem) -> dict[int, tuple[float, float]]:
        pairs = plan.step_areas[rank] + 128 * plan.step_band_rows[rank]
        return {
            step.number: (self.pair_s * pairs[step.number], 2 * self.pair_s * pairs[step.number])
            for step in plan.steps(rank)
        }

    def passes(self, problem: Problem) -> Passes:
        return self._counted


def test_a_table_of_what_is_measured_and_what_is_modelled(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin cp_virtual -->\n<!-- end cp_virtual -->\n")
    wanted = [
        "--worlds",
        "1,2,6",
        "--masks",
        "causal,full_document",
        "--out",
        str(tmp_path),
        "--write",
        str(page),
    ]
    assert cp_virtual.main([*TINY, *wanted]) == 0
    lines = {
        (line["mask"], int(line["world"]), line["strategy"]): line
        for line in read_records(tmp_path, "cp_virtual")
    }
    assert set(lines) == {
        (mask, world, strategy)
        for mask in ("causal", "full_document")
        for world in (1, 2, 6)
        for strategy in ("alone", *cp_virtual.STRATEGIES)
    }
    for (_, world, strategy), line in lines.items():
        assert not line["reason"]
        for direction in ("fwd", "bwd"):
            computed = float(line[f"{direction}_computed_tflops"])
            assert computed > 0
            if strategy != "alone":
                assert int(line["timed_ranks"]) == world
                assert float(line[f"{direction}_imbalance"]) >= 1
                assert 0 <= float(line[f"{direction}_exposed"]) < 1
                assert float(line[f"{direction}_modelled_tflops"]) <= computed * (1 + 1e-12)
                if world == 1:
                    assert math.isclose(float(line[f"{direction}_modelled_tflops"]), computed), (
                        "one rank sends nothing"
                    )
    text = page.read_text()
    assert text.count(" → ") == 2 * 3 * len(cp_virtual.STRATEGIES)
    assert "**Measured on this one device, without any message:**" in text
    assert "**Modelled, not measured on several devices:**" in text
    steps = read_records(tmp_path, cp_virtual.STEPS)
    assert {(step["world"], step["strategy"]) for step in steps} == {
        (str(w), s) for w in (1, 2, 6) for s in cp_virtual.STRATEGIES
    }
    assert all(
        float(step["fwd_ms"]) > 0 and float(step["bwd_ms"]) > 0 and int(step["area"]) > 0 for step in steps
    )


def test_what_a_kernel_cannot_do_is_a_line_too(tmp_path: Path):
    sdpa = [*TINY[:-1], "sdpa"]
    assert (
        cp_virtual.main(
            [
                *sdpa,
                "--worlds",
                "2",
                "--masks",
                "causal",
                "--strategies",
                "ring_p2p,ulysses",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    alone, ring, ulysses = read_records(tmp_path, "cp_virtual")
    assert "no LSE" in ring["reason"] and not ring["fwd_modelled_tflops"]
    assert float(ulysses["bwd_modelled_tflops"]) > 0 and float(alone["bwd_computed_tflops"]) > 0


def test_lines_that_time_does_not_allow_are_left_out_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert (
        cp_virtual.main(
            [*TINY, "--worlds", "2", "--masks", "causal", "--seconds", "-1", "--out", str(tmp_path)]
        )
        == 0
    )
    assert "5 of 5 lines are left out" in capsys.readouterr().out
    assert read_records(tmp_path, "cp_virtual") == []


@pytest.mark.parametrize("strategy", cp_virtual.STRATEGIES)
def test_every_step_of_every_rank_is_timed_and_equal_ones_once(strategy: str):
    for world, mask in ((3, "causal"), (8, "full"), (8, "causal_document")):
        division, case = divided(strategy, mask, world)
        clock = CountingClock()
        ranks = VirtualRanks(division, case.problem(), clock)
        ranks.time(math.inf)
        assert ranks.timed.all()
        steps = ranks.timed_steps()
        seen = {(step["ring_rank"], step["step"]) for step in steps}
        assert seen == {
            (rank, step.number) for rank in range(division.mesh.ring) for step in division.plan.steps(rank)
        }
        assert all(step["fwd_ms"] == step["bwd_ms"] == 1e3 for step in steps)
        first = clock.calls
        clock.calls = 0
        again = VirtualRanks(division, case.problem(), clock)
        again.time(math.inf)
        assert clock.calls == 0 and again.timed_steps() == steps
        if mask == "full":
            assert first < 2 * len(steps) or len(steps) <= 2, "ranks of a full mask run the same few calls"


def test_calls_are_those_of_the_strategy_on_finite_values(monkeypatch: pytest.MonkeyPatch):
    """The LSE that backward gets is one that the inputs could have."""
    from longca.cp.runtime.accumulate import DqAccumulator
    from longca.cp.runtime.plan_attention import LocalSteps

    grads = []
    plain = LocalSteps.backward

    def backward(
        self: LocalSteps, number: int, total: DqAccumulator, *given: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dk, dv = plain(self, number, total, *given)
        assert total.waiting is not None
        grads.append((total.waiting[1], dk, dv))
        return dk, dv

    monkeypatch.setattr(LocalSteps, "backward", backward)
    division, case = divided("ring_p2p", "causal", 4)
    clock = CountingClock()
    VirtualRanks(division, case.problem(), clock).time(math.inf)
    assert len(grads) >= clock.calls // 2 > 0
    assert all(bool(x.isfinite().all()) and float(x.abs().max()) < 1e3 for three in grads for x in three)


def test_kernels_that_merge_do_so_in_what_is_timed(monkeypatch: pytest.MonkeyPatch):
    """The first of several steps begins the result, each other one merges onto it, and the last one ends
    it."""
    from longca.kernels.backends.naive import Naive, NaivePrepared

    collected = []
    found_dq = []

    def forward_onto(
        self: NaivePrepared,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: tuple[Contribution, ...],
    ) -> None:
        collected.extend((contribution.is_first, contribution.is_last) for contribution in contributions)
        part = self.forward(q, k, v)
        assert part.lse is not None
        total.copy_(self.from_layout(part.out))
        lse.copy_(self.lse_from_layout(part.lse))

    def backward_onto(self: NaivePrepared, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found_dq.extend((contribution.is_first, contribution.is_last) for contribution in given[-1])
        dq, dk, dv = self.raw_backward(*given[:6])
        assert self.from_layout(dq).shape == given[6].shape == given[7].shape
        return dk, dv

    monkeypatch.setattr(Naive, "merges", True)
    monkeypatch.setattr(NaivePrepared, "forward_onto", forward_onto)
    monkeypatch.setattr(NaivePrepared, "backward_onto", backward_onto)
    division, case = divided("ring_p2p", "full", 3)
    VirtualRanks(division, case.problem(), CountingClock()).time(math.inf)
    first = (True, False)
    middle = (False, False)
    last = (False, True)
    assert collected == found_dq == [first, first, middle, middle, last], (
        "timed, and as what the next is merged onto; other ranks are equal"
    )


def test_chunks_of_heads_can_be_asked_for(tmp_path: Path):
    wanted = [
        "--worlds",
        "2",
        "--masks",
        "full",
        "--strategies",
        "ulysses",
        "--chunks",
        "1:1",
        "--out",
        str(tmp_path),
    ]
    assert cp_virtual.main([*TINY, *wanted]) == 0
    assert "in chunks of 2, 2" in read_records(tmp_path, "cp_virtual")[1]["how"]


def test_ranks_that_are_not_timed_are_interpolated():
    division, case = divided("ring_p2p", "causal_document", 12)
    all_ranks, few = (VirtualRanks(division, case.problem(), PairsClock(1e-9)) for _ in range(2))
    all_ranks.time(math.inf)
    few.time(-math.inf)
    assert few.timed.sum() == FEWEST_RANKS
    load = division.plan.step_areas.sum(axis=1) + 128 * division.plan.step_band_rows.sum(axis=1)
    assert few.timed[load.argmax()]
    for direction in ("fwd", "bwd"):
        np.testing.assert_allclose(few.step_s(direction)[0, 0], all_ranks.step_s(direction)[0, 0])


def test_interpolation_by_hand():
    actual = interpolated(
        np.array([[0.0, 5.0], [10.0, 15.0], [20.0, 40.0]]), np.array([20.0, 10.0]), np.array([4.0, 3.0])
    )
    np.testing.assert_allclose(actual, [[0, 1.5], [3, 3.5], [4, 8]])
    np.testing.assert_allclose(interpolated(np.array([[1.0]]), np.empty(0), np.empty(0)), [[0]])


def test_elementwise_work_is_counted_once_for_each_token():
    division, case = divided("ring_p2p", "full", 4)
    ranks = VirtualRanks(
        division, case.problem(), PairsClock(0.0, Passes(result_s=1.0, sums_s=100.0, add_key_s=1e4))
    )
    ranks.time(math.inf)
    tokens = case.seqlen // 4
    np.testing.assert_allclose(ranks.step_s("fwd")[0, 0].sum(axis=1), tokens)
    np.testing.assert_allclose(ranks.step_s("bwd")[0, 0].sum(axis=1), 100 * tokens + 1e4 * 3 * tokens)


def test_masks_that_differ_by_kv_head_have_a_part_for_each_share_of_them():
    division, case = divided("usp", "block_sparse_uniform", 4, (8, 4), block=16)
    assert division.mesh.heads > 1
    clock = CountingClock()
    ranks = VirtualRanks(division, case.problem(), clock)
    ranks.time(math.inf)
    assert {step["group_rank"] for step in ranks.timed_steps()} == set(range(division.mesh.heads))
    assert set(ranks.step_s("bwd")) == {
        (place, number) for place in range(len(division.chunks)) for number in range(division.mesh.heads)
    }
