"""Compilation of all code that `attention` can need of `band`, before the first call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from longca.core import Registry, UserError, whole_number
from longca.kernels import Problem
from longca.masks import Mask, breaks_graph, build_mask


@breaks_graph
def warm(
    num_q_heads: int,
    num_kv_heads: int | None = None,
    *,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cuda",
    backward: bool = True,
    masks: Sequence[Mask] = (),
) -> int:
    """Compiles, side by side, all code of `band` that calls with these heads can need, so that no later mask
    stops a run for it. Triton keeps it on disk: a second process only loads it.

    Args:
        num_kv_heads: as many as query heads if not given.
        backward: gradients will be asked for.
        masks: block masks, if such are to come: code for blocks depends on their sizes.

    Returns:
        The number of compiled or loaded builds; 0 where `band` does not run, as on CPUs.

    Raises:
        UserError: heads that cannot be.
    """
    num_kv_heads = num_q_heads if num_kv_heads is None else num_kv_heads
    for name, number in (
        ("num_q_heads", num_q_heads),
        ("num_kv_heads", num_kv_heads),
        ("head_dim", head_dim),
    ):
        whole_number(f"Argument '{name}'", number)
    if num_q_heads % num_kv_heads:
        raise UserError(
            f"Argument 'num_kv_heads' is {num_kv_heads}",
            why=f"{num_q_heads} query heads cannot be shared evenly among them",
            todo="Give a divisor of num_q_heads",
        )
    device = torch.device(device)
    kernel = Registry("kernel").load("band")
    mask = build_mask("causal", seqlen=1)
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return 0
    call = Problem(mask, num_q_heads, num_kv_heads, head_dim, dtype, device, backward).call_spec
    if kernel.available(device.type) or kernel.supports(call, mask.traits, device.type):
        return 0
    return kernel.warm([(call, False)], device, masks)
