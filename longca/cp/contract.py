"""What a context-parallel strategy must say and do. One file in `strategies/` is one strategy.

Shapes: T tokens of the whole sequence, L tokens on this rank, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from longca.core.cell import Cell
from longca.core.plugin import Plugin
from longca.kernels.contract import missing_modules

if TYPE_CHECKING:
    import numpy as np
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.schedule.head_chunking import Weights
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Forward, Kernel, Problem
    from longca.masks.traits import Traits


@dataclass(frozen=True)
class TokenShard:
    """Which tokens this rank holds, in the order it holds them: position ids of the whole sequence."""

    positions_L: np.ndarray  # int64


class PreparedStrategy:
    """A strategy made ready for one problem on one rank. Only `forward` and `backward` are timed.

    Tensors are this rank's shards, q_LHD, k_LGD, v_LGD and dout_LHD; results likewise. All ranks call alike; with
    `needs_backward`, `backward` can be called many times on one forward result.
    """

    counts_bytes: ClassVar[bool] = True
    """everything goes through `Comm`, which counts it; False where a library sends by itself, and the bytes moved are not known"""

    def __init__(self, problem: Problem, shard: TokenShard) -> None:
        self.problem = problem
        self.shard = shard
        self.costs: dict[str, float] = {}  # by the names of `longca.core.costs`; permute_ms and moved_bytes are measured
        self.notes: list[str] = []

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        raise NotImplementedError

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class Strategy(Plugin):
    """A way to run a mask over several devices."""

    summary: ClassVar[str] = ""
    url: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # modules beside torch
    kernels: ClassVar[tuple[str, ...]] = ()  # the only ones that it can run, where it calls them by its own means; empty: any
    baseline: ClassVar[bool] = False  # somebody else's way, to compare with: it need not do every mask

    def available(self, device_type: str) -> str | None:
        """None if it can run on this machine's device of that type ("cpu", "cuda"), else why not. The kernel is asked apart."""
        return missing_modules(self.needs)

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        """None if it does this cell over `cell.world` ranks, else why not. The kernel's own limits are asked apart."""
        raise NotImplementedError

    def local_cells(self, cell: Cell, traits: Traits) -> list[tuple[Cell, Traits]]:
        """The different kernel cells that ranks will run, with what is known of their masks: heads and lengths as each rank
        sees them. For the kernel's `supports`, so only of cells that this strategy does.
        """
        raise NotImplementedError

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        """None if strategy and kernel together do this cell, else the first reason why not."""
        if kernel.work(cell) is not None:
            return "a control runs on one device: it is no attention"
        if self.kernels and cell.kernel not in self.kernels:
            return f"it calls its own kernel: {' or '.join(self.kernels)}, and no other"
        reason = self.supports(cell, traits)
        if reason is not None:
            return reason
        reasons = (kernel.supports(local, local_traits, device_type) for local, local_traits in self.local_cells(cell, traits))
        return next(filter(None, reasons), None)

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedStrategy:
        """Plan, buffers and the local kernel's own preparation, on every rank alike."""
        raise NotImplementedError


class HeadStrategy(Strategy):
    """One that divides heads, or may do so: they go in chunks, one on its way while another is computed with.

    Kernels are asked about all heads of a rank: one that does these does some of them.
    """

    def divide(self, problem: Problem, kernel: Kernel, world: int, weights: Weights | None = None) -> WorkPartition:
        """What `prepare` will follow, for so many ranks: made from the problem alone, without any rank.

        Args:
            weights: as of `prepare`.

        Raises:
            ValueError: heads cannot be cut by these weights.
        """
        raise NotImplementedError

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm, weights: Weights | None = None) -> PreparedStrategy:
        """
        Args:
            weights: of the chunks, instead of those that promise to be quickest; of no account where heads are not divided.

        Raises:
            ValueError: heads cannot be cut by these weights.
        """
        raise NotImplementedError
