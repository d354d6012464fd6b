"""A context with tensors of any dtype and layout, with copies of itself, and after it is closed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from longca.core.errors import UserError
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import Mask
from tests.helpers.cp.ranks import on_ranks

T = 50
HEADS: dict[str, Any] = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8}
DOCUMENTS = Mask.from_documents([20, 30])
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.int64, torch.float16,
          torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn)  # fmt: skip
LAYOUTS = {
    "transposed": (torch.arange(6 * T).view(6, T).t(), 0),
    "last dimension": (torch.arange(2 * T).view(T, 2).t(), -1),
    "strided": (torch.arange(2 * T)[::2], 0),
    "expanded": (torch.ones(1, 3).expand(T, 3), 0),
    "conjugate": (torch.complex(torch.arange(T).float(), torch.ones(T)).conj(), 0),
    "tokens of nothing": (torch.empty(T, 0), 0),
    "nothing of tokens": (torch.empty(0, T, 4), 1),
}


def own(cp: ContextParallel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of this rank."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (cp.shard(torch.randn(T, heads, 8, generator=generator)) for heads in (4, 2, 2))
    return q, k, v


def closed(cp: ContextParallel, pending: torch.Tensor) -> dict[str, str]:
    """The error of each call of a closed context."""
    calls: dict[str, Callable[[], Any]] = {
        "attention": lambda: cp.attention(*own(cp)),
        "unshard": lambda: cp.unshard(own(cp)[0]),
        "with_mask": lambda: cp.with_mask(DOCUMENTS),
        "plan_ahead": lambda: cp.plan_ahead(Mask.from_documents([T])),
        "compare_calls": cp.compare_calls,
        "backward": pending.sum().backward,
    }
    said = {}
    for name, call in calls.items():
        with pytest.raises(UserError) as refused:
            call()
        said[name] = str(refused.value)
    return said


def on_each_rank(comm: Comm) -> dict[str, Any]:
    cp = context_parallel(DOCUMENTS, **HEADS)
    facts: dict[str, Any] = {"wrong": []}
    tensors = {str(dtype): ((torch.arange(T) % 2).to(dtype), 0) for dtype in DTYPES} | LAYOUTS
    for name, (x, dim) in tensors.items():
        whole = cp.unshard(cp.shard(x, dim), dim)
        if whole.dtype != x.dtype or whole.tolist() != x.tolist():
            facts["wrong"].append(name)
    with pytest.raises(UserError, match="Argument 'dim' of shard is True"):
        cp.shard(torch.arange(T), dim=True)
    cp.with_mask(DOCUMENTS)  # also after that refusal, on every rank
    out = cp.attention(*own(cp))
    facts["copy"] = torch.equal(copy.deepcopy({"of": cp})["of"].attention(*own(cp)), out)
    with pytest.raises(UserError) as refused:
        pickle.dumps(cp)
    facts["pickled"] = str(refused.value)
    q, k, v = (x.requires_grad_() for x in own(cp))
    pending = cp.attention(q, k, v)
    cp.close()
    facts["closed"] = closed(cp, pending)
    cp.close()  # again
    other = context_parallel(DOCUMENTS, **HEADS)
    facts["again"] = torch.equal(other.attention(*own(other)), out)
    other.close()
    return facts


@pytest.mark.parametrize("world", [1, 2])
def test_tensors_copies_and_the_end(world: int):
    for facts in on_ranks(on_each_rank, world):
        assert facts["wrong"] == [] and facts["copy"] and facts["again"]
        assert facts["pickled"].startswith(
            "A context of context_parallel cannot be pickled: it holds process groups"
        )
        for name, said in facts["closed"].items():
            assert said == (
                "This context cannot be used any more: it is closed. Make a new one with context_parallel on "
                "every rank"
            ), name
