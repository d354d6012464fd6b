"""The contract of context-parallel strategies. One file in `strategies/` is one strategy.

Shapes: T tokens of the whole sequence, L tokens on this rank, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from longca.core import Answer, CallSpec, Frozen, Plugin, Scalar, parse
from longca.kernels import CallSizes, missing_modules, part_of

if TYPE_CHECKING:
    import numpy as np
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.partition.mesh import ChunkWeights, Mesh
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels import Forward, Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

    Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
    """dq, dk, dv, and in float32 that of the sinks, if there are any"""

LocalCalls = list[tuple[CallSpec, "Traits"]]
"""kernel calls of ranks, each with the traits of its mask"""


@dataclass(frozen=True)
class TokenShard:
    """The tokens of this rank, in local order."""

    positions_L: np.ndarray  # int64, position ids of the whole sequence


class PreparedStrategy:
    """A strategy, prepared for one problem on one rank. Only `forward` and `backward` are timed.

    Tensors are this rank's shards, q_LHD, k_LGD, v_LGD and dout_LHD; results likewise. Calls are collective;
    with `needs_backward`, `backward` can be called many times on one forward result.
    """

    counts_bytes: ClassVar[bool] = True
    """True if all messages use `Comm`, which counts them; False if a library sends its own messages, so that
    the moved bytes are unknown"""
    takes_sinks: ClassVar[bool] = False
    """True if it has `forward_with_sinks` and `backward_with_sinks`"""

    def __init__(self, problem: Problem, shard: TokenShard) -> None:
        self.problem = problem
        self.shard = shard
        # by name; permute_ms and moved_bytes are measured
        self.costs: dict[str, float] = {}
        self.notes: list[str] = []

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        raise NotImplementedError

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def forward_with_sinks(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks_H: torch.Tensor
    ) -> Forward:
        """`forward` with a logit for each query head, which joins the softmax of each row: see
        `longca.ops.sinks`.

        Args:
            sinks_H: float32, of all H query heads, the same on every rank.
        """
        raise NotImplementedError

    def backward_with_sinks(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv, part of the gradient of the sinks) from a result of `forward_with_sinks`.

        The part is (H,) in float32: that of the rows and heads which this rank has computed. The gradient is
        the sum over ranks.
        """
        raise NotImplementedError


