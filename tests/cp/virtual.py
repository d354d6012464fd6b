"""All ranks of a job as threads of one process, so that worlds larger than the machine can be tried."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class VirtualComm:
    """What strategies use of `longca.cp.comm.Comm`, over a board that the ranks share."""

    def __init__(self, rank: int, world: int, board: list[Any], meeting: threading.Barrier) -> None:
        self.rank, self.world, self.device = rank, world, torch.device("cpu")
        self.moved_bytes = 0
        self._board, self._meeting = board, meeting

    def all_to_all(self, send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
        pieces = send.split(send_sizes)
        self._board[self.rank] = pieces
        self._meeting.wait()
        received = [self._board[rank][self.rank].clone() for rank in range(self.world)]
        self._meeting.wait()
        assert [len(piece) for piece in received] == recv_sizes
        self.moved_bytes += sum(piece.nbytes for rank, piece in enumerate(pieces) if rank != self.rank)
        return torch.cat(received)


def on_virtual_ranks(call: Callable[[VirtualComm], Any], world: int) -> list[Any]:
    """call(comm) on every rank at once → results by rank."""
    board, meeting = [None] * world, threading.Barrier(world, timeout=60)
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: call(VirtualComm(rank, world, board, meeting)), range(world)))
