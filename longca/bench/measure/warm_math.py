"""torch's functions of floats on CPUs, called once before threads do.

oneMKL 2024.2, which is in torch's CPU builds, picks each function's kernel at its first call. Where threads make that call
at the same time, one of them may compute its part to half the digits (pytorch/pytorch#188792): a right kernel then fails
its check, once. After a call of one element everything is picked.
"""

import torch

FUNCTIONS = (torch.exp, torch.exp2, torch.log, torch.log2, torch.sqrt)


def warm_math() -> None:
    """Have a kernel picked for every function that attention, its references and its checks use."""
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for function in FUNCTIONS:
            function(one)
