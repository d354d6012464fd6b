"""Attention computes in the dtype of its inputs: `torch.autocast` is disabled inside of its calls and their
gradients."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_disabled(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast for operators on such a device.

    Autograd runs a backward under the autocast state of the caller of `backward`, so a backward needs this
    context, too.
    """
    device_type = device.type
    try:
        enabled = torch.is_autocast_enabled(device_type)
    except RuntimeError:  # a device type without autocast, such as meta; a check in advance would be slower
        enabled = False
    return torch.autocast(device_type, enabled=False) if enabled else nullcontext()
