"""Transforms and tracers of torch that cannot look into attention, and tensors without numbers.

Attention chooses a kernel by its inputs and by the mask, on the host. So it takes none of the tensors that
stand for others: those of `torch.func`, of forward-mode AD, of `torch.export` and of fake tensor modes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack

from longca.core import UserError


def refuse_transforms(*tensors: Any) -> None:
    """Raises UserError under a transform or a tracer of torch, and for tensors without numbers."""
    given = [x for x in tensors if isinstance(x, torch.Tensor)]
    if peek_interpreter_stack() is not None or any(map(is_legacy_batchedtensor, given)):
        raise UserError(
            "attention has no rule for the transforms of torch.func, such as vmap and grad, and none for "
            "is_grads_batched",
            todo="Give (batch, tokens, heads, D) instead of vmap, and take each gradient by "
            "torch.autograd.grad",
        )
    modes = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(key) is not None for key in (modes.FAKE, modes.PROXY)):
        raise UserError(
            "attention cannot be traced by torch.export, make_fx or a fake tensor mode",
            todo="Call it outside of them; torch.compile breaks its graph there",
        )
    for x in given:
        if x.is_meta or isinstance(x, torch._subclasses.FakeTensor):
            raise UserError(
                f"a tensor on {x.device} without numbers has no attention", todo="Give tensors with numbers"
            )
        if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise UserError(
                "attention has no forward-mode derivative",
                todo="Take gradients by backward or torch.autograd.grad",
            )
