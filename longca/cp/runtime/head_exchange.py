"""All-to-all between a split by tokens ("my tokens, all heads") and a split by heads ("all tokens, my
heads"), overlapped with kernels.

    by tokens: L × all heads × D   ── HeadExchange.to_heads ──▶   by heads: T × h × D
                                   ◀────── HeadGather ────────

A rank's tokens are contiguous rows of the receiver's tensor. So messages arrive in the tensors that kernels
read, and are sent from those that kernels write: data received by heads are not rearranged, and data sent by
tokens are packed once. Each tensor is one collective, which is one host call; copy engines need a message for
each peer.

Shapes: L tokens of this rank, T of all; D head dim; h heads of one tensor on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.comm.p2p import ReceiveBuffers
    from longca.cp.partition.mesh import HeadChunk
    from longca.kernels import Problem

    # messages; index of the tensor, heads, and their block
    Posted = tuple[Pending, list[tuple[int, "HeadRanges", torch.Tensor]]]

HeadRanges = Sequence[range]  # heads of one tensor that each rank of the group works on
# comm streams: results must not wait for chunks that have not arrived
TO_HEADS = "heads"
TO_TOKENS = "tokens"


class HeadExchange:
    """The exchanges of one rank within its head group. All ranks of the job post the same exchanges.

    Args:
        ranks: ranks of the job in the head group.
        tokens: number of tokens of each of them, in order.
    """

    def __init__(
        self, comm: Comm, ranks: Sequence[int], tokens: Sequence[range], receive_buffers: ReceiveBuffers
    ) -> None:
        self.index = list(ranks).index(comm.rank)
        self.ranks = list(ranks)
        self.receive_buffers = receive_buffers
        self.num_tokens_of = [len(part) for part in tokens]
        self.num_tokens = sum(map(len, tokens))
        self.own_tokens = _slice(tokens[self.index])
        self.num_own_tokens = len(tokens[self.index])
        self._world = comm.world
        # streams over symmetric memory have no `all_to_all`: there, receive buffers are fixed
        self.to_heads_stream = comm.stream(TO_HEADS)
        self.to_tokens_stream = comm.stream(TO_TOKENS)
        self.others = [
            (index, rank, _slice(tokens[index])) for index, rank in enumerate(ranks) if index != self.index
        ]
        """(index in the group, rank of the job, its tokens)"""

    def reserve(self, chunks: Sequence[HeadChunk], problem: Problem) -> None:
        """Reserves receive buffers for these chunks, in both directions."""
        of_head = problem.head_dim * problem.dtype.itemsize
        for number, chunk in enumerate(chunks):
            for slot, heads in enumerate((chunk.q, chunk.arriving, chunk.arriving)):
                self.receive_buffers.reserve(
                    f"{TO_HEADS} {number} {slot}", self.num_tokens * len(heads[self.index]) * of_head
                )
            for tensors in ((chunk.q,), (chunk.q, chunk.leaving, chunk.leaving)):
                self.receive_buffers.reserve(
                    f"{TO_TOKENS} {number % 2}", sum(self.block_rows(self.index, tensors).values()) * of_head
                )

    def to_heads(
        self, tensors: Sequence[torch.Tensor], heads: Sequence[HeadRanges], chunk: int, keep: bool = False
    ) -> HeadsInFlight:
        """Starts L × all heads × D → T × h × D of each tensor, of one dtype; results are contiguous.

        Args:
            heads: heads of each tensor.
            chunk: number of the chunk.
            keep: True if the result is needed beyond the next call with this number.
        """
        names = [f"{TO_HEADS} {chunk} {slot}" for slot in range(len(tensors))]
        received = [
            self.receive_buffers.empty(name, (self.num_tokens, len(ranges[self.index]), x.shape[2]), x)
            for name, x, ranges in zip(names, tensors, heads, strict=True)
        ]
        if not self.receive_buffers.fixed:
            moving = [
                (x, target, ranges)
                for x, target, ranges in zip(tensors, received, heads, strict=True)
                if any(map(len, ranges))
            ]
            messages = self.to_heads_stream.all_to_all(  # pyright: ignore[reportAttributeAccessIssue]
                [target for _, target, _ in moving],
                [packed(x, ranges) for x, _, ranges in moving],
                [
                    self.sizes(count * len(ranges[self.index]) * x.shape[2] for count in self.num_tokens_of)
                    for x, _, ranges in moving
                ],
                [
                    self.sizes(self.num_own_tokens * len(part) * x.shape[2] for part in ranges)
                    for x, _, ranges in moving
                ],
            )
            return HeadsInFlight(received, messages, None)
        sends = [
            (
                rank,
                x[:, _slice(ranges[index])].contiguous(),
                self.receive_buffers.offset(name, self.own_tokens.start * len(ranges[index]) * x.shape[2]),
            )
            for index, rank, _ in self.others
            for name, x, ranges in zip(names, tensors, heads, strict=True)
        ]
        messages = self.to_heads_stream.post(
            sends, [(rank, x[tokens]) for _, rank, tokens in self.others for x in received]
        )
        for x, target, ranges in zip(tensors, received, heads, strict=True):
            target[self.own_tokens].copy_(x[:, _slice(ranges[self.index])])
        return HeadsInFlight(received, messages, self.receive_buffers.keep if keep else None)

    def sizes(self, of_group: Iterable[int]) -> list[int]:
        """Sizes by rank of the job, from those of the group's ranks; 0 for others."""
        found = [0] * self._world
        for rank, size in zip(self.ranks, of_group, strict=True):
            found[rank] = size
        return found

    def block_rows(self, receiver: int, heads: Sequence[HeadRanges]) -> dict[tuple[int, int], int]:
        """Tokens × heads of each block that a rank receives by tokens, in the order of its buffer.

        Keys: (index of the sender in the group, index of the tensor).
        """
        return {
            (sender, slot): self.num_tokens_of[receiver] * len(ranges[sender])
            for sender in range(len(self.num_tokens_of))
            if sender != receiver
            for slot, ranges in enumerate(heads)
        }


