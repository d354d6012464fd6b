"""One strategy on one problem: what is run, and how far its results are from the reference."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.masks.build import build_mask
from tests.helpers.cp.reference import attention

STATIC_MASKS = {  # small parameters, so that every mask is itself at about a hundred tokens
    "full": {},
    "causal": {},
    "full_document": {},
    "causal_document": {},
    "sliding_window": {"window": 16},
    "causal_sliding_window": {"window": 16},
    "shared_question": {},
    "causal_blockwise": {},
    "prefix_lm": {},
    "prefix_lm_document": {},
    "global_sliding_window": {"window": 10, "num_global": 8},
    "block_causal_document": {"block": 16},
}
HEAD_DIM = 8
TENSORS = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Case:
    mask: str
    seqlen: int
    num_q_heads: int
    num_kv_heads: int
    dtype: torch.dtype = torch.float32
    strategy: str = "ulysses"
    seed: int = 0
    params: tuple[tuple[str, Any], ...] = ()
    head_dim: int = HEAD_DIM
    weights: tuple[int, ...] | None = None
    """of the chunks of heads, for strategies that divide heads"""
    strategy_params: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        params = "".join(f"-{key}={value}" for key, value in self.strategy_params)
        return (
            f"{self.strategy}{params}-{self.mask}-{self.seqlen}-"
            f"{self.num_q_heads}:{self.num_kv_heads}-{str(self.dtype)[6:]}"
            f"-{self.seed}" + (f"-{':'.join(map(str, self.weights))}" if self.weights else "")
        )

    @property
    def tolerance(self) -> float:
        """Allowed relative error: some roundings of the dtype."""
        return (
            16 * torch.finfo(self.dtype).eps
            if self.dtype == torch.float32
            else 2 * torch.finfo(self.dtype).eps
        )

    def problem(self) -> Problem:
        mask = build_mask(
            self.mask,
            seqlen=self.seqlen,
            seed=self.seed,
            num_kv_heads=self.num_kv_heads,
            **STATIC_MASKS.get(self.mask, {}),
            **dict(self.params),
        )
        return Problem(
            mask,
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            self.dtype,
            torch.device("cpu"),
            needs_backward=True,
        )

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """q, k, v, dout of the whole sequence: the same on every rank."""
        generator = torch.Generator().manual_seed(self.seqlen)
        heads = (self.num_q_heads, self.num_kv_heads, self.num_kv_heads, self.num_q_heads)
        return tuple(
            torch.randn(self.seqlen, count, self.head_dim, generator=generator).to(self.dtype)
            for count in heads
        )

    def run(self, comm: Any, kernel: str = "naive") -> dict[str, Any]:
        """This rank's part: positions, notes, costs, bytes moved in each direction, and results."""
        problem = replace(self.problem(), device=comm.device)
        how = {} if self.weights is None else {"weights": self.weights}
        strategy = Registry("strategy").load(self.strategy).with_params(dict(self.strategy_params))
        prepared = strategy.prepare(problem, Registry("kernel").load(kernel), comm, **how)
        mine = torch.from_numpy(prepared.shard.positions_L)
        q, k, v, dout = (x[mine].to(comm.device) for x in self.inputs())
        moved = [comm.moved_bytes]
        forward = prepared.forward(q, k, v)
        moved.append(comm.moved_bytes)
        first = prepared.backward(forward, dout)
        moved.append(comm.moved_bytes)
        again = prepared.backward(forward, dout)
        lse = {} if forward.lse is None else {"lse": forward.lse.cpu()}
        return {
            "positions": mine,
            "costs": prepared.costs,
            "notes": prepared.notes,
            "moved": {"fwd": moved[1] - moved[0], "bwd": moved[2] - moved[1]},
            "repeatable": all(torch.equal(x, y) for x, y in zip(first, again, strict=True)),
            **lse,
            **dict(zip(TENSORS, (x.cpu() for x in (forward.out, *first)), strict=True)),
        }

    def errors(self, parts: list[dict[str, Any]], device: torch.device | str = "cpu") -> dict[str, float]:
        """Relative error of each tensor, of the parts of all ranks put together; every token must be there
        once. The reference is computed on `device`."""
        positions = torch.cat([part["positions"] for part in parts])
        assert torch.equal(positions.sort().values, torch.arange(self.seqlen))
        assert all(part[name].dtype == self.dtype for part in parts for name in TENSORS)
        expected = {
            name: x.cpu()
            for name, x in attention(self.problem().mask, *(x.to(device) for x in self.inputs())).items()
        }
        values = {name: torch.cat([part[name] for part in parts]) for name in TENSORS}
        scale = {name: expected[name].norm().clamp_min(1e-3) for name in TENSORS}
        if all("lse" in part for part in parts):
            values["lse"] = torch.cat([part["lse"] for part in parts])
            scale["lse"] = torch.tensor(
                expected["lse"].numel()
            ).sqrt()  # a logarithm: its absolute error is the relative one of the sum
        return {
            name: float((x.double() - expected[name][positions]).norm() / scale[name])
            for name, x in values.items()
        }
