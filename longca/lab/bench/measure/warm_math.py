"""One call of each of torch's math functions on the CPU, before several threads call them.

oneMKL 2024.2, which is in torch's CPU builds, selects the kernel of a function at its first call. If several
threads make that call at the same time, one of them may compute its part to half the digits
(pytorch/pytorch#188792). A right kernel then fails its check, once. After a call with one element all kernels
are selected.
"""

import torch

FUNCTIONS = (torch.exp, torch.exp2, torch.log, torch.log2, torch.sqrt)


def warm_math() -> None:
    """Call every function that attention, its references and its checks use, so that its kernel is
    selected."""
    for dtype in (torch.float32, torch.float64):
        scalar = torch.ones(1, dtype=dtype)
        for function in FUNCTIONS:
            function(scalar)
