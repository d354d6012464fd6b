"""One step's messages among all ranks as collectives: to the host they cost a call for each tensor, however many ranges of keys move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from longca.cp.comm.p2p import Pending

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.p2p import CommStream
    from longca.cp.schedule.plan import Transfer


class AllToAll:
    """Of a rank. All ranks make it of the same step, and post it alike.

    Args:
        sends, receives: in the order of peers.
        ranks: of the job, in the order of the plan.
        world: ranks of the job.
        is_empty: nothing moves between any two ranks.
    """

    def __init__(self, sends: Sequence[Transfer], receives: Sequence[Transfer], ranks: Sequence[int], world: int, *,
                 is_empty: bool) -> None:
        self._sent, self._received = (_rows(moves, ranks, world) for moves in (sends, receives))
        self._num_received, self._is_empty = sum(self._received), is_empty
        assert all(first.peer <= second.peer for moves in (sends, receives) for first, second in pairwise(moves))
        assert list(ranks) == sorted(ranks)

    def post(self, lane: CommStream, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> Pending:
        """
        Args:
            sent: the rows of all moves, one after the other, contiguous.
            received: as many rows at least as come, contiguous.
        """
        if self._is_empty:
            return Pending()
        sizes = [[[rows * x.shape[1:].numel() for rows in of_ranks] for x in sent] for of_ranks in (self._received, self._sent)]
        return lane.all_to_all([x[:self._num_received] for x in received], sent, *sizes)


def _rows(moves: Sequence[Transfer], ranks: Sequence[int], world: int) -> list[int]:
    """That go to or come from each rank of the job."""
    found = [0] * world
    for move in moves:
        found[ranks[move.peer]] += len(move)
    return found
