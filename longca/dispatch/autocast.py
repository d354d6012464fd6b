"""Attention computes in the dtype of its inputs: `torch.autocast` ends at its calls and at their gradients."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_disabled(device: torch.device) -> AbstractContextManager[None]:
    """A context without autocast for operators on such a device.

    Autograd runs a backward under the autocast of whoever called `backward`, so that a backward needs it as well.
    """
    device_type = device.type
    try:
        enabled = torch.is_autocast_enabled(device_type)
    except RuntimeError:  # a type without autocast, as meta; to ask for that first would take longer
        enabled = False
    return torch.autocast(device_type, enabled=False) if enabled else nullcontext()
