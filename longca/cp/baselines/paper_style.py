"""What the two rows in the style of the study (arXiv 2510.17896) share: which masks, how tokens lie, how they are padded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core.cell import Cell
from longca.cp.baselines.padded_documents import PaddedDocuments
from longca.cp.contract import PreparedStrategy, Strategy, TokenShard
from longca.cp.runtime.kernel_call import LocalCall
from longca.masks.segments import diagonal_segments

if TYPE_CHECKING:
    import numpy as np
    import torch

    from longca.cp.comm.process_group import Comm
    from longca.kernels.contract import Kernel, Problem
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

FULL, CAUSAL = (-1, -1), (-1, 0)


class PaperStyle(Strategy):
    """Full and causal attention, over the sequence or inside documents: what the study's own code runs on several GPUs."""

    url = "https://arxiv.org/abs/2510.17896"
    baseline = True

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        if traits.per_head or not traits.num_segments or traits.window not in (FULL, CAUSAL):
            return "the study's schedules are for full and causal attention, over the sequence or inside documents"
        return None

    def refusal(self, cell: Cell, traits: Traits, kernel: Kernel, device_type: str) -> str | None:
        return super().refusal(cell, traits, kernel, device_type) or kernel.in_parts(cell.call_spec, device_type)


def rectangle(traits: Traits, num_q: int, num_k: int, *, causal: bool = False) -> Traits:
    """Of queries that see all of these keys of their document, or what precedes them; lengths are about these."""
    full = traits.num_segments == 1 and not causal
    square = full and num_q == num_k
    return replace(traits, seqlen_q=num_q, seqlen_k=num_k, num_bands=traits.num_segments, full=full, causal=False,
                   num_segments=int(square), window=FULL if square else None)


def add_rows(whole: torch.Tensor, rows: torch.Tensor, part: torch.Tensor) -> None:
    """whole[rows] += part in the dtype of the whole, no row twice: `index_add_` would go through atomics."""
    whole.index_copy_(0, rows, whole.index_select(0, rows).add_(part))


class PaperStylePrepared(PreparedStrategy):
    """Keys and values of a rank lie in one buffer of 2R rows, G heads, D: those of k, then those of v, padding included."""

    def __init__(self, problem: Problem, kernel: Kernel, comm: Comm) -> None:
        segments = diagonal_segments(problem.mask)
        assert segments is not None, "`supports` has been asked"
        self.documents, self.causal = PaddedDocuments(segments.bounds, comm.world), segments.window == CAUSAL
        self.mine = self.documents.held(comm.rank)
        super().__init__(problem, TokenShard(self.mine.positions))
        self.comm, self._kernel, self._counted = comm, kernel, Counter()
        self._kv_rows = self.both(self.mine.rows)
        if self.documents.num_padding:
            self.notes.append(f"documents are padded to multiples of {2 * comm.world} tokens: {self.documents.num_padding} rows "
                              f"more than the {problem.mask.seqlen_q} tokens")

    def call(self, mask: Mask) -> LocalCall:
        """The kernel made ready for a part; its costs are counted in."""
        call = LocalCall(self._kernel, replace(self.problem, mask=mask))
        self._counted.update(call.prepared.costs)
        self.costs |= self._counted
        self.notes += [note for note in call.prepared.notes if note not in self.notes]
        return call

    def on_device(self, index: np.ndarray) -> torch.Tensor:
        import torch

        return torch.from_numpy(index).to(self.problem.device)

    def both(self, rows: np.ndarray) -> torch.Tensor:
        """Where the keys of these rows lie in a rank's buffer, then where their values do."""
        import numpy as np

        return self.on_device(np.concatenate([rows, rows + self.documents.num_rows]))

    def pad(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """This rank's keys and values in a buffer, 0 between them."""
        import torch

        buffer = k.new_zeros(2 * self.documents.num_rows, *k.shape[1:])
        return buffer.index_copy_(0, self._kv_rows, torch.cat([k, v]))

    def unpad(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = buffer.index_select(0, self._kv_rows).chunk(2)
        return k, v

    @property
    def shard_bytes(self) -> float:
        """Keys of an even share of the tokens: what formulas of bytes are made of. Values are as much again."""
        problem = self.problem
        return problem.mask.seqlen_q / self.comm.world * problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