class LocalAttention(Protocol):
    """Attention with all tokens and some heads: T × h × D and T × g × D, with h sinks or without."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, /
    ) -> Forward:
        """The output as T × h × D, without a graph, and the inputs of its backward."""
        ...

    def backward(self, saved: Any, dout: torch.Tensor, /) -> Grads: ...


class PreparedByHeads(PreparedStrategy):
    """A strategy whose attention takes the sinks of the heads that the rank computes."""

    takes_sinks = True
    _attention: LocalAttention

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        return self._attention.forward(q.detach(), k.detach(), v.detach(), None)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._attention.backward(forward.saved, dout.detach())[:3]

    def forward_with_sinks(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks_H: torch.Tensor
    ) -> Forward:
        return self._attention.forward(q.detach(), k.detach(), v.detach(), sinks_H.detach())

    def backward_with_sinks(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        dq, dk, dv, dsinks = self._attention.backward(forward.saved, dout.detach())
        assert dsinks is not None, "the result is one of forward_with_sinks"
        return dq, dk, dv, dsinks


class Strategy(Plugin):
    """A way to run a mask over several devices.

    A strategy with parameters has a nested class `Params`. `params` is an instance of it: the defaults, or
    the arguments of `with_params`.
    """

    summary: ClassVar[str] = ""
    url: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # modules in addition to torch
    kernels: ClassVar[tuple[str, ...]] = ()  # the supported kernels, if it calls them directly; empty: any
    # True for a strategy of another project, for comparison: it need not support every mask
    baseline: ClassVar[bool] = False

    Params: ClassVar[type[Frozen]] = Frozen  # parameters with their defaults; a nested class of that name

    def __init__(self) -> None:
        self.params: Any = self.Params()

    def resolve(self, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The parameters that differ from their defaults, with checked types. Raises UserError for an invalid
        key or value."""
        return self._parsed(params).model_dump(exclude_defaults=True)

    def with_params(self, params: Mapping[str, Scalar]) -> Self:
        """This strategy with these parameters and the defaults of all others. Raises UserError as `resolve`
        does."""
        strategy = copy(self)
        strategy.params = self._parsed(params)
        return strategy

    def share_plans(self, plans: dict[Any, Any]) -> None:
        """Share a cache of plans with other strategies, so that strategies with the same sharding plan a mask
        once.

        No effect on strategies without plans.
        """

    def _parsed(self, params: Mapping[str, Scalar]) -> Frozen:
        return parse(self.Params, dict(params), f"Strategy '{self.name}'")

    def available(self, device_type: str) -> Answer:
        """None if the strategy can run on this machine's device of that type ("cpu", "cuda"), else the reason
        why not. The kernel is checked separately."""
        return missing_modules(self.needs)

    def refusal(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> Answer:
        """None if strategy and kernel together can do this call on `world` ranks, else the first reason why
        not.
        Pure, so the same on all ranks.

        Args:
            mask: refused if it has not as many queries as keys. A `LazyMask` is built only where its traits
                do not decide.
            call: the call with all its heads, as one device would run it.
        """
        if kernel.work(call, mask.traits.seqlen_q) is not None:
            return "a control runs on one device: it is no attention"
        if reason := unfit_lengths(mask.traits):
            return reason
        if self.kernels and kernel.name not in self.kernels:
            return f"it calls its own kernel: {' or '.join(self.kernels)}, and no other"
        calls = self.local_calls(mask.traits, call, world)
        if isinstance(calls, str):
            return calls
        reasons = (kernel.supports(local, traits, device_type) for local, traits in calls)
        return next(filter(None, reasons), None)

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        """The distinct kernel calls of ranks, with heads and lengths of single ranks, or the reason why the
        strategy cannot do this call on `world` ranks.

        `refusal` asks it, and then the kernel about each of these calls; a strategy whose traits alone do not
        tell overrides `refusal` instead.

        Args:
            traits: traits of the whole mask.
        """
        raise NotImplementedError

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """Predicted bytes that a call holds at its peak on the rank that needs most, besides its shards of
        inputs, result and gradients. Pure. Arguments as in `refusal`, which must have accepted them.

        The default is that of a strategy that gathers all keys, backward also their gradients, and then calls
        the kernel once.
        """
        calls = self.local_calls(mask.traits, call, world)
        assert not isinstance(calls, str), "`refusal` has been asked"
        keys = 2 * CallSizes(call, mask.traits).keys * (2 if call.direction == "bwd" else 1)
        of_kernel = (kernel.buffer_bytes(local, part_of(mask, traits)) for local, traits in calls)
        return keys + max(of_kernel, default=0)

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedStrategy:
        """Makes the plan and the buffers, and prepares the local kernel calls. A collective call."""
        raise NotImplementedError


def unfit_lengths(traits: Traits) -> Answer:
    """The reason why a mask's tokens cannot be divided among ranks; None if they can."""
    if traits.seqlen_q == traits.seqlen_k:
        return None
    return (
        "it divides tokens among ranks, each of them a query and a key; new tokens after a context run on "
        "one device"
    )


class HeadStrategy(Strategy):
    """A strategy that may split heads. Heads are processed in chunks, so that transfers overlap with
    computation.

    Kernels are checked for all heads of a rank, which covers subsets.
    """

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        """The mesh of ranks: those that split heads, and those that split keys. Raises ValueError if
        parameters do not fit these numbers."""
        raise NotImplementedError

    def unfit_ranks(self, call: CallSpec, world: int) -> Answer:
        """The reason why parameters do not fit this number of ranks or heads; None if they do."""
        try:
            self.mesh(world, call.num_kv_heads)
        except ValueError as error:
            return str(error)
        return None

    def partition_work(
        self,
        problem: Problem,
        kernel: Kernel,
        world: int,
        weights: ChunkWeights | None = None,
        sharding: Sharding | None = None,
    ) -> WorkPartition:
        """`partition_call` for a problem."""
        return self.partition_call(
            problem.mask, problem.call_spec, world, kernel, problem.device.type, weights, sharding
        )

    def partition_call(
        self,
        mask: Mask,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
        weights: ChunkWeights | None = None,
        sharding: Sharding | None = None,
    ) -> WorkPartition:
        """Divides the work among `world` ranks, like `prepare`, but without ranks and without torch.

        Args:
            weights: as in `prepare`.
            sharding: sharding of the tokens, instead of the estimated fastest one, so that masks can share
                one. It must be that of another work partition of this strategy.

        Raises:
            ValueError: heads cannot be divided by these weights.
        """
        raise NotImplementedError

    def prepare(
        self, problem: Problem, kernel: Kernel, comm: Comm, weights: ChunkWeights | None = None
    ) -> PreparedStrategy:
        """As in `Strategy`.

        Args:
            weights: weights of the chunks of heads, instead of the estimated fastest ones. Ignored if heads
                are not split.

        Raises:
            ValueError: heads cannot be divided by these weights.
        """
        start_s = time.perf_counter()
        work = self.partition_work(problem, kernel, comm.world, weights)
        return self.prepare_work(problem, kernel, comm, work, (time.perf_counter() - start_s) * 1e3)

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedStrategy:
        """`prepare` for an existing work partition.

        Args:
            planning_ms: time of its planning.
        """
        raise NotImplementedError
