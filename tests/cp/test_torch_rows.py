"""torch's context parallelism behind the strategy's contract: its own shards, rings, gathers and block masks,
over gloo.

To compile FlexAttention takes seconds for each mask, and it has no compiled backward on CPU: all masks are
tried uncompiled, as torch allows for debugging, and one is compiled in the slow run.
"""

from functools import cache
from unittest.mock import patch

import pytest
import torch
from torch.nn.attention import flex_attention

from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from longca.lab.bench.measure.cp import measure_cp
from longca.lab.bench.measure.result import Result
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.masks.build import build_mask
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.ranks import on_ranks

WORLD = 3
HEADS = ((4, 4), (4, 1), (6, 2))
FLEX = [
    Case(mask, 128 * (1 + i % 2) * WORLD, *HEADS[i % 3], strategy="torch_flex_cp", seed=i)
    for i, mask in enumerate(STATIC_MASKS)
]
RINGS = [
    Case(mask, 60, *heads, strategy=strategy)
    for strategy in ("torch_cp", "torch_cp_alltoall")
    for mask in ("full", "causal")
    for heads in HEADS
]
MEASURE = Measure.fixed(warmup=1, repeats=3, max_seconds=30, timeout_s=60)


def cell(strategy: str, kernel: str, mask: str = "causal", **changes: object) -> Cell:
    fields = {
        "kind": "cp",
        "kernel": kernel,
        "strategy": strategy,
        "world": WORLD,
        "mask": mask,
        "seqlen": 384,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "dtype": "fp32",
        "direction": "fwd",
    }
    return Cell(**fields | changes)


def run_all(comm: Comm, cases: list[Case], cells: list[Cell]) -> tuple[list[dict], list[Result]]:
    with (
        patch.object(torch, "compile", lambda function, **_: function),
        patch.object(flex_attention, "_validate_device"),
        patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
    ):
        parts = [case.run(comm, "flex" if case.strategy == "torch_flex_cp" else "sdpa") for case in cases]
        return parts, [measure_cp(cell, MEASURE, comm.device, comm) for cell in cells]


CELLS = [cell("torch_cp", "sdpa", direction=direction) for direction in ("fwd", "bwd")] + [
    cell("torch_flex_cp", "flex")
]


@cache
def results(step: int) -> tuple[dict[Case, list[dict]], dict[Cell, Result]]:
    cases = (FLEX + RINGS)[::step]
    of_ranks = on_ranks(run_all, WORLD, cases, CELLS)
    parts = zip(*(parts for parts, _ in of_ranks), strict=True)
    return dict(zip(cases, map(list, parts), strict=True)), dict(zip(CELLS, of_ranks[0][1], strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "case"),
    [
        *((7, case) for case in (FLEX + RINGS)[::7]),
        *(pytest.param(1, case, marks=pytest.mark.slow) for case in FLEX + RINGS),
    ],
    ids=str,
)
def test_results_are_those_of_one_device(step: int, case: Case):
    parts = results(step)[0][case]
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.strategy}-{cell.direction}")
def test_bytes_that_nobody_counted_are_not_0(cell: Cell):
    result = results(7)[1][cell]
    assert result.outcome.status == "ok", result.outcome
    assert "moved_bytes" not in result.costs
    keys = 2 * 128 * 2 * 16 * 4  # k and v of one rank
    hops = WORLD - 1 + (WORLD if cell.direction == "bwd" else 0)
    assert result.costs["formula_bytes"] == keys * hops


def refusal(wanted: Cell, device_type: str = "cpu", **params: object) -> str | None:
    mask = build_mask(wanted.mask, seqlen=wanted.seqlen, num_kv_heads=wanted.num_kv_heads, **params)
    strategy = Registry("strategy").load(wanted.strategy)
    kernel = Registry("kernel").load(wanted.kernel)
    return strategy.refusal(mask, wanted.call_spec, wanted.world, kernel, device_type)


@pytest.mark.parametrize("mask", STATIC_MASKS)
def test_the_ring_is_for_full_and_causal_alone(mask: str):
    reason = refusal(cell("torch_cp", "sdpa", mask), **STATIC_MASKS[mask])
    assert (reason is None) == (mask in ("full", "causal")), reason


@pytest.mark.parametrize(
    ("wanted", "device_type", "words"),
    [
        (cell("torch_cp", "naive"), "cpu", "cudnn or torch_flash or sdpa"),
        (cell("torch_cp", "sdpa"), "cuda", "cudnn or torch_flash"),
        (cell("torch_cp", "cudnn", dtype="fp32"), "cuda", "bf16 and fp16 only"),
        (cell("torch_cp", "sdpa", seqlen=387), "cpu", "387 tokens are no 6 equal parts"),
        (cell("torch_flex_cp", "naive"), "cpu", "flex"),
        (cell("torch_flex_cp", "flex", seqlen=400), "cpu", "400 tokens"),
        (cell("torch_flex_cp", "flex", direction="bwd"), "cpu", "no FlexAttention backward on CPU"),
        (cell("torch_flex_cp", "flex", "block_sparse_uniform"), "cuda", "one mask for all heads"),
    ],
)
def test_refusals(wanted: Cell, device_type: str, words: str):
    assert words in (refusal(wanted, device_type) or "")


@pytest.mark.slow
def test_compiled_block_masks_too():
    result = on_ranks(_measure, WORLD, cell("torch_flex_cp", "flex", "shared_question", corpus="pile"))[0]
    assert result.outcome.status == "ok", result.outcome


def _measure(comm: Comm, wanted: Cell) -> Result:
    return measure_cp(wanted, MEASURE, comm.device, comm)
