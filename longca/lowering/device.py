"""Checks a device named by a user, since torch's own errors describe internals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import UserError

if TYPE_CHECKING:
    import torch


def usable_device(device: Any) -> torch.device:
    """The device of that name or number; the default device for None. The device is not initialised, so no
    GPU memory is allocated.

    Raises:
        UserError: torch does not know the device, or this machine lacks the GPU.
    """
    import torch

    try:
        usable = torch.get_default_device() if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise _refused(device, "torch knows no such device") from None
    if usable.type == "cuda" and (usable.index or 0) >= torch.cuda.device_count():
        raise _refused(device, f"torch {torch.__version__} sees {torch.cuda.device_count()} GPUs")
    return usable


def _refused(device: Any, why: str) -> UserError:
    return UserError(
        f"Argument 'device' is {str(device)!r}",
        why=why,
        todo="Give a device that this torch has, as 'cpu' or 'cuda:0'",
    )
