"""The fastest kernel for a call, from `fastest.json`, which `python -m tools.fastest` computes from the
committed records."""

from __future__ import annotations

import functools
import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, FIXED_ORDER, Registry

if TYPE_CHECKING:
    from longca.kernels import Kernel, Problem
    from longca.masks import Traits

FILE = Path(__file__).parent / "fastest.json"
OWN = "band"  # runs every mask; other kernels are compared with it
REFERENCE = "reference"  # `blockwise_attention`; no plug-in
TRAINING = "both"  # direction of the table for forward and backward together; another one is fwd
# the same among kernels whose gradients were found to have the same bits in every run; perhaps not there
TRAINING_SAME_BITS = "both_deterministic"


def mask_kind(traits: Traits) -> str:
    """The class of a mask in the table."""
    if traits.is_block_grid:
        return (
            f"blocks of {traits.block_size[0]}" if traits.block_size in ((64, 64), (128, 128)) else "blocks"
        )
    if traits.full:
        return "full"
    if traits.causal:
        return "causal"
    if traits.num_segments == 1:
        return "window"
    return "documents" if traits.num_segments else "bands"


def head_kind(num_q_heads: int, num_kv_heads: int) -> str:
    return "grouped" if num_q_heads > num_kv_heads else "equal"


@functools.cache
def fastest() -> dict[str, Any]:
    """The table: its device and inputs, and direction → mask → heads → length → kernels.

    The kernels are those that were faster than `band`, fastest first, with their speed ratios. A direction
    without records is not there.
    """
    return json.loads(FILE.read_text(encoding="utf-8"))


def candidates(problem: Problem, capability: str, deterministic: bool = False) -> list[str]:
    """Kernels that were faster than `band` for such a call, fastest first; none for devices and inputs
    without measurements.

    Args:
        capability: compute capability of the device, such as "9.0".
        deterministic: gradients must be bit-identical between calls.
    """
    table = fastest()
    traits = problem.mask.traits
    if (capability, problem.head_dim) != (
        table["compute_capability"],
        table["head_dim"],
    ) or problem.dtype.itemsize != 2:
        return []
    direction = (TRAINING_SAME_BITS if deterministic else TRAINING) if problem.needs_backward else "fwd"
    lengths = table.get(direction, {}).get(mask_kind(traits), {})
    lengths = lengths.get(head_kind(problem.num_q_heads, problem.num_kv_heads), {})
    if not lengths:
        return []
    return list(lengths[min(lengths, key=lambda length: abs(math.log(int(length) / traits.seqlen_q)))])


def choose(
    problem: Problem, return_lse: bool, deterministic: bool, default_scale: bool, with_sinks: bool = False
) -> str:
    """The name of the fastest correct kernel for this call on this machine; `REFERENCE` if none runs.

    Args:
        return_lse: with gradients, only `band` differentiates the LSE.
        deterministic: gradients must be bit-identical between calls.
        default_scale: scores are scaled by 1 / √D; kernels other than `band` require this.
    """
    if problem.device.type != "cuda":
        return REFERENCE
    import torch

    only_own = not default_scale or (return_lse and problem.needs_backward)
    names = (
        []
        if only_own
        else candidates(
            problem, ".".join(map(str, torch.cuda.get_device_capability(problem.device))), deterministic
        )
    )
    kernels = [Registry("kernel").load(name) for name in (*names, OWN)]
    name = next(
        (
            kernel.name
            for kernel in kernels
            if cannot(kernel, problem, return_lse, deterministic, with_sinks) is None
        ),
        REFERENCE,
    )
    if name == REFERENCE:
        _warn_of_missing(kernels[-1], problem)
    return name


def _warn_of_missing(kernel: Kernel, problem: Problem) -> None:
    """Warns once that the reference replaces this unavailable kernel."""
    reason = kernel.available(problem.device.type)
    if (
        reason is not None
        and kernel.supports(problem.call_spec, problem.mask.traits, problem.device.type) is None
    ):
        warnings.warn(
            f"kernel '{kernel.name}' is unavailable, and the reference computes instead, slowly: {reason}",
            stacklevel=3,
        )


def cannot(
    kernel: Kernel, problem: Problem, return_lse: bool, deterministic: bool, with_sinks: bool = False
) -> str | None:
    """The reason why a kernel cannot run this call on this machine; None if it can."""
    if kernel.family == "control" or kernel.name.startswith(AS_RELEASED):
        return "it serves measurements alone"
    if return_lse and not kernel.returns_lse:
        return "it returns no LSE"
    reason = kernel.available(problem.device.type) or kernel.supports(
        problem.call_spec, problem.mask.traits, problem.device.type
    )
    if reason is None and with_sinks:
        reason = kernel.in_parts(problem.call_spec, problem.device.type)
        reason = None if reason is None else f"sinks cannot join its result: {reason}"
    if reason is None and problem.needs_backward and deterministic and not kernel.deterministic:
        ordered = f"{kernel.name}{FIXED_ORDER}"
        other = f", or kernel='{ordered}'" if ordered in Registry("kernel").names() else ""
        return (
            "the order in which it sums gradients may change from call to call: give deterministic=False "
            f"to allow that{other}"
        )
    return reason
