"""Attention of one rank of a plan: keys arrive, kernels run, results are accumulated.

Work of each step n, in the order in which the host posts it:

    forward                                         backward
    wait for the keys of n                          wait for the keys of n
    kernel                                          kernel
    post transfers of keys that are due after n     post transfers of keys that are due after n
    add the result to (out, LSE)                    send dk and dv of n, add those received for n − 1
                                                    add dq

Transfers are posted before additions, which are elementwise work: a copy kernel of NCCL finds free
multiprocessors during them even if the next attention kernel occupies all.

Shapes: L queries and keys of the rank; H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca.cp.runtime.dkv_reduce import DkvReduce
from longca.cp.runtime.kv_exchange import KvExchange
from longca.cp.runtime.steps import LocalSteps
from longca.kernels import Forward

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.buffers import ReceiveBuffers
    from longca.cp.schedule.plan import Plan
    from longca.kernels import Kernel, Problem

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PlanAttention:
    """The execution of a plan on one rank, for the rank's heads.

    Args:
        plan: plan for these heads.
        rank: rank of the plan.
        ranks: ranks of the job, in the order of the plan.
        problem: problem of these heads.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        ranks: Sequence[int],
        comm: Comm,
        receive_buffers: ReceiveBuffers,
        problem: Problem,
    ) -> None:
        self.plan = plan
        self._rank = rank
        self._problem = problem
        row_bytes = problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
        self._kv_exchange = KvExchange(plan, rank, ranks, comm, receive_buffers, row_bytes)
        self._dkv_reduce = (
            DkvReduce(plan, rank, ranks, comm, receive_buffers, row_bytes) if problem.needs_backward else None
        )
        self.num_key_buffers = len(self._kv_exchange.schedule.buffer_keys)

    def prepare(self, kernel: Kernel) -> None:
        """Prepares the kernel calls. It is a separate method, since a single rank may fail here, while
        earlier steps are collective."""
        self.steps = LocalSteps(self.plan, self._rank, self._problem, kernel)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        with torch.no_grad():
            exchange = self._kv_exchange.start(k, v)
            total = self.steps.output_accumulator(q)
            for number in range(self.plan.num_steps):
                if number in self.steps.steps:
                    self.steps.forward(number, total, *exchange.wait_keys(number))
                exchange.post_after(number)
                total.add()
            exchange.finish()
            out, lse = total.result()
            return Forward(out, lse, (q, k, v, out, lse) if self._problem.needs_backward else None)

    def backward(self, saved: Any, dout: torch.Tensor) -> Grads:
        """(dq, dk, dv). Keys are exchanged again, and their gradients are sent directly to their owner."""
        import torch

        assert self._dkv_reduce is not None
        q, k, v, out, lse = saved
        with torch.no_grad():
            exchange = self._kv_exchange.start(k, v)
            reduce = self._dkv_reduce.start(k, v)
            total_dq = self.steps.dq_accumulator(q)
            for number in range(self.plan.num_steps):
                dk = dv = None
                if number in self.steps.steps:
                    dk, dv = self.steps.backward(
                        number, total_dq, *exchange.wait_keys(number), out, lse, dout
                    )
                exchange.post_after(number)
                if dk is not None and dv is not None:
                    own = self.plan.num_own_kv(self._rank, number)
                    reduce.add_own(dk[:own], dv[:own])
                    dk = dk[own:]
                    dv = dv[own:]
                if number:
                    reduce.post(number, dk, dv)
                total_dq.add()
            exchange.finish()
            return total_dq.result(), *reduce.finish()
