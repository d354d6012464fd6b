"""FlexAttention, compiled, with a block mask built from bands before the call."""

from __future__ import annotations

import time
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_compiler, missing_modules
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from longca.masks import LazyMask, Mask, Traits

SMALLEST_HEAD_DIM = 16
BLOCK = 128
"""of the block mask; and torch's kernel for few queries takes fewer"""
BLOCK_TABLES = 4  # of a block mask: full and partial blocks, for queries and for keys
# float32 numbers for each query and head that torch 2.11's compiled code holds, the LSE among them; found in
# records of an H200 up to 16K tokens, and the same beyond
STATISTICS = {"fwd": 2.75, "bwd": 4.0}


class Flex(Kernel):
    label = "FlexAttention"
    family = "both"
    summary = "torch.compile of flex_attention over a block mask of 128 that is built from bands"
    url = "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html"
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        modules = ("torch", "triton") if device_type == "cuda" else ("torch",)
        return missing_modules(modules) or missing_compiler(device_type)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.direction == "bwd" and device_type == "cpu":
            return "torch has no FlexAttention backward on CPU"
        if call.head_dim < SMALLEST_HEAD_DIM and device_type == "cuda":
            return (
                f"on GPUs it takes head dims of at least {SMALLEST_HEAD_DIM}: Triton's matmul has no smaller"
            )
        return None

    def in_parts(self, call: CallSpec, device_type: str) -> str | None:
        if device_type == "cpu":
            return "compiled FlexAttention returns no LSE on CPU"
        return (
            "torch's FlexAttention has no backward from an LSE over more keys"
            if call.direction == "bwd"
            else None
        )

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """The block mask for both directions, and statistics of rows that compiled code keeps in all."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        num_lists = 0 if traits.full else call.num_q_heads if traits.per_head else 1
        rows = STATISTICS[call.direction] * sizes.lse
        return round(rows) + BLOCK_TABLES * sizes.tile_table(BLOCK, num_lists)

    def prepare(self, problem: Problem) -> FlexPrepared:
        return FlexPrepared(problem)


class FlexPrepared(Prepared):
    """Layout (1, heads, T, D). Compiled for the shapes of this problem only, with inputs of zeros."""

    bool_tables: ClassVar[bool] = True  # see `longca.lowering.mask_mod`

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        no_lse = self._why_no_lse()
        self._with_lse = no_lse is None
        start = time.perf_counter()
        self._options: dict[str, Any] = {
            "block_mask": self._block_mask(),
            "scale": problem.scale,
            "enable_gqa": problem.num_kv_heads < problem.num_q_heads,
            "kernel_options": self._kernel_options(),
        }
        if no_lse is None:
            from torch.nn.attention.flex_attention import AuxRequest

            self._options["return_aux"] = AuxRequest(lse=True)
        else:
            self.notes.append(f"no LSE: {no_lse}")
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = _num_bytes(self._options["block_mask"])
        twin = _twin(flex_attention)
        self._attend = torch.compile(twin, dynamic=False, fullgraph=True)
        # otherwise its compiled variants would never be freed; torch has no public name for it
        drop = weakref.finalize(
            self,
            torch._dynamo.eval_frame.reset_code,  # pyright: ignore[reportPrivateImportUsage]
            twin.__code__,
        )
        drop.atexit = False
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def _kernel_options(self) -> dict[str, Any] | None:
        """Enables TMA loads in the forward, where they are faster and torch does not choose them; the
        backward would be slower (measured on an H200).

        For fewer than 128 queries torch has a kernel whose block holds the rows of all query heads of a KV
        head. Where these are more than a block of the block mask, it has no tile for them (torch 2.11: "No
        choices exist for backend"), and the usual kernel is asked for.
        """
        import torch

        device = self.problem.device
        if device.type != "cuda":
            return None
        options = dict[str, Any]()
        if not self.problem.needs_backward and torch.cuda.get_device_capability(device) >= (9, 0):
            options["USE_TMA"] = True
        num_queries = self.problem.mask.seqlen_q
        rows = num_queries * self.problem.num_q_heads // self.problem.num_kv_heads
        if num_queries < BLOCK < rows:
            options["FORCE_USE_FLEX_ATTENTION"] = True
        return options or None

    def _block_mask(self) -> BlockMask | None:
        from longca.lowering.flex import block_mask

        if self.problem.mask.traits.full:
            self.notes.append("no block mask for the full mask: the kernel's dense path")
            return None
        return block_mask(
            self.problem.mask, self.problem.device, self.problem.num_q_heads, bool_tables=self.bool_tables
        )

    def _why_no_lse(self) -> str | None:
        return (
            None if self.problem.device.type == "cuda" else "compiled FlexAttention does not return it on CPU"
        )

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        import torch

        # with one head `contiguous` keeps odd strides, and other strides would cause a recompilation
        return x_THD.transpose(0, 1).clone(memory_format=torch.contiguous_format).unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0).transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.squeeze(0).transpose(0, 1).float()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        if not self.problem.needs_backward:
            with torch.no_grad():
                return Forward(*self._results(q, k, v))
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        out, lse = self._results(*leaves)
        return Forward(out.detach(), None if lse is None else lse.detach(), saved=(out, leaves))

    def _results(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        result = self._attend(q, k, v, **self._options)
        return (result[0], result[1].lse) if self._with_lse else (result, None)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        out, leaves = forward.saved
        return torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _twin(function: Any) -> Any:
    """The function with a separate code object. torch stops compiling a code object after a few variants, so
    other problems must not count.

    Resetting dynamo instead would also drop the caller's compiled functions.
    """
    twin = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _num_bytes(block_mask: BlockMask | None) -> int:
    """Bytes of the block mask's index tensors."""
    import torch

    if block_mask is None:
        return 0
    return sum(
        part.numel() * part.element_size() for part in block_mask.as_tuple() if isinstance(part, torch.Tensor)
    )
