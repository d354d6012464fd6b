"""A plan at work on one rank, for the heads that it has there: keys arrive, kernels run, results add up.

Shapes: L queries and keys of the rank; H, G, D as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca.cp.runtime.dkv_reduce import DkvReduce
from longca.cp.runtime.kv_exchange import KvExchange
from longca.cp.runtime.steps import LocalSteps
from longca.kernels.contract import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import ReceiveBuffers
    from longca.cp.comm.process_group import Comm
    from longca.cp.schedule.plan import Plan
    from longca.kernels.contract import Kernel, Problem

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PlanAttention:
    """
    Args:
        plan: of the heads in question.
        rank: of the plan.
        ranks: of the job, in the order of the plan.
        problem: of these heads.
    """

    def __init__(self, plan: Plan, rank: int, ranks: Sequence[int], comm: Comm, landings: ReceiveBuffers, problem: Problem) -> None:
        self.plan, self._rank, self._problem = plan, rank, problem
        row_bytes = problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
        self._transport = KvExchange(plan, rank, ranks, comm, landings, row_bytes)
        self._homecoming = DkvReduce(plan, rank, ranks, comm, landings, row_bytes) if problem.needs_backward else None
        self.num_key_buffers = len(self._transport.route.buffer_keys)

    def prepare(self, kernel: Kernel) -> None:
        """The kernel calls: apart, since here a rank may fail alone, and what comes before all do together."""
        self.steps = LocalSteps(self.plan, self._rank, self._problem, kernel)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        with torch.no_grad():
            journey, total = self._transport.start(k, v), self.steps.running(q)
            for number in range(self.plan.num_steps):
                if number in self.steps.steps:
                    self.steps.forward(number, total, *journey.keys(number))
                journey.computed(number)
                total.add()
            journey.finish()
            out, lse = total.result()
            return Forward(out, lse, (q, k, v, out, lse) if self._problem.needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        """Keys go round again, and their gradients straight home."""
        import torch

        assert self._homecoming is not None
        q, k, v, out, lse = saved
        with torch.no_grad():
            journey, home = self._transport.start(k, v), self._homecoming.start(k, v)
            total_dq = self.steps.running_gradient(q)
            for number in range(self.plan.num_steps):
                dk = dv = None
                if number in self.steps.steps:
                    dk, dv = self.steps.backward(number, total_dq, *journey.keys(number), out, lse, dout)
                journey.computed(number)
                if dk is not None and dv is not None:
                    own = self.plan.num_own_kv(self._rank, number)
                    home.add(dk[:own], dv[:own])
                    dk, dv = dk[own:], dv[own:]
                if number:
                    home.post(number, dk, dv)
                total_dq.add()
            journey.finish()
            return total_dq.result(), *home.finish()
