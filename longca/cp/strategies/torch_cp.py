"""torch's own ring attention, with which `context_parallel` replaces SDPA. Keys arrive by one all-gather,
torch's default.

Its ring functions are called directly on the shards. `context_parallel` calls them through DTensor, which
costs host time in every call; excluding this time favours torch. Causal attention is balanced by a zigzag
sharding, full attention is not permuted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from longca.core import Answer, CallSpec
from longca.cp.contract import PreparedStrategy, Strategy, TokenShard
from longca.cp.partition.mesh import summing_ring_bytes
from longca.cp.partition.sharding import contiguous, zigzag
from longca.kernels import CallSizes, Forward, part_of

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

SEQUENCE_DIM = 2


class TorchCp(Strategy):
    label = "torch CP"
    summary = (
        "torch's context parallelism for SDPA: ring attention over keys of one all-gather; full and causal"
    )
    url = "https://docs.pytorch.org/tutorials/prototype/context_parallel.html"
    kernels = ("cudnn", "torch_flash", "sdpa")
    baseline = True
    rotate: ClassVar[str] = "allgather"

    def refusal(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> Answer:
        if kernel.name == "sdpa" and device_type != "cpu":
            return "on GPUs the cell must say which of SDPA's operators it is: cudnn or torch_flash"
        return super().refusal(mask, call, world, kernel, device_type)

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if not (traits.full or traits.causal):
            return "torch's ring is for full and causal attention over the sequence: it takes no mask"
        parts = world if traits.full else 2 * world
        if traits.seqlen_q % parts:
            return f"torch pads nothing: {traits.seqlen_q} tokens are no {parts} equal parts"
        # causal attention also has unmasked halves, which all of torch's operators support
        share = traits.seqlen_q // world
        return [(call, replace(traits, seqlen_q=share, seqlen_k=share))]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """Keys on their way, and what torch's ring holds when it joins a step's result (torch 2.11).

        Forward: the output so far and that of the step in float32, their difference, and its weighted form;
        backward: all gradients in float32, those of keys also as sent and as received, and gradients of this
        step and of the one before.
        """
        share = mask.traits.seqlen_q // world
        traits = replace(mask.traits, seqlen_q=share, seqlen_k=share)
        sizes = CallSizes(call, traits)
        keys = 2 * sizes.keys
        travelling = (world if self.rotate == "allgather" else 1 if world == 2 else 3) * keys
        if world == 1:
            travelling = keys  # contiguous copies
        if call.direction == "fwd":
            return travelling + 4 * sizes.query_sums + 3 * sizes.lse
        # a later step of causal attention has half of the keys; the flash operator was seen to need as much
        # for it as for all
        halves = 2 if world > 1 and mask.traits.causal and kernel.name == "cudnn" else 1
        part = replace(traits, seqlen_k=share // halves)
        of_kernel = kernel.buffer_bytes(call, part_of(mask, part))
        sums = sizes.query_sums + 3 * 2 * sizes.key_sums
        return travelling + keys + sums + sizes.queries + keys // halves + of_kernel

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedTorchCp:
        return PreparedTorchCp(problem, kernel.name, comm, self.rotate)


class PreparedTorchCp(PreparedStrategy):
    counts_bytes = False

    def __init__(self, problem: Problem, kernel: str, comm: Comm, rotate: str) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        self._causal = not problem.mask.traits.full
        sharding = (zigzag if self._causal else contiguous)(problem.mask.seqlen_q, comm.world)
        super().__init__(problem, TokenShard(sharding.positions(comm.rank)))
        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, problem.device.type)
        self._rotate, self._ring = rotate, _RINGS[kernel](mesh, self._causal, problem.scale)
        keys = problem.mask.seqlen_k / comm.world * problem.num_kv_heads * problem.head_dim
        self.costs["formula_bytes"] = summing_ring_bytes(problem, comm.world, keys)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        with torch.no_grad(), self._options():
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
            out, lse, *rest = self._ring.forward(q, k, v)
        saved = (q, k, v, out, lse, *rest) if self.problem.needs_backward else None
        return Forward(_to_tokens(out), lse.reshape(self.problem.num_q_heads, -1).T, saved)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        with torch.no_grad(), self._options():
            dq, dk, dv, *_ = self._ring.backward(dout.transpose(0, 1).unsqueeze(0), forward.saved)
        return _to_tokens(dq), _to_tokens(dk), _to_tokens(dv)

    @contextmanager
    def _options(self) -> Iterator[None]:
        """Sets torch's module-level options for one call, and restores them."""
        from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

        before = _cp_options.enable_load_balance, _cp_options.rotate_method
        _cp_options.enable_load_balance = self._causal
        set_rotate_method(self._rotate)
        try:
            yield
        finally:
            _cp_options.enable_load_balance, _cp_options.rotate_method = before


