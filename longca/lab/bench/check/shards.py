"""One rank's part of the inputs of a context-parallel cell, and of the checks of its results.

Shapes: L tokens on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from longca.lab.bench.check.changes import ShardPlace
from longca.lab.bench.check.digest import content_digest
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.judge import Digests
from longca.lab.bench.check.oracle import PartResult
from longca.lab.bench.check.plan import CheckPlan


@dataclass(frozen=True)
class Shards:
    """The inputs of this rank's tokens."""

    q_LHD: torch.Tensor
    k_LGD: torch.Tensor
    v_LGD: torch.Tensor
    dout_LHD: torch.Tensor
    dout_checked_LHD: torch.Tensor
    """of the checked call: 0 in rows that are not checked"""
    positions: list[np.ndarray]
    """rank → its tokens"""
    mine_L: np.ndarray
    """the tokens of this rank"""
    places: dict[str, ShardPlace]
    """input → its elements that change between timed calls"""
    names: tuple[str, ...]
    """the inputs that the strategy is given"""

    @classmethod
    def of(cls, plan: CheckPlan, inputs: Inputs, mine_L: np.ndarray, positions: list[np.ndarray]) -> Shards:
        """The shards of this rank, copied from the whole inputs."""
        device = inputs.q_THD.device
        mine = torch.from_numpy(mine_L).to(device)
        q, k, v, dout, dout_checked = (
            x[mine]
            for x in (
                inputs.q_THD,
                inputs.k_TGD,
                inputs.v_TGD,
                inputs.dout_THD,
                plan.dout_checked(inputs.dout_THD),
            )
        )
        places = {name: plan.changes.shard_place(name, mine_L, device) for name in plan.timed_names}
        return cls(q, k, v, dout, dout_checked, positions, mine_L, places, plan.used_names)

    def tensors(self) -> list[torch.Tensor]:
        """All inputs."""
        return [self.q_LHD, self.k_LGD, self.v_LGD, self.dout_LHD, self.dout_checked_LHD]

    def change(self, plan: CheckPlan, call: int) -> None:
        """Set the inputs to their content in a call."""
        plan.expect(call)
        for name, target in self.places.items():
            plan.changes.apply_to_shard(name, self._tensor(name), call, target)

    def digests(self, *, checked: bool) -> Digests:
        """This rank's parts of the digests of the inputs, which add up.

        Args:
            checked: of the checked call.
        """
        positions = torch.from_numpy(self.mine_L).to(self.q_LHD.device)
        tensors = {name: self._tensor(name) for name in self.names}
        if checked and "dout" in tensors:
            tensors["dout"] = self.dout_checked_LHD
        return {name: content_digest(x, positions) for name, x in tensors.items()}

    def cut(
        self, plan: CheckPlan, call: int, drawn: int, tensors: dict[str, torch.Tensor]
    ) -> list[PartResult]:
        """Copies of this rank's part of the checks of a timed call."""
        results = []
        for timed in plan.parts_to_cut(call, drawn):
            [kv_head] = timed.part.kv_heads
            q_heads = timed.part.q_heads(plan.ratio)
            rows, _ = held_tokens(timed.part.rows, self.mine_L)
            keys, _ = held_tokens(timed.keys, self.mine_L)
            results.append(
                {
                    name: x[keys.tolist(), kv_head][:, None]
                    if name in ("dk", "dv")
                    else x[:, q_heads[0] : q_heads[-1] + 1][rows.tolist()]
                    for name, x in tensors.items()
                }
            )
        return results

    def _tensor(self, name: str) -> torch.Tensor:
        return {"q": self.q_LHD, "k": self.k_LGD, "v": self.v_LGD, "dout": self.dout_LHD}[name]


def held_tokens(tokens: Sequence[int], positions_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places in a rank's shard, places among the tokens) of those of the tokens that the rank holds."""
    _, local, numbers = np.intersect1d(positions_L, np.asarray(tokens, dtype=np.int64), return_indices=True)
    return local, numbers
