"""Strategies that are schedules: what they ask of kernels, what their results are worth, and what they hold
in memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.partition.mesh import formula_bytes
from longca.cp.planned import PlannedStrategy, rank_calls, step_traits
from longca.cp.schedule.plan import Schedule
from longca.cp.schedule.planner import Planner, ScoredPlan
from longca.lab.studies.cell import Cell
from longca.lab.studies.masks import cell_mask
from longca.masks import Mask
from longca.masks.mask import LazyMask
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.peak import Peak
from tests.helpers.cp.virtual import on_virtual_ranks

PLANNED = [
    name
    for name in Registry("strategy").names()
    if isinstance(Registry("strategy").load(name), PlannedStrategy)
]
BLOCKS = (("block", 16), ("density", 0.5))


def cell(
    strategy: str,
    mask: str = "causal",
    *,
    kernel: str = "naive",
    world: int = 4,
    heads: tuple[int, int] = (8, 4),
    **changes: Any,
) -> Cell:
    pattern = Registry("mask").load(mask)
    params = pattern.resolve(STATIC_MASKS.get(mask, {}) | changes.pop("params", {}))
    fields = {
        "kind": "cp",
        "kernel": kernel,
        "strategy": strategy,
        "world": world,
        "mask": mask,
        "mask_params": params,
        "seqlen": 256,
        "corpus": "pile" if pattern.uses_documents else None,
        "num_q_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim": 128,
        "dtype": "bf16",
        "direction": "bwd",
    }
    return Cell(**fields | changes)


def refusal(asked: Cell, device_type: str = "cuda") -> str | None:
    strategy = Registry("strategy").load(asked.strategy)
    kernel = Registry("kernel").load(asked.kernel)
    return strategy.refusal(cell_mask(asked), asked.call_spec, asked.world, kernel, device_type)


def test_there_are_four():
    assert PLANNED == ["loongtrain", "ring_allgather", "ring_p2p", "usp"]


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize(
    ("kernel", "device_type", "direction", "words"),
    [
        ("naive", "cpu", "bwd", None),
        ("band", "cuda", "bwd", None),
        ("flashmask", "cuda", "bwd", None),
        ("cudnn_flex", "cuda", "bwd", None),
        ("flex", "cuda", "fwd", None),
        ("flex", "cuda", "bwd", "no backward from an LSE"),
        ("flex", "cpu", "fwd", "no LSE on CPU"),
        ("sdpa", "cpu", "fwd", "no LSE"),
        ("flex_flash", "cuda", "fwd", "no LSE"),
        ("control", "cpu", "fwd", "no LSE"),
    ],
)
def test_kernels_must_be_able_to_attend_in_parts(
    strategy: str, kernel: str, device_type: str, direction: str, words: str | None
):
    reason = refusal(cell(strategy, kernel=kernel, direction=direction), device_type)
    assert (reason is None) if words is None else (words in str(reason))


@pytest.mark.parametrize("strategy", [*PLANNED, "ulysses"])
@pytest.mark.parametrize("kernel", ["fa3", "fa4", "band"])
def test_a_mask_is_built_only_where_its_traits_do_not_decide(strategy: str, kernel: str):
    plugin = Registry("strategy").load(strategy)
    rows = Registry("kernel").load(kernel)
    built: list[str] = []
    for name in ("causal", "causal_document", "full_document", "prefix_lm"):
        asked = cell(strategy, name, kernel=kernel, seqlen=4096)
        mask = cell_mask(asked)
        lazy = LazyMask(mask.traits, lambda name=name, mask=mask: built.append(name) or mask)
        assert plugin.refusal(lazy, asked.call_spec, asked.world, rows, "cuda") == refusal(asked)
    assert bool(built) == (strategy != "ulysses" and kernel != "band")


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("kernel", ["fa2", "fa3", "torch_flash", "cudnn", "cudnn_graph"])
def test_kernels_of_segments_do_what_steps_of_zigzag_need(strategy: str, kernel: str):
    """Its own part is causal, and of others a rank sees whole rectangles."""
    for mask in ("full", "causal"):
        assert refusal(cell(strategy, mask, kernel=kernel, seqlen=65536 + 1)) is None
    assert "more than segments" in str(refusal(cell(strategy, "prefix_lm", kernel=kernel, seqlen=65536)))


@pytest.mark.parametrize("kernel", ["fa3", "fa4", "flashmask", "cudnn_flex", "band"])
@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.sample(4)
def test_what_is_not_refused_gets_a_plan_whose_steps_the_kernel_does(strategy: str, kernel: str):
    plugin = Registry("strategy").load(strategy)
    rows = Registry("kernel").load(kernel)
    taken = set()
    for mask in STATIC_MASKS:
        asked = cell(strategy, mask, kernel=kernel, seqlen=1024)
        plan = plugin._plan_for(cell_mask(asked), asked.call_spec, asked.world, rows, "cuda")
        fits = plugin._support(asked.call_spec, asked.world, rows, "cuda").misfit(plan) is None
        assert fits == (refusal(asked) is None), mask
        taken |= {mask} if fits else set()
    assert taken >= (
        {"full", "causal"}
        if kernel == "fa3"
        else set(STATIC_MASKS)
        if kernel in ("band", "cudnn_flex")
        else {"full"}
    )


@pytest.mark.parametrize("strategy", PLANNED)
def test_block_masks(strategy: str):
    assert refusal(cell(strategy, "block_sparse_uniform", kernel="band", params=dict(BLOCKS))) is None
    assert "one size" in str(
        refusal(cell(strategy, "block_sparse_uniform", kernel="fa2_sparse", params=dict(BLOCKS)))
    )


def test_heads_that_cut_through_mask_groups_are_refused():
    usp = Registry("strategy").load("usp")
    mask = Case("block_sparse_uniform", 64, 12, 6, params=BLOCKS).problem().mask.select_groups(0, 3)
    reason = usp.refusal(
        mask, cell("usp", heads=(12, 6)).call_spec, 4, Registry("kernel").load("naive"), "cpu"
    )
    assert reason is not None
    assert "3 head groups" in reason


@pytest.mark.parametrize("mask", STATIC_MASKS)
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.sample(12)
def test_kernels_are_asked_about_what_they_will_get(
    strategy: str, world: int, mask: str, monkeypatch: pytest.MonkeyPatch
):
    got = []
    naive = type(Registry("kernel").load("naive"))
    prepare = naive.prepare
    monkeypatch.setattr(naive, "prepare", lambda self, problem: got.append(problem) or prepare(self, problem))
    case = Case(mask, 256, 8, 4, torch.bfloat16, strategy)
    on_virtual_ranks(case.run, world)
    plugin = Registry("strategy").load(strategy)
    call = case.problem().call_spec
    [plan, *_] = plugin._plans(case.problem().mask, call, world)
    asked = list(rank_calls(call, plugin._heads(call, world), step_traits(plan)))
    assert {problem.mask.traits for problem in got} == {traits for _, traits in asked}
    assert {(problem.num_q_heads, problem.num_kv_heads) for problem in got} == {
        (of.num_q_heads, of.num_kv_heads) for of, _ in asked
    }


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("world", [5, 8, 12])
@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.sample(12)
def test_more_ranks_than_cores(strategy: str, world: int, number: int):
    masks = list(STATIC_MASKS)
    case = Case(
        masks[(PLANNED.index(strategy) + world + 5 * number) % len(masks)],
        61 + world,
        8,
        2,
        strategy=strategy,
    )
    errors = case.errors(on_virtual_ranks(case.run, world))
    assert max(errors.values()) < case.tolerance, (case, errors)


@pytest.mark.parametrize("mask", ["full", "causal", "causal_sliding_window"])
@pytest.mark.parametrize("world", [2, 4, 9])
@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.sample(12)
def test_moves_that_are_posted_early_on_lanes_that_keep_their_order(strategy: str, world: int, mask: str):
    """The host runs ahead of the messages, as on a GPU."""
    case = Case(mask, 60 + world, 4, 2, strategy=strategy)
    parts = on_virtual_ranks(case.run, world, keeps_order=True)
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, (case, errors)
    assert all(part["repeatable"] for part in parts)


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.sample(4)
def test_the_error_is_that_of_the_kernel_and_does_not_grow_with_ranks(strategy: str):
    """In bfloat16, over the mask with the most parts a row."""
    case = Case("full", 192, 4, 2, torch.bfloat16, strategy)
    alone, *others = (case.errors(on_virtual_ranks(case.run, world)) for world in (1, 4, 24))
    for errors in others:
        assert all(errors[name] < 1.2 * alone[name] for name in errors), (errors, alone)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", PLANNED)
def test_the_error_is_no_larger_on_96_ranks(strategy: str):
    case = Case("full", 192, 4, 2, torch.bfloat16, strategy)
    errors, alone = (case.errors(on_virtual_ranks(case.run, world)) for world in (96, 1))
    assert all(errors[name] < 1.2 * alone[name] for name in errors), (errors, alone)


def test_bytes_moved_are_those_of_the_formula_where_all_moves():
    for strategy in PLANNED:
        for world in (2, 4, 8):
            case = Case("full", 64, 16, 8, strategy=strategy)
            mesh = Registry("strategy").load(strategy).mesh(world, case.num_kv_heads)
            forward = formula_bytes(replace(case.problem(), needs_backward=False), mesh)
            for part in on_virtual_ranks(case.run, world):
                assert part["moved"] == {"fwd": forward, "bwd": part["costs"]["formula_bytes"]}


def test_what_nobody_sees_does_not_move():
    ring, gather = (
        on_virtual_ranks(Case("causal_sliding_window", 256, 4, 2, strategy=strategy).run, 8)
        for strategy in ("ring_p2p", "ring_allgather")
    )
    for part in (*ring, *gather):
        assert part["moved"]["fwd"] < part["costs"]["formula_bytes"] / 5


def peaks(strategy: str, mask: str, world: int) -> tuple[int, int]:
    """Most bytes above the shards on any rank, forward and backward, at 32 tokens a rank."""

    def run(comm: Any) -> tuple[int, int]:
        case = Case(mask, 32 * world, 4, 1, strategy=strategy)
        prepared = (
            Registry("strategy")
            .load(strategy)
            .prepare(case.problem(), Registry("kernel").load("naive"), comm)
        )
        q, k, v, dout = (x[torch.from_numpy(prepared.shard.positions_L)] for x in case.inputs())
        with Peak() as fwd:
            forward = prepared.forward(q, k, v)
        with Peak() as bwd:
            prepared.backward(forward, dout)
        return fwd.most, bwd.most

    return tuple(map(max, zip(*on_virtual_ranks(run, world), strict=True)))


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("strategy", ["ring_p2p", "loongtrain"])
@pytest.mark.sample(3)
def test_memory_of_a_ring_does_not_grow_with_ranks(strategy: str, mask: str):
    few = peaks(strategy, mask, 6)
    many = peaks(strategy, mask, 16)
    assert many[0] <= few[0] * 1.05
    assert many[1] <= few[1] * 1.05


def test_schedules_are_planned_until_one_fits(monkeypatch: pytest.MonkeyPatch):
    """A full mask fits `fa3` on the simplest ring, and a window with global tokens on none: then all are
    asked."""
    planned = []
    choice = Planner.choice

    def counted(self: Planner, mask: Mask, world: int, schedule: Schedule, *rest: str) -> ScoredPlan:
        planned.append(str(schedule))
        return choice(self, mask, world, schedule, *rest)

    monkeypatch.setattr(Planner, "choice", counted)
    assert refusal(cell("ring_p2p", "full", kernel="fa3", seqlen=4096)) is None and planned == ["a ring"]
    planned.clear()
    assert "segments of tokens" in str(
        refusal(cell("ring_p2p", "global_sliding_window", kernel="fa3", seqlen=4096))
    )
    assert planned == ["a ring", "a ring both ways"]
