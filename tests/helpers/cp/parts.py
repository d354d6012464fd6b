"""All ranks of a plan one after the other in one process, by a real kernel: keys by indexing, results put
together."""

import torch

from longca.cp.partition.sharding import make_sharding
from longca.cp.runtime.plan_attention import LocalSteps
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.kernels.contract import Kernel, Problem
from tests.helpers.kernels.plain_attention import Plain


def in_parts(
    problem: Problem,
    kernel: Kernel,
    world: int,
    schedule: Gather | Ring,
    permutation: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
) -> Plain:
    plan = schedule.plan(problem.mask, make_sharding(permutation, problem.mask, world))
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    grads = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
    for rank in range(world):
        steps = LocalSteps(plan, rank, problem, kernel)
        mine = torch.from_numpy(plan.sharding.positions(rank)).to(q.device)
        total = steps.output_accumulator(q[mine])
        keys = {
            step.number: torch.cat(
                [
                    torch.from_numpy(plan.sharding.positions(source)[first:behind])
                    for source, first, behind in step.keys
                ]
            ).to(q.device)
            for step in plan.steps(rank)
        }
        for number, here in keys.items():
            steps.forward(number, total, k[here], v[here])
            total.add()
        out[mine], lse[mine] = total.result()
        total_dq = steps.dq_accumulator(q[mine])
        for number, here in keys.items():
            dk, dv = steps.backward(number, total_dq, k[here], v[here], out[mine], lse[mine], dout[mine])
            total_dq.add()
            grads[1].index_add_(0, here, dk.float())
            grads[2].index_add_(0, here, dv.float())
        grads[0][mine] = total_dq.result().float()
    return Plain(out, lse, grads)
