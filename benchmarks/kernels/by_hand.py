"""Calls kernels by hand, by the public function of each package, without longca's adapters.

Inputs lie in the kernel's own layout and indices are made before the call, as a user would. Where a package
has autograd alone, the backward is `torch.autograd.grad`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, eq=False)
class Given:
    """Tensors and the task: causal attention, or attention to blocks."""

    q_THD: torch.Tensor
    k_TGD: torch.Tensor
    v_TGD: torch.Tensor
    dout_THD: torch.Tensor
    needs_backward: bool
    visible: torch.Tensor | None = None  # bool (G, M, N): blocks that a head group sees; None for causal
    block: int = 0

    @property
    def seqlen(self) -> int:
        return len(self.q_THD)

    @property
    def scale(self) -> float:
        return self.q_THD.shape[-1] ** -0.5

    def laid_out(self, layout: str) -> list[torch.Tensor]:
        """q, k, v, dout."""
        there, _ = LAYOUTS[layout]
        return [there(x) for x in (self.q_THD, self.k_TGD, self.v_TGD, self.dout_THD)]


@dataclass(frozen=True, eq=False)
class Hand:
    """The call in one direction. It returns out or dq, or a tuple that starts with it."""

    call: Callable[[], Any]
    layout: str

    def result_THD(self) -> torch.Tensor:
        result = self.call()
        _, back = LAYOUTS[self.layout]
        return back(result if isinstance(result, torch.Tensor) else result[0])


LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "THD": (lambda x: x, lambda x: x),
    "BTHD": (lambda x: x.unsqueeze(0), lambda x: x.squeeze(0)),
    "HTD": (lambda x: x.transpose(0, 1).contiguous(), lambda x: x.transpose(0, 1)),
    "BHTD": (lambda x: x.transpose(0, 1).contiguous().unsqueeze(0), lambda x: x.squeeze(0).transpose(0, 1)),
    "BTHD seen as BHTD": (lambda x: x.unsqueeze(0).transpose(1, 2), lambda x: x.squeeze(0).transpose(0, 1)),
}


def by_autograd(given: Given, layout: str, attend: Callable[..., Any]) -> Hand:
    """Makes a call of attend(q, k, v), which returns out or a tuple that starts with it; backward by
    `torch.autograd.grad`."""
    q, k, v, dout = given.laid_out(layout)
    if not given.needs_backward:
        return Hand(lambda: attend(q, k, v), layout)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    result = attend(*leaves)
    out = result if isinstance(result, torch.Tensor) else result[0]
    return Hand(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), layout)


def sdpa(given: Given) -> Hand:
    return by_autograd(
        given,
        "BHTD",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    )


def torch_flash(given: Given) -> Hand:
    return by_autograd(given, "BTHD seen as BHTD", _sdpa_on("FLASH_ATTENTION"))


def cudnn(given: Given) -> Hand:
    return by_autograd(given, "BHTD", _sdpa_on("CUDNN_ATTENTION"))


def _sdpa_on(backend: str) -> Callable[..., torch.Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return attend


def fa2(given: Given) -> Hand:
    from flash_attn import flash_attn_func

    return by_autograd(given, "BTHD", lambda q, k, v: flash_attn_func(q, k, v, causal=True))


def fa3(given: Given) -> Hand:
    from flash_attn_interface import flash_attn_func

    return by_autograd(given, "BTHD", lambda q, k, v: flash_attn_func(q, k, v, causal=True))


def fa4(given: Given) -> Hand:
    from flash_attn.cute import flash_attn_func

    return by_autograd(given, "BTHD", lambda q, k, v: flash_attn_func(q, k, v, causal=True, return_lse=True))


def cudnn_flex(given: Given) -> Hand:
    from cudnn.flex_attention import create_mask_plan, flex_attn_func

    q, k, v, _ = given.laid_out("BTHD")
    behind_last_key = torch.arange(1, given.seqlen + 1, dtype=torch.int32, device=q.device)[None, None]
    plan = create_mask_plan(behind_last_key.contiguous(), q, k, v, build_backward=given.needs_backward)
    return by_autograd(
        given, "BTHD", lambda q, k, v: flex_attn_func(q, k, v, mask_plan=plan, return_lse=True)
    )


def flex(given: Given) -> Hand:
    return _flex(given, kernel_options=None if given.needs_backward else {"USE_TMA": True})


def _flex(given: Given, **options: Any) -> Hand:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return q_idx >= kv_idx

    mask = create_block_mask(causal, None, None, given.seqlen, given.seqlen, device=given.q_THD.device)
    attend = torch.compile(flex_attention, dynamic=False)
    return by_autograd(
        given, "BHTD", lambda q, k, v: attend(q, k, v, block_mask=mask, enable_gqa=True, **options)
    )


def flex_flash(given: Given) -> Hand:
    return _flex(given, kernel_options={"BACKEND": "FLASH"})


def flashmask(given: Given) -> Hand:
    from longca.ops import flashmask_tuning
    from longca.ops.flashmask.backward import backward
    from longca.ops.flashmask.forward import forward, make_mask

    q, k, v, dout = given.laid_out("HTD")
    hidden_from = torch.full((1, given.seqlen, 1), given.seqlen, dtype=torch.int32, device=q.device)
    mask = make_mask(hidden_from, True, given.seqlen, flashmask_tuning(q.shape[-1]), given.needs_backward)
    if not given.needs_backward:
        return Hand(lambda: forward(q, k, v, mask, given.scale), "HTD")
    out, lse = forward(q, k, v, mask, given.scale)
    return Hand(lambda: backward(q, k, v, out, lse, dout, mask, given.scale), "HTD")


def vsa(given: Given) -> Hand:
    from fastvideo_kernel import block_sparse_attn_from_indices

    assert given.visible is not None
    lists, counts = block_lists(given.visible)
    sizes = torch.full((given.visible.shape[2],), given.block, dtype=torch.int32, device=lists.device)
    return by_autograd(
        given,
        "BHTD",
        lambda q, k, v: block_sparse_attn_from_indices(q, k, v, lists[None], counts[None], sizes),
    )


def fa2_sparse(given: Given) -> Hand:
    from longca.ops import sparse_backward, sparse_forward, sparse_tuning

    assert given.visible is not None
    q, k, v, dout = given.laid_out("THD")
    of_queries = block_lists(given.visible)
    of_keys = block_lists(given.visible.transpose(1, 2))
    blocks = (given.block, given.block)
    scale = given.scale
    tuning = sparse_tuning(q.shape[-1], blocks)
    if not given.needs_backward:
        return Hand(lambda: sparse_forward(q, k, v, *of_queries, blocks, scale, tuning.forward), "THD")
    out, lse = sparse_forward(q, k, v, *of_queries, blocks, scale, tuning.forward)
    return Hand(
        lambda: sparse_backward(q, k, v, out, lse, dout, of_queries, of_keys, blocks, scale, tuning), "THD"
    )


def flashinfer(given: Given) -> Hand:
    import importlib

    assert given.visible is not None and not given.needs_backward
    q, k, v, _ = given.laid_out("HTD")
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=q.device)
    wrapper = importlib.import_module("flashinfer").VariableBlockSparseAttentionWrapper(workspace)
    num_groups, num_rows, num_cols = given.visible.shape
    rows, cols = (
        torch.full((num_groups, number), given.block, dtype=torch.int32, device=q.device)
        for number in (num_rows, num_cols)
    )
    wrapper.plan(given.visible, rows, cols, len(q), len(k), q.shape[-1], q_data_type=q.dtype)
    return Hand(lambda: wrapper.run(q, k, v), "HTD")


def block_lists(visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (lists (G, M, width), counts (G, M)), int32, of the True entries of each row, ascending."""
    counts = visible.sum(-1, dtype=torch.int32)
    order = torch.argsort(visible.to(torch.int8), dim=-1, descending=True, stable=True)
    return order[..., : int(counts.max())].int().contiguous(), counts


