"""Attention for any mask on any device: the choice of the operator, and a reference that runs everywhere."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.dispatch import torch_op
    from longca.dispatch.api import attention
    from longca.dispatch.warming import warm
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["attention", "torch_op", "warm"]
