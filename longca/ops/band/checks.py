"""Checks of band attention's inputs before a kernel runs. Kernels load by TMA, which restricts memory
layouts."""

import math

import torch
import triton
from torch import Tensor

from longca.ops.band.config import BandKernel
from longca.ops.band.plan import BandPlan
from longca.ops.band.versions import unusable_triton

ALIGNMENT = 16  # bytes: of addresses and strides
INTERPRETED = bool(triton.knobs.runtime.interpret)  # on a CPU, for tests
# The interpreter reads bf16 as whole numbers, and would give a wrong answer.
DTYPES = (
    {torch.float16: "fp16", torch.float32: "fp32"}
    if INTERPRETED
    else {torch.bfloat16: "bf16", torch.float16: "fp16"}
)
RESULTS = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_OFFSET = 1 << 31  # numbers from the first head to the last: kernels count them in 32 bits


def check_inputs(plan: BandPlan, q: Tensor, k: Tensor, v: Tensor) -> None:
    check_device(q)
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES):
        raise ValueError(
            f"q, k and v must all be {' or all '.join(DTYPES.values())}; they are {q.dtype}, {k.dtype} and "
            f"{v.dtype}"
        )
    if not (q.device == k.device == v.device == plan.device):
        raise ValueError(
            f"q, k, v and the plan must be on one device; they are on {q.device}, {k.device}, {v.device} and "
            f"{plan.device}"
        )
    if min(q.ndim, k.ndim) < 3 or k.shape != v.shape:
        raise ValueError(
            f"q must be (…, tokens, heads, D), k and v alike of one shape; they are {tuple(q.shape)}, "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )
    sizes = (*q.shape[-2:], *k.shape[-2:])
    planned = (plan.num_q_heads, plan.head_dim, plan.num_kv_heads, plan.head_dim)
    if sizes != planned:
        raise ValueError(
            f"(query heads, D, KV heads, D) are {sizes} here and {planned} in the plan: make a plan for these"
        )
    lengths = (q.shape[:-2].numel(), k.shape[:-2].numel())
    masked = (plan.seqlen_q, plan.seqlen_k)
    if lengths != masked:
        raise ValueError(
            f"the mask is over {masked[0]} queries × {masked[1]} keys, and q and k have {lengths[0]} and "
            f"{lengths[1]} tokens (leading dimensions times tokens): build a mask of these lengths"
        )


def checked_scale(plan: BandPlan, scale: float | None) -> float:
    """The factor on q·k: the given one, or 1 / √D. It must be positive, so that hidden scores stay −∞."""
    if scale is None:
        return plan.head_dim**-0.5
    if not 0 < scale < math.inf:
        raise ValueError(
            f"scale must be positive and finite, and it is {scale}: to turn signs, turn those of q"
        )
    return scale