CAUSAL: dict[str, tuple[Callable[[Given], Hand], str]] = {
    "sdpa": (sdpa, "F.scaled_dot_product_attention"),
    "torch_flash": (torch_flash, "the same under sdpa_kernel(FLASH_ATTENTION)"),
    "cudnn": (cudnn, "the same under sdpa_kernel(CUDNN_ATTENTION)"),
    "fa2": (fa2, "flash_attn.flash_attn_func"),
    "fa3": (fa3, "flash_attn_interface.flash_attn_func"),
    "flashmask": (flashmask, "longca.ops.flashmask.forward"),
    "flex": (flex, "compiled flex_attention, create_block_mask"),
    "fa4": (fa4, "flash_attn.cute.flash_attn_func"),
    "cudnn_flex": (cudnn_flex, "cudnn.flex_attention.flex_attn_func"),
    "flex_flash": (flex_flash, "compiled flex_attention, BACKEND=FLASH"),
}
BLOCKS: dict[str, tuple[Callable[[Given], Hand], str]] = {
    "vsa": (
        vsa,
        "fastvideo_kernel.block_sparse_attn_from_indices; its backward turns the lists over in each call",
    ),
    "fa2_sparse": (fa2_sparse, "longca.ops.fa2_sparse"),
    "flashinfer": (flashinfer, "VariableBlockSparseAttentionWrapper.run"),
}