class HeadsInFlight:
    """Tensors T × h × D that are being received."""

    def __init__(
        self,
        tensors: list[torch.Tensor],
        messages: Pending,
        keep: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self._tensors = tensors
        self._messages = messages
        self._keep = keep

    def wait(self) -> list[torch.Tensor]:
        """The received tensors, available in the order of the current stream."""
        self._messages.wait()
        return self._tensors if self._keep is None else [self._keep(x) for x in self._tensors]


class HeadGather:
    """Tensors L × all heads × D that are filled as ranks return their heads.

    Heads that are on several ranks are summed in float32, since in bfloat16 the error would grow with the
    number of ranks.
    """

    def __init__(
        self, exchange: HeadExchange, num_heads: Sequence[int], shared: Sequence[bool], like: torch.Tensor
    ) -> None:
        """
        Args:
            num_heads: total heads of each tensor.
            shared: for each tensor, True if some of its heads are on several ranks.
            like: L × any × D, with the dtype of results.
        """
        import torch

        self._exchange = exchange
        self._dtype = like.dtype
        self._shared = shared
        self._totals = [
            like.new_zeros(len(like), count, like.shape[2], dtype=torch.float32)
            if sums
            else like.new_empty(len(like), count, like.shape[2])
            for count, sums in zip(num_heads, shared, strict=True)
        ]
        self._posted: list[Posted] = []
        self._parity = 0

    def post(self, tensors: Sequence[torch.Tensor], heads: Sequence[HeadRanges]) -> None:
        """Sends T × h × D of each tensor to the owners of the tokens; own rows are copied locally.

        Two receive buffers alternate: the content of one must be collected before the post after the next.
        """
        exchange = self._exchange
        if exchange.receive_buffers.fixed:
            self._posted.append(self._post_blocks(tensors, heads))
            for slot, (x, ranges) in enumerate(zip(tensors, heads, strict=True)):
                self._put(slot, ranges[exchange.index : exchange.index + 1], x[exchange.own_tokens])
            return
        moving = [
            (slot, x.contiguous(), ranges)
            for slot, (x, ranges) in enumerate(zip(tensors, heads, strict=True))
            if any(map(len, ranges))
        ]
        sizes = [
            [exchange.num_own_tokens * len(part) * x.shape[2] for part in ranges] for _, x, ranges in moving
        ]
        received = [x.new_empty(sum(by_rank)) for (_, x, _), by_rank in zip(moving, sizes, strict=True)]
        messages = exchange.to_tokens_stream.all_to_all(  # pyright: ignore[reportAttributeAccessIssue]
            received,
            [x for _, x, _ in moving],
            [exchange.sizes(by_rank) for by_rank in sizes],
            [
                exchange.sizes(count * x.shape[1] * x.shape[2] for count in exchange.num_tokens_of)
                for _, x, _ in moving
            ],
        )
        self._posted.append(
            (
                messages,
                [(slot, ranges, block) for (slot, _, ranges), block in zip(moving, received, strict=True)],
            )
        )

    def _post_blocks(self, tensors: Sequence[torch.Tensor], heads: Sequence[HeadRanges]) -> Posted:
        """Sends a message for each peer and tensor, to its block of the receiver's buffer."""
        exchange = self._exchange
        sends = []
        blocks = []
        receives = []
        name = f"{TO_TOKENS} {self._parity}"
        head_dim = tensors[0].shape[2]
        self._parity = 1 - self._parity
        rows = exchange.block_rows(exchange.index, heads)
        buffer = exchange.receive_buffers.empty(name, (sum(rows.values()), head_dim), tensors[0])
        for (sender, slot), block in zip(rows, buffer.split(list(rows.values())), strict=True):
            blocks.append((slot, heads[slot][sender : sender + 1], block))
            receives.append((exchange.ranks[sender], block))
        for index, rank, tokens in exchange.others:
            rows_there = exchange.block_rows(index, heads)
            starts = dict(zip(rows_there, accumulate(rows_there.values(), initial=0), strict=False))
            sends += [
                (
                    rank,
                    x[tokens].contiguous(),
                    exchange.receive_buffers.offset(name, starts[exchange.index, slot] * head_dim),
                )
                for slot, x in enumerate(tensors)
            ]
        return exchange.to_tokens_stream.post(sends, receives), blocks

    def collect(self, but_last: int = 0) -> None:
        """Waits for all posts except the last ones, and copies their results into the tensors."""
        while len(self._posted) > but_last:
            messages, blocks = self._posted.pop(0)
            messages.wait()
            for block in blocks:
                self._put(*block)

    def result(self) -> list[torch.Tensor]:
        self.collect()
        return [total.to(self._dtype) for total in self._totals]

    def _put(self, slot: int, ranges: HeadRanges, block: torch.Tensor) -> None:
        """Copies the concatenated heads of several ranks into a tensor."""
        block = block.reshape(-1)
        start = 0
        for target in heads_of(self._totals[slot], ranges):
            part = block[start : start + target.numel()].view(target.shape)
            _ = target.add_(part) if self._shared[slot] else target.copy_(part)
            start += target.numel()


def packed(x_LHD: torch.Tensor, ranges: HeadRanges) -> torch.Tensor:
    """The concatenated heads of each rank, 1-d."""
    parts = heads_of(x_LHD, ranges)
    buffer = x_LHD.new_empty(sum(part.numel() for part in parts))
    start = 0
    for part in parts:
        buffer[start : start + part.numel()].view(part.shape).copy_(part)
        start += part.numel()
    return buffer


def heads_of(x_LHD: torch.Tensor, ranges: HeadRanges) -> list[torch.Tensor]:
    """Views of each rank's heads, L × h × D, or a single view, ranks × L × h × D, if they are evenly spaced,
    for a single copy."""
    starts = [heads.start for heads in ranges]
    counts = {len(heads) for heads in ranges}
    apart = {later - earlier for earlier, later in pairwise(starts)}
    if len(counts) == len(apart) == 1 and min(apart) >= max(counts):
        stride = x_LHD.stride()
        num_tokens, _, head_dim = x_LHD.shape
        return [
            x_LHD.as_strided(
                (len(ranges), num_tokens, *counts, head_dim),
                (*(step * stride[1] for step in apart), *stride),
                x_LHD.storage_offset() + starts[0] * stride[1],
            )
        ]
    return [x_LHD[:, _slice(heads)] for heads in ranges]


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)
