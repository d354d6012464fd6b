"""A shim for the private functions of `flash_attn`, based on torch's copy of FlashAttention-2.

It serves packages that call only `flash_attn`, if that is not installed. A backward call has the extra cost
of copying dq, dk and dv: the functions write into given tensors, but torch's operator returns new ones.
Shapes: B × T × heads × D, or T × heads × D with the bounds of packed segments.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from longca.kernels import CallSizes, part_of

if TYPE_CHECKING:
    import torch

    from longca.core import CallSpec
    from longca.kernels import Kernel
    from longca.masks import LazyMask, Mask

VERSION = "2.8.3"  # the signatures are those of this version
KERNELS = ("fa2", "torch_flash")
# yunchang only checks whether it is installed, but then sets TORCH_CUDA_ARCH_LIST for the whole process
HIDDEN = ("flashinfer",)
NOTES: dict[str, tuple[str, ...]] = {
    "fa2": (),
    "torch_flash": (
        "torch's own FlashAttention-2 stands in for the package flash_attn: backward copies its gradients "
        "once",
    ),
}


def ring_buffer_bytes(mask: Mask | LazyMask, call: CallSpec, ring: int, kernel: Kernel) -> int:
    """Buffers of the rings of both packages, for `Strategy.buffer_bytes`: keys on their way, and what is held
    when a step's result is joined.

    Forward: the output before and after in float32, and that of the step. Backward: all gradients in float32,
    those of keys also as received, and the kernel's buffers; a later step of a causal ring has half of the
    keys.
    """
    share = mask.traits.seqlen_q // ring
    traits = replace(mask.traits, seqlen_q=share, seqlen_k=share)
    sizes = CallSizes(call, traits)
    travelling = 2 * sizes.keys * min(2, ring - 1)
    if call.direction == "fwd":
        return travelling + 2 * sizes.query_sums + 4 * sizes.lse
    part = replace(traits, seqlen_k=share if traits.full else share // 2)
    of_kernel = kernel.buffer_bytes(call, part_of(mask, part))
    return travelling + sizes.query_sums + 4 * sizes.key_sums + of_kernel


@functools.cache
def load(package: str, kernel: str) -> Callable[[str], ModuleType]:
    """A function that imports modules of a package on top of a kernel: `fa2`, which is `flash_attn` itself,
    or `torch_flash`, the shim.

    The package is loaded once for each kernel for the lifetime of the process; other code cannot see it or
    the shim. Its `__init__` is not run, and the modules in `HIDDEN` are hidden from it.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None, "`available` has been asked"
    known: dict[str, Any] = {package: importlib.util.module_from_spec(spec), **dict.fromkeys(HIDDEN)}
    known |= {} if kernel == "fa2" else _stand_in()

    def module(name: str) -> ModuleType:
        roots = {package} | {name.partition(".")[0] for name in known}
        before = {
            name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in roots
        }
        sys.modules.update(known)
        try:
            return importlib.import_module(f"{package}.{name}")
        finally:
            for name in list(sys.modules):
                if name.partition(".")[0] in roots:
                    known[name] = sys.modules.pop(name)
            sys.modules.update(before)

    return module


def _stand_in() -> dict[str, ModuleType]:
    top = ModuleType("flash_attn")
    interface = ModuleType("flash_attn.flash_attn_interface")
    for function in (
        _flash_attn_forward,
        _flash_attn_backward,
        _flash_attn_varlen_forward,
        _flash_attn_varlen_backward,
    ):
        interface.__dict__[function.__name__] = function
    top.__dict__.update(__version__=VERSION, flash_attn_interface=interface, flash_attn_func=None)
    return {"flash_attn": top, "flash_attn.flash_attn_interface": interface}


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bounds: tuple[Any, ...],
    causal: bool,
    window: tuple[int, int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, LSE …, H, T).

    Args:
        bounds: (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k); the first two None without segments.
    """
    import torch

    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        *bounds,
        0.0,
        causal,
        False,
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )
    return out, lse


def gradients(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    bounds: tuple[Any, ...],
    causal: bool,
    window: tuple[int, int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv)."""
    import torch

    no_random = torch.zeros(2, dtype=torch.uint64, device=q.device)  # state of the unused dropout
    return torch.ops.aten._flash_attention_backward(
        dout,
        q,
        k,
        v,
        out,
        lse,
        *bounds,
        0.0,
        causal,
        no_random,
        no_random.new_empty(0),
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )


def _flash_attn_forward(
    q,
    k,
    v,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
):
    bounds = None, None, q.shape[1], k.shape[1]
    return *attend(q, k, v, bounds, causal, (window_size_left, window_size_right), softmax_scale), None, None


def _flash_attn_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    return_softmax=False,
):
    bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return *attend(q, k, v, bounds, causal, (window_size_left, window_size_right), softmax_scale), None, None


def _flash_attn_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    rng_state=None,
):
    bounds = None, None, q.shape[1], k.shape[1]
    window = window_size_left, window_size_right
    _write((dq, dk, dv), gradients(dout, q, k, v, out, softmax_lse, bounds, causal, window, softmax_scale))


def _flash_attn_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    softmax_scale,
    causal,
    window_size_left=-1,
    window_size_right=-1,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    rng_state=None,
):
    bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    window = window_size_left, window_size_right
    _write((dq, dk, dv), gradients(dout, q, k, v, out, softmax_lse, bounds, causal, window, softmax_scale))


def _write(given: tuple[torch.Tensor, ...], grads: tuple[torch.Tensor, ...]) -> None:
    for target, grad in zip(given, grads, strict=True):
        target.copy_(grad)
