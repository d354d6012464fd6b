"""The rows of MagiAttention, kernel `ffa` and strategy `magi`, over a stand-in for the package."""

from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from longca.lab.studies.cell import Cell
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.magi_stand_in import magi_stand_in
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

CASES = [
    Case(mask, 128, 4, 2, strategy="magi")
    for mask in ("full", "causal_document", "global_sliding_window", "prefix_lm")
]


@pytest.mark.parametrize("mask", [*STATIC_MASKS, "rows without keys"])
def test_the_kernel_is_right_for_every_mask_that_heads_share(mask: str):
    case = Case("causal" if mask not in STATIC_MASKS else mask, 64, 4, 2)
    problem = case.problem()
    q, k, v, dout = case.inputs()
    if mask not in STATIC_MASKS:
        problem = type(problem)(**{**vars(problem), "mask": problem.mask.shift(8, 0)})
    with magi_stand_in() as calls:
        prepared = Registry("kernel").load("ffa").prepare(problem)
        forward = prepared.forward(q, k, v)
        grads = prepared.backward(forward, dout)
        again = prepared.backward(forward, dout)
    expected = attention(problem.mask, q, k, v, dout)
    for name, x in zip(("out", "lse", "dq", "dk", "dv"), (forward.out, forward.lse, *grads), strict=True):
        torch.testing.assert_close(x.double(), expected[name], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(x, y) for x, y in zip(grads, again, strict=True))
    assert calls == [{"disable_fwd_atomic_reduction": "stored without atomics" in prepared.notes[0]}]


def test_slices_that_share_queries_are_added_up_by_atomics():
    with magi_stand_in():
        notes = {
            mask: Registry("kernel").load("ffa").prepare(Case(mask, 64, 4, 2).problem()).notes[0]
            for mask in ("causal_document", "global_sliding_window")
        }
    assert notes["causal_document"].endswith("without atomics")
    assert notes["global_sliding_window"].endswith("by atomics")


def cell(**changes: Any) -> Cell:
    fields = {
        "kind": "cp",
        "kernel": "ffa",
        "strategy": "magi",
        "world": 2,
        "mask": "causal",
        "seqlen": 8192,
        "num_q_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 128,
        "dtype": "bf16",
        "direction": "bwd",
    }
    return Cell(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"seqlen": 8193}, "it pads"),
        ({"seqlen": 6}, "it pads"),
        ({"world": 1}, "two ranks or more"),
        ({"kernel": "band"}, "it calls its own kernel"),
        ({"dtype": "fp32"}, "head dim 64 and 128"),
        ({"head_dim": 256}, "head dim 64 and 128"),
        ({"strategy": "ring_p2p"}, "no backward from an LSE"),
        ({"strategy": "ring_p2p", "direction": "fwd"}, None),
        ({"strategy": "ulysses"}, None),
    ],
)
def test_refusals(changes: dict[str, Any], words: str | None):
    asked = cell(**changes)
    mask = Case("causal", asked.seqlen, 8, 4).problem().mask
    kernel = Registry("kernel").load(asked.kernel)
    reason = (
        Registry("strategy").load(asked.strategy).refusal(mask, asked.call_spec, asked.world, kernel, "cuda")
    )
    assert reason is None if words is None else words in str(reason)


def test_masks_that_differ_by_heads_are_refused():
    traits = (
        Case("block_sparse_uniform", 128, 8, 4, params=(("block", 16), ("density", 0.4)))
        .problem()
        .mask.traits
    )
    assert "one list of slices" in Registry("kernel").load("ffa").supports(cell().call_spec, traits, "cuda")
    assert "one list of slices" in Registry("strategy").load("magi").local_calls(traits, cell().call_spec, 2)


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("longca.kernels.contract._is_installed", lambda name: name == "torch")
    assert Registry("kernel").load("ffa").available("cuda") == "module 'magi_attention' is not installed"
    assert Registry("strategy").load("magi").available("cuda") == "module 'magi_attention' is not installed"


def run_all(comm: Comm, cases: list[Case]) -> list[dict[str, Any]]:
    with magi_stand_in():
        return [case.run(comm, "ffa") for case in cases]


def test_the_strategy_is_right_on_two_ranks():
    for case, parts in zip(CASES, zip(*on_ranks(run_all, 2, CASES), strict=True), strict=True):
        assert max(case.errors(list(parts)).values()) < case.tolerance, case
        assert all(part["repeatable"] for part in parts)
        assert all("in chunks of 16 tokens" in part["notes"][0] for part in parts)
