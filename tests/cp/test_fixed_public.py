"""`longca.context_parallel(reduction="fixed")` over gloo: the same bits on one rank and on several."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from longca.core.errors import UserError
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import build_mask
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

pytestmark = pytest.mark.long

T = 101
HEADS = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8}
DOCUMENTS = build_mask("causal_document", seqlen=T, documents=np.array([44, 7, 30, 20]))
WINDOW = build_mask("causal_sliding_window", seqlen=T, window=16)
FULL = build_mask("full", seqlen=T)
OWN = ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain")

Bits = dict[str, torch.Tensor]


def inputs() -> list[torch.Tensor]:
    """q, k, v and dout of two sequences, B × T × heads × D, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, T, heads, 8, generator=generator) for heads in (4, 2, 2, 4)]


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def both_ways(
    cp: ContextParallel, mask: Any = 0, *, checkpointed: bool = False, sinks: torch.Tensor | None = None
) -> Bits:
    """The output and gradients of the whole batch."""
    *leaves, dout = (cp.shard(x, dim=1).requires_grad_() for x in inputs())

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return cp.attention(*tensors, mask=mask, sinks=sinks)

    out = checkpoint(attend, *leaves, use_reentrant=False) if checkpointed else attend(*leaves)
    results = [out, *torch.autograd.grad(out, leaves, dout)]
    return {
        name: cp.unshard(x.detach(), dim=1)
        for name, x in zip(("out", "dq", "dk", "dv"), results, strict=True)
    }


def refusal(**changes: Any) -> str:
    try:
        context_parallel(**{"mask": DOCUMENTS, "reduction": "fixed", **HEADS, **changes}).close()
    except UserError as refused:
        return str(refused)
    return "not refused"


def job(comm: Comm) -> dict[str, Any]:
    facts: dict[str, Any] = {"bits": {}}
    for strategy in OWN:
        cp = context_parallel([DOCUMENTS, WINDOW], strategy=strategy, reduction="fixed", **HEADS)
        facts["bits"][f"{strategy}, documents"] = both_ways(cp, 0)
        facts["bits"][f"{strategy}, window"] = both_ways(cp, WINDOW)
        facts["bits"][f"{strategy}, window with sinks"] = both_ways(cp, WINDOW, sinks=SINKS)
        facts["notes"] = cp.notes
        cp.close()
    cp = context_parallel(WINDOW, reduction="fixed", **HEADS)
    facts["bits"]["auto, window"] = both_ways(cp)
    facts["bits"]["checkpointed, window"] = both_ways(cp, checkpointed=True)
    cp.plan_ahead(DOCUMENTS)
    facts["bits"]["next, documents"] = both_ways(cp.with_mask(DOCUMENTS))
    facts["bits"]["next, full"] = both_ways(cp.with_mask(FULL))
    cp.close()
    facts["refusals"] = {
        "differs": refusal(reduction="fixed" if comm.rank else "fast"),
        "unknown": refusal(reduction="exact"),
        "kernel": refusal(kernel="sdpa"),
        "peer": refusal(strategy="torch_cp"),
        "paper": refusal(strategy="paper_style_ring"),
    }
    return facts


@cache
def results(world: int) -> list[dict[str, Any]]:
    return on_ranks(job, world)


@pytest.mark.parametrize("world", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_bits_are_those_of_one_rank_whatever_the_strategy(world: int) -> None:
    (alone,) = results(1)
    expected = {"window": alone["bits"]["auto, window"]}
    expected["window with sinks"] = alone["bits"]["ulysses, window with sinks"]
    assert not torch.equal(expected["window"]["out"], expected["window with sinks"]["out"])
    expected |= {of: alone["bits"][f"next, {of}"] for of in ("documents", "full")}
    for of_rank in (alone, *results(world)):
        for title, bits in of_rank["bits"].items():
            right = expected[title.rpartition(", ")[2]]
            assert [name for name, x in bits.items() if not torch.equal(x, right[name])] == [], title


def test_results_are_right() -> None:
    for of, mask in (("documents", DOCUMENTS), ("window", WINDOW)):
        bits = results(2)[1]["bits"][f"ring_p2p, {of}"]
        for entry in range(2):
            expected = attention(mask, *(x[entry] for x in inputs()))
            for name, x in bits.items():
                error = (x[entry].double() - expected[name]).norm() / expected[name].norm()
                assert error < 16 * torch.finfo(torch.float32).eps, (of, name)


def test_notes_name_the_order() -> None:
    for notes in results(2)[0]["notes"]:
        assert notes[0].startswith("sums in a fixed order of 12 parts")


def test_refusals_are_one_line_on_every_rank() -> None:
    for of_rank in results(2):
        refusals = of_rank["refusals"]
        assert refusals["differs"].startswith(
            "Argument 'reduction' differs between ranks: rank 0 has fast, rank 1"
        )
        assert refusals["unknown"] == "Argument 'reduction' is 'exact'. Give 'fast' or 'fixed'"
        assert "whose bits never change" in refusals["kernel"]
        assert "a peer that studies compare with" in refusals["peer"]
        assert "a peer that studies compare with" in refusals["paper"]
        assert not any("\n" in text for text in refusals.values())
