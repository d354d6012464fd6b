"""The step between "my tokens, all heads" and "all tokens, my heads", under way while something else is computed.

A rank's tokens are rows of what another one receives, so messages land in the tensors that kernels read, and set out from those that
kernels write: of what arrives nothing is rearranged, and on the other side heads are packed, once. A tensor is one collective, which costs
the host one call; copy engines take a message for each peer.

Shapes: L tokens of this rank, T of all; D head dim; h heads of one tensor on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import ReceiveBuffers
    from longca.cp.comm.process_group import Comm
    from longca.cp.schedule.head_chunking import HeadChunk
    from longca.kernels.contract import Problem

    UnderWay = tuple[Pending, list[tuple[int, "Shares", torch.Tensor]]]  # messages; place of the tensor, whose heads, and these

Shares = Sequence[range]  # heads of one tensor that each rank works on
TO_HEADS, TO_TOKENS = "heads", "tokens"  # lanes: what goes home must not wait for what is still to come


class HeadExchange:
    """All-to-alls between a split by tokens and a split by heads. All ranks post alike.

    Args:
        ranks: of the job, that divide heads.
        tokens: of each of them, in their order.
    """

    def __init__(self, comm: Comm, ranks: Sequence[int], tokens: Sequence[range], landings: ReceiveBuffers) -> None:
        self.number, self.ranks, self.landings = list(ranks).index(comm.rank), list(ranks), landings
        self.num_tokens_of = [len(part) for part in tokens]
        self.num_tokens = sum(map(len, tokens))
        self.mine = _slice(tokens[self.number])
        self.num_mine, self._world = len(tokens[self.number]), comm.world
        self.to_heads_lane, self.to_tokens_lane = comm.lane(TO_HEADS), comm.lane(TO_TOKENS)
        self.others = [(number, rank, _slice(tokens[number])) for number, rank in enumerate(ranks) if number != self.number]
        """(number among those that divide heads, rank of the job, its tokens)"""

    def reserve(self, chunks: Sequence[HeadChunk], problem: Problem) -> None:
        """Places for what these chunks bring, in both directions."""
        of_head = problem.head_dim * problem.dtype.itemsize
        for turn, chunk in enumerate(chunks):
            for place, share in enumerate((chunk.q, chunk.arriving, chunk.arriving)):
                self.landings.reserve(f"{TO_HEADS} {turn} {place}", self.num_tokens * len(share[self.number]) * of_head)
            for shares in ((chunk.q,), (chunk.q, chunk.leaving, chunk.leaving)):
                self.landings.reserve(f"{TO_TOKENS} {turn % 2}", sum(self.block_rows(self.number, shares).values()) * of_head)

    def to_heads(self, tensors: Sequence[torch.Tensor], shares: Sequence[Shares], turn: int, keep: bool = False) -> Arriving:
        """L × all heads × D, of one dtype → T × h × D each, contiguous, on their way.

        Args:
            turn: number of the chunk.
            keep: the result may be needed after the next call with this number.
        """
        names = [f"{TO_HEADS} {turn} {place}" for place in range(len(tensors))]
        found = [self.landings.empty(name, (self.num_tokens, len(share[self.number]), x.shape[2]), x)
                 for name, x, share in zip(names, tensors, shares, strict=True)]
        if not self.landings.fixed:
            moving = [(x, target, share) for x, target, share in zip(tensors, found, shares, strict=True) if any(map(len, share))]
            messages = self.to_heads_lane.all_to_all(
                [target for _, target, _ in moving], [packed(x, share) for x, _, share in moving],
                [self.sizes(count * len(share[self.number]) * x.shape[2] for count in self.num_tokens_of) for x, _, share in moving],
                [self.sizes(self.num_mine * len(heads) * x.shape[2] for heads in share) for x, _, share in moving])
            return Arriving(found, messages, None)
        sends = [(rank, x[:, _slice(share[number])].contiguous(),
                  self.landings.spot(name, self.mine.start * len(share[number]) * x.shape[2]))
                 for number, rank, _ in self.others for name, x, share in zip(names, tensors, shares, strict=True)]
        messages = self.to_heads_lane.post(sends, [(rank, x[tokens]) for _, rank, tokens in self.others for x in found])
        for x, target, share in zip(tensors, found, shares, strict=True):
            target[self.mine].copy_(x[:, _slice(share[self.number])])
        return Arriving(found, messages, self.landings.keep if keep else None)

    def sizes(self, of_group: Iterable[int]) -> list[int]:
        """By rank of the job, from those of the ranks that divide heads."""
        found = [0] * self._world
        for rank, size in zip(self.ranks, of_group, strict=True):
            found[rank] = size
        return found

    def block_rows(self, receiver: int, shares: Sequence[Shares]) -> dict[tuple[int, int], int]:
        """Tokens × heads of each block that comes home to a rank, by (number of the sender, place of the tensor): as they lie there."""
        return {(number, place): self.num_tokens_of[receiver] * len(share[number])
                for number in range(len(self.num_tokens_of)) if number != receiver for place, share in enumerate(shares)}


class Arriving:
    """Tensors on their way."""

    def __init__(self, tensors: list[torch.Tensor], messages: Pending, keep: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._tensors, self._messages, self._keep = tensors, messages, keep

    def wait(self) -> list[torch.Tensor]:
        """They are there, in the order of the current stream."""
        self._messages.wait()
        return self._tensors if self._keep is None else [self._keep(x) for x in self._tensors]


class HeadGather:
    """Tensors L × all heads × D that fill up as heads come home. Heads that are on several ranks are added.

    Sums are in float32: in bfloat16 their error would grow with the number of ranks.
    """

    def __init__(self, exchange: HeadExchange, num_heads: Sequence[int], shared: Sequence[bool], like: torch.Tensor) -> None:
        """
        Args:
            num_heads: of each tensor, all of them.
            shared: whether heads of a tensor are on several ranks.
            like: L × any × D, of the dtype that results have.
        """
        import torch

        self._exchange, self._dtype, self._shared = exchange, like.dtype, shared
        self._totals = [like.new_zeros(len(like), count, like.shape[2], dtype=torch.float32) if sums else
                        like.new_empty(len(like), count, like.shape[2]) for count, sums in zip(num_heads, shared, strict=True)]
        self._under_way: list[UnderWay] = []
        self._turn = 0

    def post(self, tensors: Sequence[torch.Tensor], shares: Sequence[Shares]) -> None:
        """T × h × D of each tensor set out to those whose tokens they are; a rank's own are put in their place.

        Two landings take turns: what is in one must have been collected before the post after next.
        """
        exchange = self._exchange
        if exchange.landings.fixed:
            self._under_way.append(self._post_blocks(tensors, shares))
            for place, (x, share) in enumerate(zip(tensors, shares, strict=True)):
                self._put(place, share[exchange.number:exchange.number + 1], x[exchange.mine])
            return
        moving = [(place, x.contiguous(), share)
                  for place, (x, share) in enumerate(zip(tensors, shares, strict=True)) if any(map(len, share))]
        sizes = [[exchange.num_mine * len(heads) * x.shape[2] for heads in share] for _, x, share in moving]
        arriving = [x.new_empty(sum(of_ranks)) for (_, x, _), of_ranks in zip(moving, sizes, strict=True)]
        messages = exchange.to_tokens_lane.all_to_all(
            arriving, [x for _, x, _ in moving], [exchange.sizes(of_ranks) for of_ranks in sizes],
            [exchange.sizes(count * x.shape[1] * x.shape[2] for count in exchange.num_tokens_of) for _, x, _ in moving])
        self._under_way.append((messages, [(place, share, block) for (place, _, share), block in zip(moving, arriving, strict=True)]))

    def _post_blocks(self, tensors: Sequence[torch.Tensor], shares: Sequence[Shares]) -> UnderWay:
        """A message for each peer and tensor, to where the receiver has a place for it."""
        exchange, sends, blocks, receives = self._exchange, [], [], []
        name, head_dim, self._turn = f"{TO_TOKENS} {self._turn}", tensors[0].shape[2], 1 - self._turn
        rows = exchange.block_rows(exchange.number, shares)
        landing = exchange.landings.empty(name, (sum(rows.values()), head_dim), tensors[0])
        for (number, place), block in zip(rows, landing.split(list(rows.values())), strict=True):
            blocks.append((place, shares[place][number:number + 1], block))
            receives.append((exchange.ranks[number], block))
        for number, rank, tokens in exchange.others:
            there = exchange.block_rows(number, shares)
            first = dict(zip(there, accumulate(there.values(), initial=0), strict=False))
            sends += [(rank, x[tokens].contiguous(), exchange.landings.spot(name, first[exchange.number, place] * head_dim))
                      for place, x in enumerate(tensors)]
        return exchange.to_tokens_lane.post(sends, receives), blocks

    def collect(self, but_last: int = 0) -> None:
        """Puts into their places what was posted, but for the last so many."""
        while len(self._under_way) > but_last:
            messages, blocks = self._under_way.pop(0)
            messages.wait()
            for block in blocks:
                self._put(*block)

    def result(self) -> list[torch.Tensor]:
        self.collect()
        return [total.to(self._dtype) for total in self._totals]

    def _put(self, place: int, share: Shares, block: torch.Tensor) -> None:
        """Heads of some ranks, one rank's after the other's."""
        block, start = block.reshape(-1), 0
        for target in heads_of(self._totals[place], share):
            part = block[start:start + target.numel()].view(target.shape)
            _ = target.add_(part) if self._shared[place] else target.copy_(part)
            start += target.numel()


def packed(x_LHD: torch.Tensor, share: Shares) -> torch.Tensor:
    """The heads of each rank, one rank's after the other's."""
    parts = heads_of(x_LHD, share)
    found, start = x_LHD.new_empty(sum(part.numel() for part in parts)), 0
    for part in parts:
        found[start:start + part.numel()].view(part.shape).copy_(part)
        start += part.numel()
    return found


def heads_of(x_LHD: torch.Tensor, share: Shares) -> list[torch.Tensor]:
    """Views of each rank's heads, L × h × D; where these lie evenly apart a single one, ranks × L × h × D: one copy then takes them all."""
    starts, counts = [heads.start for heads in share], {len(heads) for heads in share}
    apart = {behind - first for first, behind in pairwise(starts)}
    if len(counts) == len(apart) == 1 and min(apart) >= max(counts):
        stride, (num_tokens, _, head_dim) = x_LHD.stride(), x_LHD.shape
        return [x_LHD.as_strided((len(share), num_tokens, *counts, head_dim), (*(step * stride[1] for step in apart), *stride),
                                 x_LHD.storage_offset() + starts[0] * stride[1])]
    return [x_LHD[:, _slice(heads)] for heads in share]


def _slice(part: range) -> slice:
    return slice(part.start, part.stop)