def check_result(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in RESULTS:
        raise ValueError(f"{name} must be bf16, fp16 or float32, and it is {dtype}")


def check_device(q: Tensor) -> None:
    if not (q.device.type == "cuda" or INTERPRETED):
        raise ValueError(
            f"band attention runs on NVIDIA GPUs, and q is on {q.device}: move q, k and v there with "
            ".cuda(), or use the kernel `naive` on a CPU"
        )
    if INTERPRETED or torch.compiler.is_compiling():  # which does not follow what looks for modules
        return
    if (reason := unusable_triton()) is not None:
        raise ValueError(f"band attention cannot run here: {reason}")


def flat_initial(q: Tensor, initial: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The initial (out, LSE), flat and contiguous."""
    out, lse = initial
    if not (
        out.dtype == lse.dtype == torch.float32
        and out.shape == q.shape
        and lse.shape == q.shape[:-1]
        and out.device == lse.device == q.device
    ):
        raise ValueError(
            f"initial must be float32 on {q.device}, (out {tuple(q.shape)}, LSE {tuple(q.shape[:-1])}); it "
            f"is {out.dtype} {tuple(out.shape)} and {lse.dtype} {tuple(lse.shape)} on {out.device}"
        )
    if torch.is_grad_enabled() and (out.requires_grad or lse.requires_grad):
        raise ValueError(
            "initial is a constant to autograd, and it requires gradients: detach it, and use band_backward "
            "for its own part"
        )
    return out.flatten(0, -3).contiguous(), lse.flatten(0, -2).contiguous()


def check_into(q: Tensor, out: Tensor, lse: Tensor) -> None:
    shaped = out.shape == q.shape and lse.shape == q.shape[:2] and lse.dtype == torch.float32
    if not (shaped and out.is_contiguous() and lse.is_contiguous() and out.device == lse.device == q.device):
        raise ValueError(
            f"`into` must be contiguous and on {q.device}: out of {tuple(q.shape)}, LSE of "
            f"{tuple(q.shape[:2])} in float32"
        )
    check_result("the output in `into`", out.dtype)


def check_gradients(q: Tensor, initial: Tensor | None, dq: Tensor) -> None:
    """Checks the initial dq of other keys, and the destination of the sum."""
    for name, x, dtypes in (
        ("the dq of other keys", initial, (torch.float32,)),
        ("where dq goes", dq, RESULTS),
    ):
        if x is not None and not (
            x.shape == q.shape and x.dtype in dtypes and x.is_contiguous() and x.device == q.device
        ):
            raise ValueError(
                f"{name} must be contiguous, of {tuple(q.shape)} on {q.device} and "
                f"{' or '.join(map(str, dtypes))}; it is "
                f"{x.dtype} {tuple(x.shape)} on {x.device}"
            )


def check_backward(
    plan: BandPlan, q: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> None:
    if BandKernel.DKDV not in plan.kernels:
        raise ValueError("the plan is for the forward pass alone: make it with needs_backward=True")
    if not (
        dout.dtype == q.dtype
        and dout.shape == out.shape == q.shape
        and lse.shape == q.shape[:2]
        and lse.dtype == torch.float32
    ):
        raise ValueError(
            f"dout must be {q.dtype} like q, out and dout of its shape {tuple(q.shape)}, the LSE float32 of "
            f"{tuple(q.shape[:2])}; they are {dout.dtype} {tuple(dout.shape)}, {tuple(out.shape)}, "
            f"{lse.dtype} {tuple(lse.shape)}"
        )
    check_result("out", out.dtype)
    if dlse is not None and not (dlse.dtype == torch.float32 and dlse.shape == lse.shape):
        raise ValueError(
            f"dlse must be float32 of {tuple(lse.shape)} like the LSE; it is {dlse.dtype} {tuple(dlse.shape)}"
        )
    if any(x.device != q.device for x in (out, lse, dout, *(() if dlse is None else (dlse,)))):
        raise ValueError(f"out, lse, dout and dlse must be on {q.device}, where q is")


def check_layout(**tensors: Tensor) -> None:
    """Raises ValueError for a tensor (T, heads, D) whose layout is unsupported; heads of k and v must be
    contiguous."""
    for name, x in tensors.items():
        if x.ndim != 3:
            raise ValueError(f"{name} must be (tokens, heads, D); it is {tuple(x.shape)}")
        reason = unusable(x, heads_side_by_side=name in ("k", "v"))
        if reason is not None:
            copy = "clone(memory_format=torch.contiguous_format)" if x.is_contiguous() else "contiguous()"
            raise ValueError(
                f"{name}, of strides {tuple(x.stride())}, cannot be used: {reason}. Call {name}.{copy} first"
            )


def as_usable(x: Tensor) -> Tensor:
    """The tensor, or a copy if its layout is unsupported: contiguous tensors can be misaligned, or have one
    token and any stride."""
    return (
        x if unusable(x, heads_side_by_side=False) is None else x.clone(memory_format=torch.contiguous_format)
    )


def unusable(x: Tensor, *, heads_side_by_side: bool) -> str | None:
    """The reason why the layout of a tensor is unsupported, or None."""
    _, num_heads, head_dim = x.shape
    if x.numel() == 0:
        return None
    if x.stride(2) != 1:
        return "the numbers of a head must lie side by side"
    if heads_side_by_side and num_heads > 1 and x.stride(1) != head_dim:
        return "the heads of a token must lie side by side"
    strides = (x.stride(0), x.stride(1)) if num_heads > 1 else (x.stride(0),)
    if any(stride <= 0 or stride * x.element_size() % ALIGNMENT for stride in strides):
        return f"strides must be positive multiples of {ALIGNMENT} bytes"
    if (num_heads - 1) * x.stride(1) >= MAX_HEAD_OFFSET:
        return f"its heads must lie within {MAX_HEAD_OFFSET} numbers"
    if x.data_ptr() % ALIGNMENT:
        return f"its address must be a multiple of {ALIGNMENT} bytes"
    return None
