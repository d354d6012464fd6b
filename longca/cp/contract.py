"""The contract of context-parallel strategies. One file in `strategies/` is one strategy.

Shapes: T tokens of the whole sequence, L tokens on this rank, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from longca.core.cell import CallSpec, Cell, Scalar
from longca.core.plugin import Plugin, Registry
from longca.core.schema import Frozen, parse
from longca.kernels.contract import missing_modules

if TYPE_CHECKING:
    import numpy as np
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.partition.sharding import Sharding
    from longca.cp.schedule.head_chunking import ChunkWeights
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Forward, Kernel, Problem
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits


@dataclass(frozen=True)
class TokenShard:
    """The tokens of this rank, in the order in which it holds them."""

    positions_L: np.ndarray  # int64, position ids of the whole sequence


class PreparedStrategy:
    """A strategy, prepared for one problem on one rank. Only `forward` and `backward` are timed.

    Tensors are this rank's shards, q_LHD, k_LGD, v_LGD and dout_LHD; results likewise. All ranks call alike; with
    `needs_backward`, `backward` can be called many times on one forward result.
    """

    counts_bytes: ClassVar[bool] = True
    """all messages go through `Comm`, which counts them; False where a library sends by itself, so that the bytes moved are not known"""

    def __init__(self, problem: Problem, shard: TokenShard) -> None:
        self.problem = problem
        self.shard = shard
        self.costs: dict[str, float] = {}  # by the names of `longca.core.record.COSTS`; permute_ms and moved_bytes are measured
        self.notes: list[str] = []

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        raise NotImplementedError

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class Strategy(Plugin):
    """A way to run a mask over several devices.

    A strategy with parameters has a nested class `Params`. `params` is an instance of it: the defaults, or what `with_params` was given.
    """

    summary: ClassVar[str] = ""
    url: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # modules in addition to torch
    kernels: ClassVar[tuple[str, ...]] = ()  # the only kernels that it can run, if it calls them by its own means; empty: any
    baseline: ClassVar[bool] = False  # another project's strategy, to compare with: it need not do every mask

    Params: ClassVar[type[Frozen]] = Frozen  # parameters with their defaults; a nested class of that name

    def __init__(self) -> None:
        self.params: Any = self.Params()

    def resolve(self, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The parameters that differ from their defaults, types settled. Raises UserError for a key or value it cannot have."""
        return self._parsed(params).model_dump(exclude_defaults=True)

    def with_params(self, params: Mapping[str, Scalar]) -> Self:
        """This strategy with these parameters and the defaults of all others. Raises UserError as `resolve` does."""
        found = copy(self)
        found.params = self._parsed(params)
        return found

    def share_plans(self, plans: dict[Any, Any]) -> None:
        """Keep plans in this dictionary, which other strategies have, too: those that divide the tokens alike plan a mask once.

        Nothing changes for a strategy that keeps no plans.
        """

    def _parsed(self, params: Mapping[str, Scalar]) -> Frozen:
        return parse(self.Params, dict(params), f"Strategy '{self.name}'")

    def available(self, device_type: str) -> str | None:
        """None if it can run on this machine's device of that type ("cpu", "cuda"), else the reason why not. The kernel is asked apart."""
        return missing_modules(self.needs)

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        """None if it does this cell over `cell.world` ranks, else the reason why not. The kernel's own limits are asked apart."""
        raise NotImplementedError

    def local_calls(self, cell: Cell, traits: Traits) -> list[tuple[CallSpec, Traits]]:
        """The different kernel calls that ranks will make, with the traits of their masks: heads and lengths of single ranks.

        The kernel's `supports` is asked with them. Only for cells that this strategy `supports`.
        """
        raise NotImplementedError

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        """None if strategy and kernel together do this cell, else the first reason why not. Pure, so it is the same on all ranks."""
        if kernel.work(cell) is not None:
            return "a control runs on one device: it is no attention"
        if self.kernels and cell.kernel not in self.kernels:
            return f"it calls its own kernel: {' or '.join(self.kernels)}, and no other"
        reason = self.supports(cell, traits)
        if reason is not None:
            return reason
        reasons = (kernel.supports(call, local_traits, device_type) for call, local_traits in self.local_calls(cell, traits))
        return next(filter(None, reasons), None)

    def refusal_with(self, mask: Mask, cell: Cell, kernel: Kernel, device_type: str) -> str | None:
        """`refusal` where the cell's mask is at hand: a strategy that looks at it need not draw it again."""
        return self.refusal(cell, mask.traits, kernel, device_type)

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedStrategy:
        """Makes the plan and the buffers, and prepares the local kernel calls. All ranks call it alike."""
        raise NotImplementedError


class HeadStrategy(Strategy):
    """A strategy that divides heads, or may do so. Heads go in chunks: one is on its way while another is computed with.

    Kernels are asked about all heads of a rank. A kernel that does these does some of them, too.
    """

    def refusal_of(self, mask: Mask, call: CallSpec, world: int, kernel: Kernel, device_type: str) -> str | None:
        """`refusal` for a mask at hand, which need not be one of the named patterns."""
        raise NotImplementedError

    def partition_work(self, problem: Problem, kernel: Kernel, world: int, weights: ChunkWeights | None = None,
                       sharding: Sharding | None = None) -> WorkPartition:
        """`partition_call` for a problem."""
        return self.partition_call(problem.mask, problem.call_spec, world, kernel, problem.device.type, weights, sharding)

    def partition_call(self, mask: Mask, call: CallSpec, world: int, kernel: Kernel, device_type: str,
                       weights: ChunkWeights | None = None, sharding: Sharding | None = None) -> WorkPartition:
        """Divides the work among `world` ranks, as `prepare` will do it. It is made without any rank, and without torch.

        Args:
            weights: as of `prepare`.
            sharding: of the tokens, instead of the one that promises to be quickest: so masks can share one. It must be that of another
                work partition of this strategy.

        Raises:
            ValueError: heads cannot be divided by these weights.
        """
        raise NotImplementedError

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm, weights: ChunkWeights | None = None) -> PreparedStrategy:
        """As of `Strategy`.

        Args:
            weights: of the chunks of heads, instead of those that promise to be quickest. Ignored where heads are not divided.

        Raises:
            ValueError: heads cannot be divided by these weights.
        """
        start_s = time.perf_counter()
        work = self.partition_work(problem, kernel, comm.world, weights)
        return self.prepare_work(problem, kernel, comm, work, (time.perf_counter() - start_s) * 1e3)

    def prepare_work(self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float) -> PreparedStrategy:
        """`prepare` for a work partition that is made already.

        Args:
            planning_ms: time that was taken to make it.
        """
        raise NotImplementedError


def strategy_of(cell: Cell) -> Strategy:
    """The strategy of a cell of kind `cp`, with the cell's parameters. Raises UserError if there is no such strategy or parameter."""
    assert cell.strategy is not None
    return Registry("strategy").load(cell.strategy).with_params(cell.strategy_params)
