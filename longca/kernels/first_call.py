"""The first call of a prepared kernel, in which many kernels are compiled, tuned or loaded. It must not be
timed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from longca.kernels.contract import Prepared


def first_call_ms(prepared: Prepared) -> float:
    """Time in ms of one call on zeros of the problem's shapes, with its backward if the problem needs it."""
    import torch

    problem = prepared.problem

    def zeros(num_tokens: int, num_heads: int) -> torch.Tensor:
        return prepared.to_layout(
            torch.zeros(num_tokens, num_heads, problem.head_dim, dtype=problem.dtype, device=problem.device)
        )

    q, k, v = (
        zeros(num_tokens, num_heads)
        for num_tokens, num_heads in (
            (problem.mask.seqlen_q, problem.num_q_heads),
            *[(problem.mask.seqlen_k, problem.num_kv_heads)] * 2,
        )
    )
    wait(problem.device)
    start = time.perf_counter()
    forward = prepared.forward(q, k, v)
    if problem.needs_backward:
        prepared.backward(forward, q)
    wait(problem.device)
    return (time.perf_counter() - start) * 1e3


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work; does nothing on a CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