class _Ring:
    """torch's ring over one of its operators. Tensors are 1 × heads × L × D."""

    def __init__(self, mesh: Any, causal: bool, scale: float) -> None:
        from torch.distributed.tensor.experimental._context_parallel import _attention

        self.rings: Any = _attention
        self.mesh = mesh
        self.causal = causal
        self.scale = scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        """(out, LSE, and further inputs of the operator's backward)."""
        raise NotImplementedError

    def backward(self, dout: torch.Tensor, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        """(dq, dk, dv); `saved` is (q, k, v) and what `forward` returned."""
        raise NotImplementedError


class _CudnnRing(_Ring):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        return self.rings._scaled_dot_product_ring_cudnn_attention(
            self.mesh, q, k, v, compute_log_sumexp=True, is_causal=self.causal, scale=self.scale
        )

    def backward(self, dout: torch.Tensor, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        q, k, v, out, lse, cu_q, cu_k, max_q, max_k, seed, offset, *_ = saved
        no_bias: Any = None  # autograd's argument for a missing bias
        return self.rings._scaled_dot_product_ring_cudnn_attention_backward(
            self.mesh,
            dout,
            q,
            k,
            v,
            out,
            lse,
            seed,
            offset,
            no_bias,
            cu_q,
            cu_k,
            max_q,
            max_k,
            0.0,
            self.causal,
            scale=self.scale,
        )


class _FlashRing(_Ring):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        return self.rings._scaled_dot_product_ring_flash_attention(
            self.mesh, q, k, v, is_causal=self.causal, scale=self.scale
        )

    def backward(self, dout: torch.Tensor, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        q, k, v, out, lse, cu_q, cu_k, max_q, max_k, seed, offset, *_ = saved
        return self.rings._scaled_dot_product_ring_flash_attention_backward(
            self.mesh,
            dout,
            q,
            k,
            v,
            out,
            lse,
            cu_q,
            cu_k,
            max_q,
            max_k,
            0.0,
            self.causal,
            seed,
            offset,
            scale=self.scale,
        )


class _CpuRing(_Ring):
    """torch's ring over its CPU operator. torch itself has rings only over its GPU operators."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        import torch

        return self.rings._templated_ring_attention(
            self.mesh.get_group(),
            SEQUENCE_DIM,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
            q,
            k,
            v,
            is_causal=self.causal,
            scale=self.scale,
        )

    def backward(self, dout: torch.Tensor, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        import torch

        return self.rings._templated_ring_attention_backward(
            self.mesh.get_group(),
            SEQUENCE_DIM,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            dout,
            "grad_out",
            *saved,
            self.causal,
            dropout_p=0.0,
            scale=self.scale,
        )


_RINGS: dict[str, type[_Ring]] = {"cudnn": _CudnnRing, "torch_flash": _FlashRing, "sdpa": _CpuRing}


def _to_tokens(x: torch.Tensor) -> torch.Tensor:
    """1 × heads × L × D → L × heads × D."""
    return x.squeeze(0).transpose(0, 1)
