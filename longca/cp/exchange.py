"""The step between "my tokens, all heads" and "all tokens, my heads", for several tensors in one all-to-all.

One message for q, k and v instead of three: an all-to-all costs a fixed time beside its bytes, and at 8 KV heads those of k
and v are small. The heads of all tensors lie beside each other in each token's row, so what a rank receives from the others,
in the order of their tokens, is already one T × heads × D tensor: nothing is rearranged after the message, and before it each
element is copied once.

Shapes: L tokens of this rank, T of all, D head dim; h heads of one tensor on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from longca.cp.channels import Team
    from longca.cp.comm import Comm

Shares = Sequence[range]  # heads of one tensor that each rank works on


class HeadExchange:
    """All-to-all between a split by tokens and a split by heads.

    Args:
        tokens: tokens of each rank, in their order.
    """

    def __init__(self, comm: Comm | Team, tokens: Sequence[range], head_dim: int) -> None:
        self.comm, self.head_dim = comm, head_dim
        self._num_tokens = [len(part) for part in tokens]
        self._num_mine = self._num_tokens[comm.rank]

    def to_heads(self, tensors: Sequence[torch.Tensor], shares: Sequence[Shares]) -> list[torch.Tensor]:
        """L × all heads × D, of one dtype → T × h × D each: views of one tensor."""
        import torch

        widths = self._widths(shares)
        sizes = [self._num_mine * width * self.head_dim for width in widths]
        width = widths[self.comm.rank]
        with torch.no_grad():
            send = tensors[0].new_empty(sum(sizes))
            for rank, piece in enumerate(send.split(sizes)):
                parts = [x[:, share[rank].start:share[rank].stop] for x, share in zip(tensors, shares, strict=True)]
                torch.cat(parts, dim=1, out=piece.view(self._num_mine, widths[rank], self.head_dim))
            received = self.comm.all_to_all(send, sizes, [num * width * self.head_dim for num in self._num_tokens])
        rows = received.view(sum(self._num_tokens), width, self.head_dim)
        return list(rows.split([len(share[self.comm.rank]) for share in shares], dim=1))

    def to_tokens(self, tensors: Sequence[torch.Tensor], shares: Sequence[Shares]) -> list[list[torch.Tensor]]:
        """T × h × D, of one dtype → for each tensor the blocks L × (heads of that rank) × D of all ranks."""
        import torch

        widths = self._widths(shares)
        sizes = [self._num_mine * width * self.head_dim for width in widths]
        width = widths[self.comm.rank]
        with torch.no_grad():
            rows = tensors[0].contiguous() if len(tensors) == 1 else torch.cat(list(tensors), dim=1)
            received = self.comm.all_to_all(rows.view(-1), [num * width * self.head_dim for num in self._num_tokens], sizes)
        blocks = [piece.view(self._num_mine, widths[rank], self.head_dim) for rank, piece in enumerate(received.split(sizes))]
        parts = [block.split([len(share[rank]) for share in shares], dim=1) for rank, block in enumerate(blocks)]
        return [list(of_ranks) for of_ranks in zip(*parts, strict=True)]

    def _widths(self, shares: Sequence[Shares]) -> list[int]:
        """Heads that go to each rank, over all tensors."""
        return [sum(map(len, of_rank)) for of_rank in zip(*shares, strict=True)]


def join_heads(blocks: Sequence[torch.Tensor], shares: Shares) -> torch.Tensor:
    """The blocks of all ranks as L × all heads × D. Where ranks share heads, those are added.

    Sums are in float32: in bfloat16 their error would grow with the number of ranks.
    """
    import torch

    if all(first.stop <= second.start for first, second in pairwise(filter(None, shares))):
        return torch.cat(list(blocks), dim=1)
    num_heads = max(share.stop for share in shares)
    total = blocks[0].new_zeros(blocks[0].shape[0], num_heads, blocks[0].shape[2], dtype=torch.float32)
    for block, share in zip(blocks, shares, strict=True):
        total[:, share.start:share.stop] += block
    return total.to(blocks[0].dtype)
