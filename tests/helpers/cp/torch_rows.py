"""torch's context parallelism behind the strategy's contract: its own shards, rings, gathers and block masks,
over gloo.

To compile FlexAttention takes seconds for each mask, and it has no compiled backward on CPU: all masks are
tried uncompiled, as torch allows for debugging, and one is compiled in the slow run.
"""

from functools import cache
from typing import Any
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


def sampled(strategies: tuple[str, ...]) -> list[Any]:
    """(step, case) of these strategies: each seventh case, and for the slow run every case."""
    cases = FLEX + RINGS
    return [
        *((7, case) for case in cases[::7] if case.strategy in strategies),
        *(pytest.param(1, case, marks=pytest.mark.slow) for case in cases if case.strategy in strategies),
    ]


def check(step: int, case: Case) -> None:
    """Results are those of one device, each time the same."""
    parts = results(step)[0][case]
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


def check_uncounted(cell: Cell) -> None:
    """Bytes that nobody counted are not 0, and the formula's are known."""
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
