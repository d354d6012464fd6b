"""Backward of one rank with all keys in one kernel call, in the order of the sequence.

Keys are exchanged, and gradients returned, as by steps: only the kernel's call differs.
`longca.cp.schedule.keys_at_once` tells when it is faster.

Shapes: L queries and keys of the rank, R received keys; H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.cp.runtime.accumulate import LocalCall
from longca.cp.schedule.keys_at_once import RECEIVED, KeyRuns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from longca.cp.runtime.dkv_reduce import DkvReduceInFlight
    from longca.cp.runtime.kv_exchange import KvExchangeInFlight
    from longca.cp.schedule.plan import Plan
    from longca.kernels import Kernel, Problem


class BackwardAtOnce:
    """The backward kernel call of one rank."""

    def __init__(self, plan: Plan, rank: int, problem: Problem, kernel: Kernel) -> None:
        start_s = time.perf_counter()
        self._runs = KeyRuns.of(plan, rank)
        self._own, self._received = (self._runs.in_layout(own=own) for own in (True, False))
        mask = self._runs.mask(plan, rank)
        self.mask_ms = (time.perf_counter() - start_s) * 1e3
        """time to build the mask"""
        self.call = LocalCall(kernel, replace(problem, mask=mask))

    def run(
        self,
        exchange: KvExchangeInFlight,
        reduce: DkvReduceInFlight,
        own_kv: tuple[torch.Tensor, torch.Tensor],
        q_LHD: torch.Tensor,
        out_LHD: torch.Tensor,
        lse_LH: torch.Tensor,
        dout_LHD: torch.Tensor,
    ) -> torch.Tensor:
        """Returns dq_LHD. Gradients of keys go to `reduce`."""
        received = exchange.wait_keys(RECEIVED) if self._received else (None, None)
        k, v = (self._sorted(*each) for each in zip(own_kv, received, strict=True))
        dq, dk, dv = self.call.backward(q_LHD, k, v, out_LHD, lse_LH, dout_LHD)
        reduce.add_own(*(_parts(x, self._own) for x in (dk, dv)))
        dkv = (_parts(x, self._received) if self._received else None for x in (dk, dv))
        reduce.post(RECEIVED, *dkv)
        return dq

    def _sorted(self, own_LGD: torch.Tensor, received_RGD: torch.Tensor | None) -> torch.Tensor:
        import torch

        runs = self._runs
        if received_RGD is None and len(runs.starts) == 1:
            return own_LGD
        parts = []
        for start, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True):
            if start < runs.num_own:
                parts.append(own_LGD[start:end])
            else:
                assert received_RGD is not None
                parts.append(received_RGD[start - runs.num_own : end - runs.num_own])
        return torch.cat(parts)


def _parts(x_NGD: torch.Tensor, columns: Sequence[tuple[int, int]]) -> torch.Tensor:
    import torch

    parts = [x_NGD[start:end] for start, end in columns]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
