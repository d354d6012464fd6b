"""Programs of calls of `longca.context_parallel`. Each rank runs its own and checks its results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from longca.core.errors import UserError
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, PeerLost, context_parallel
from longca.masks import build_mask
from tests.helpers.cp.reference import attention

T = 48
H = 4
D = 8
TIMEOUT_S = 5.0
SLACK_S = 5.0
MASKS = (
    build_mask("causal", seqlen=T),
    build_mask("sliding_window", seqlen=T, window=8),
    build_mask("full", seqlen=T),
)
OWN = 2  # the first masks are those of the context, the others come by with_mask
TOLERANCE = 64 * torch.finfo(torch.float32).eps
RIGHT = "right"


@dataclass(frozen=True)
class Call:
    """One call, or a forward and its backward call."""

    kind: str
    """forward, sinks, train, backward, backward_first, shard, unshard, with_mask, bad, whole, pause, meet"""
    mask: int = 0
    batch: int | None = None
    seed: int = 0
    dtype: torch.dtype = torch.float32
    tag: int | None = None


Program = Sequence[Call]


@cache
def whole(seed: int) -> tuple[torch.Tensor, ...]:
    """q, k, v and dout of the whole sequence."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(T, H, D, generator=generator) for _ in range(4))


@cache
def expected(mask: int, seed: int) -> dict[str, torch.Tensor]:
    return attention(MASKS[mask], *whole(seed))


class Rank:
    """The state of one rank in a program."""

    def __init__(self, cp: ContextParallel) -> None:
        self.cp = self.parent = cp
        self.own = list(range(OWN))  # of the masks, those that the context has
        self.kept: list[Any] = []  # forward calls whose backward calls are to come

    def do(self, call: Call) -> bool:
        """True if the results are right."""
        return getattr(self, f"_{call.kind}")(call)

    def _forward(self, call: Call) -> bool:
        number = call.mask % len(self.own)
        positions = self.cp.positions
        leaves = [x[positions] for x in whole(call.seed)[:3]]
        if call.batch is not None:
            leaves = [
                torch.stack([x * (1 if entry == 0 else 0.5) for entry in range(call.batch)]) for x in leaves
            ]
        leaves = [x.requires_grad_() for x in leaves]
        out = self.cp.attention(*leaves, mask=number, tag=call.tag)
        self.kept.append((leaves, out, number, call))
        first = out if call.batch is None else out[0]
        return _close(first, expected(self.own[number], call.seed)["out"][positions])

    def _sinks(self, call: Call) -> bool:
        """Attention with sinks that are drawn by the seed."""
        q, k, v = (x[self.cp.positions] for x in whole(0)[:3])
        sinks = torch.randn(H, generator=torch.Generator().manual_seed(call.seed))
        return bool(self.cp.attention(q, k, v, mask=call.mask, sinks=sinks).isfinite().all())

    def _backward(self, call: Call, which: int = -1) -> bool:
        """The backward pass of the last forward call without one."""
        if not self.kept:
            return True
        leaves, out, number, forward = self.kept.pop(which)
        dout = whole(forward.seed)[3][self.cp.positions]
        grads = torch.autograd.grad(out, leaves, dout if out.dim() == 3 else dout.expand_as(out).contiguous())
        wanted = expected(self.own[number], forward.seed)
        return all(
            _close(grad if grad.dim() == 3 else grad[0], wanted[name][self.cp.positions])
            for grad, name in zip(grads, ("dq", "dk", "dv"), strict=True)
        )

    def _backward_first(self, call: Call) -> bool:
        """The backward pass of the first forward call without one."""
        return self._backward(call, 0)

    def _train(self, call: Call) -> bool:
        return self._forward(call) and self._backward(call)

    def _shard(self, call: Call) -> bool:
        x = whole(call.seed)[0].to(call.dtype)
        return torch.equal(self.cp.shard(x), x[self.cp.positions])

    def _unshard(self, call: Call) -> bool:
        x = whole(call.seed)[0].to(call.dtype)
        return torch.equal(self.cp.unshard(x[self.cp.positions]), x)

    def _with_mask(self, call: Call) -> bool:
        self.kept.clear()
        self.cp = self.parent.with_mask(MASKS[call.mask])
        self.own = [call.mask]
        return True

    def _bad(self, call: Call) -> bool:
        """Attention of tensors that this rank cannot use."""
        q, k, v = (x[self.cp.positions] for x in whole(call.seed)[:3])
        self.cp.attention(q, k[:, :1], v, mask=call.mask % len(self.own))
        return True

    def _whole(self, call: Call) -> bool:
        """`shard` of a tensor without all tokens."""
        self.cp.shard(whole(call.seed)[0][:-1])
        return True

    def _pause(self, call: Call) -> bool:
        """Longer than the others wait."""
        time.sleep(TIMEOUT_S + 1.0)
        return True

    def _meet(self, call: Call) -> bool:
        """Blocks until every rank has reached this point."""
        self.cp._comm.barrier()
        return True


def run(comm: Comm, strategy: str, check: str, programs: Program | Sequence[Program]) -> list[str]:
    """Runs a program, or a rank's own of several.

    Returns:
        "right", "wrong" or the error of each call, and of `close`.
    """
    program: Any = programs if isinstance(programs[0], Call) else programs[comm.rank]
    comm.barrier()
    cp = context_parallel(
        MASKS[:OWN], None, strategy, num_q_heads=H, head_dim=D, timeout=TIMEOUT_S, check=check
    )  # type: ignore[arg-type]
    rank = Rank(cp)
    outcomes = []
    for call in program:
        outcomes.append(_outcome(lambda call=call: rank.do(call)))
    outcomes.append(_outcome(lambda: cp.close() or True))
    comm.barrier()
    return outcomes


def run_all(comm: Comm, cases: Sequence[tuple[str, str, Any]]) -> list[list[str]]:
    return [run(comm, *case) for case in cases]


def _outcome(work: Any) -> str:
    start_s = time.monotonic()
    try:
        actual = RIGHT if work() else "wrong"
    except (UserError, PeerLost) as error:
        assert "\n" not in str(error), error
        actual = f"{type(error).__name__}: {error}"
    elapsed_s = time.monotonic() - start_s
    return actual if elapsed_s < TIMEOUT_S + SLACK_S else f"late: {actual}"


def _close(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    return float((actual.detach().double() - wanted.double()).abs().max()) <= TOLERANCE * max(
        1.0, float(wanted.abs().max())
    )
