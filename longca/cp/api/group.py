"""The ranks of a public call: those of torchrun, of a process group, of a device mesh, or this process
alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from longca.core.errors import UserError
from longca.cp.api.agreement_text import error_of_ranks, failure_of
from longca.cp.comm.backend import Comm
from longca.cp.comm.process_group import TORCHRUN
from longca.lowering.dense import usable_device

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def join(group: Any, device: Any, timeout_s: float) -> Comm:
    """The communication among the ranks of a group. All of them call it together.

    Args:
        group: None, a `torch.distributed.ProcessGroup`, or a `DeviceMesh` of one dimension. None takes the
            default process group; where there is none, it is made from the variables of torchrun, or for this
            process alone.
        device: of this rank's tensors; None takes this rank's GPU where the group speaks NCCL, else the CPU.

    Raises:
        UserError: it is no group, or this process is not in it.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise UserError("This torch has no torch.distributed", todo="Install a torch that is built with it")
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise UserError(f"Argument 'timeout' is {timeout_s!r}", todo="Give seconds, more than 0")
    device_type = usable_device(device).type if device is not None else None
    if hasattr(group, "get_group") and hasattr(
        group, "ndim"
    ):  # a DeviceMesh: its class cannot be imported from every build of torch
        if group.ndim != 1:
            raise UserError(
                f"Argument 'group' is a device mesh of {group.ndim} dimensions",
                why="ranks of context parallelism lie in one",
                todo="Give one dimension, as mesh['cp']",
            )
        device_type = device_type or group.device_type
        group = group.get_group()
    if group is None and not dist.is_initialized():
        return _new_job(device_type or ("cuda" if torch.cuda.is_available() else "cpu"), timeout_s)
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise UserError(
            "This process is not in the group of argument 'group'",
            todo="Call context_parallel on its members alone",
        )
    if not isinstance(group, dist.ProcessGroup):
        raise UserError(
            f"Argument 'group' is of type {type(group).__name__}",
            todo=(
                "Give a process group of torch.distributed, a device mesh of one dimension, or None for all "
                "ranks"
            ),
        )
    return Comm.over(group, _device(device, device_type, dist.get_backend_config(group)), timeout_s)


def _new_job(device_type: str, timeout_s: float) -> Comm:
    if all(name in os.environ for name in TORCHRUN):
        return Comm.from_torchrun(device_type, timeout_s)
    return Comm(0, 1, 0, "", device_type, timeout_s)


def _device(device: Any, device_type: str | None, backends: str) -> torch.device:
    import torch

    if device is not None and torch.device(device).index is not None:
        return torch.device(device)
    device_type = device_type or ("cuda" if "nccl" in backends and torch.cuda.is_available() else "cpu")
    return (
        torch.device("cpu")
        if device_type == "cpu"
        else torch.device(device_type, torch.cuda.current_device())
    )


def all_or_none(comm: Comm, work: Callable[[], T]) -> T:
    """Each rank does its own work, and where one fails, all raise.

    Raises:
        UserError: that of the first rank that could not use what it was given, in the same words on every
        rank.
        Exception: whatever else this rank's work raised.
        RuntimeError: another rank's work raised something else.
    """
    results: list[T] = []
    own: Exception | None = None
    try:
        results.append(work())
    except Exception as raised:  # whatever it is, the other ranks must hear of it
        own = raised
    error = error_of_ranks(comm.gather(None if own is None else failure_of(own)), own)
    if error is not None:
        raise error from (None if error is own else own)
    return results[0]
