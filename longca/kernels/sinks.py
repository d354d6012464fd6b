"""A prepared kernel's attention with sinks, in public tensors.

The sinks join the kernel's output by its LSE, and its backward gets the joined output and LSE. So it takes a
kernel that `in_parts` accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.kernels.contract import Forward, Prepared

if TYPE_CHECKING:
    from torch import Tensor


def forward_with_sinks(prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Forward:
    """(out, LSE) with the sinks, T × H × D and T × H, and in `saved` the inputs of `backward_with_sinks`;
    without autograd.

    Args:
        q, k, v: T × H × D and T × G × D.
        sinks: a logit for each query head, (H,).
    """
    import torch

    from longca.ops import join_sinks

    with torch.no_grad():
        inputs = tuple(prepared.to_layout(x.detach()) for x in (q, k, v))
        result = prepared.forward(*inputs)
        assert result.lse is not None, "a kernel without LSE has been refused"
        lse = prepared.lse_from_layout(result.lse)
        lse = lse.masked_fill(lse == float("inf"), float("-inf"))  # some kernels mark rows without keys by it
        out, lse = join_sinks(prepared.from_layout(result.out), lse, sinks)
    return Forward(out, lse, saved=(*inputs, sinks.detach()) if prepared.problem.needs_backward else None)


def backward_with_sinks(
    prepared: Prepared, forward: Forward, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, gradient of the sinks (H,) in float32) of `forward_with_sinks`; without autograd."""
    import torch

    from longca.ops import sinks_gradient

    q, k, v, sinks = forward.saved
    assert forward.lse is not None
    with torch.no_grad():
        out = prepared.to_layout(forward.out)
        lse = prepared.lse_to_layout(forward.lse)
        grads = prepared.raw_backward(q, k, v, out, lse, prepared.to_layout(dout))
        dq, dk, dv = (prepared.from_layout(grad) for grad in grads)
        return dq, dk, dv, sinks_gradient(forward.out, forward.lse, dout, None, sinks)
