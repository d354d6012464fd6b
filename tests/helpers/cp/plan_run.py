"""All ranks of a plan in one process, in float64: each kernel call by its definition, communication by
indexing."""

from __future__ import annotations

import torch

from longca.cp.partition.mask_partition import Step
from longca.cp.runtime.accumulate import merge, no_keys
from longca.cp.schedule.plan import Plan, Transfer

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PlanRun:
    """Results of the whole sequence, put together from what each rank has.

    A rank's buffer is made of what the plan has it receive, from the shards of the rank that holds it.
    """

    def __init__(self, plan: Plan, q_THD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> None:
        self.plan = plan
        self.positions = [torch.from_numpy(plan.sharding.positions(rank)) for rank in range(plan.world)]
        self.q, self.k, self.v = (x.double() for x in (q_THD, k_TGD, v_TGD))
        self.scale = q_THD.shape[-1] ** -0.5

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE) in the order of the sequence."""
        out, lse = no_keys(self.q, torch.float64)
        for rank, rows in enumerate(self.positions):
            result = no_keys(self.q[rows], torch.float64)
            for step in self.plan.steps(rank):
                _, v, scores = self._scores(step)
                part_lse = scores.logsumexp(-1)
                weights = (scores - part_lse.where(part_lse.isfinite(), 0.0)[..., None]).exp()
                merge(*result, torch.einsum("lhk,khd->lhd", weights, v), part_lse)
            out[rows], lse[rows] = result
        return out, lse

    def backward(self, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor) -> Tensors:
        """(dq, dk, dv) from the output and LSE over all keys, each step adding its part."""
        dq, dk, dv = (torch.zeros_like(x) for x in (self.q, self.k, self.v))
        delta = (out * dout).sum(-1)
        for rank, rows in enumerate(self.positions):
            for step in self.plan.steps(rank):
                k, v, scores = self._scores(step)
                weights = (scores - lse[rows].where(lse[rows].isfinite(), 0.0)[..., None]).exp()
                grad_weights = torch.einsum("lhd,khd->lhk", dout[rows], v)
                grad_scores = weights * (grad_weights - delta[rows][..., None]) * self.scale
                dq[rows] += torch.einsum("lhk,khd->lhd", grad_scores, k)
                keys = self._keys(step)
                dk.index_add_(0, keys, self._fold(torch.einsum("lhk,lhd->khd", grad_scores, self.q[rows])))
                dv.index_add_(0, keys, self._fold(torch.einsum("lhk,lhd->khd", weights, dout[rows])))
        return dq, dk, dv

    def _scores(self, step: Step) -> Tensors:
        """(k, v, scores L × H × keys) with −inf where nothing is visible; k and v for each query head."""
        keys = self._keys(step)
        num_heads = self.q.shape[1]
        k, v = (x[keys].repeat_interleave(num_heads // x.shape[1], 1) for x in (self.k, self.v))
        scores = torch.einsum("lhd,khd->lhk", self.q[self.positions[step.rank]], k) * self.scale
        visible = torch.from_numpy(step.mask.dense()).reshape(step.mask.num_groups, *scores.shape[::2])
        return (
            k,
            v,
            scores.masked_fill(
                ~visible.repeat_interleave(num_heads // len(visible), 0).transpose(0, 1), -torch.inf
            ),
        )

    def _keys(self, step: Step) -> torch.Tensor:
        """Positions of a step's keys, which must be the rank's own or have been sent to it."""
        own = Transfer(step.rank, step.rank, 0, len(self.positions[step.rank]))
        there = [own] * (
            step.number == 0 or self.plan.num_own_kv(step.rank, step.number) > 0
        ) + self.plan.receives(step.rank, step.number)
        for source, first, behind in step.keys:
            assert any(move.owner == source and move.start <= first <= behind <= move.end for move in there)
        return torch.cat([self.positions[source][first:behind] for source, first, behind in step.keys])

    def _fold(self, grad_KHD: torch.Tensor) -> torch.Tensor:
        """The sum over the query heads of each KV head."""
        return grad_KHD.unflatten(1, (self.k.shape[1], -1)).sum(2)
