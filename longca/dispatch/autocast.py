"""Attention computes in the dtype of its inputs: `torch.autocast` ends at its calls and at their gradients."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_disabled(device: torch.device) -> AbstractContextManager[None]:
    """A context without autocast for operators on such a device.

    Autograd runs a backward under the autocast of whoever called `backward`, so that a backward needs it as well.
    """
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
