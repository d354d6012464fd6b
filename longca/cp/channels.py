"""What goes between some of the ranks: messages from one to another, and all-to-alls inside a team."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Message = tuple[int, torch.Tensor]  # peer, contiguous tensor


class PeerLost(RuntimeError):
    """Another rank has not come, or is gone: what a rank meets when it is not itself to blame."""


class Pending:
    """Messages on their way, and the tensors that they need until then."""

    def __init__(self, works: Sequence[Any] = (), tensors: Sequence[torch.Tensor] = ()) -> None:
        self._works, self._tensors = works, tensors

    def wait(self) -> None:
        """Until all have been sent and received: on a GPU the current stream waits, not the host. A second time it is free."""
        works, self._works = self._works, ()
        with peers():
            for work in works:
                work.wait()
        self._tensors = ()


class Lane:
    """Messages between pairs of ranks, in the order in which they are posted; other lanes do not hold them up.

    A lane is a process group of its own. On a GPU that is a stream of its own, of high priority: a copy that waits beside an attention
    kernel gets the next multiprocessor that is free.
    """

    def __init__(self, group: Any, comm: Any) -> None:
        self._group, self._comm = group, comm

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """All as one batch. Both sides of a message name it in the same order; a rank without any leaves the batch out.

        What is sent must not change, and what is received must not be touched, before `wait` on the result. On a GPU they start when
        what the current stream has been given by now is done.
        """
        import torch.distributed as dist

        sends = [(peer, x) for peer, x in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not sends and not receives:
            return Pending()
        operations = [dist.P2POp(operation, x, peer, self._group)
                      for operation, messages in ((dist.irecv, receives), (dist.isend, sends)) for peer, x in messages]
        self._comm.moved_bytes += sum(x.nbytes for _, x in sends)
        with peers():
            return Pending(dist.batch_isend_irecv(operations), [x for _, x in (*sends, *receives)])


class Team:
    """Some of the ranks, for `HeadExchange`: what `Comm` is to all of them."""

    def __init__(self, group: Any, ranks: Sequence[int], comm: Any) -> None:
        self._group, self._comm = group, comm
        self.rank, self.world = list(ranks).index(comm.rank), len(ranks)
        self.device = comm.device

    def all_to_all(self, send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
        """As that of `Comm`, among the team."""
        self._comm.moved_bytes += (sum(send_sizes) - send_sizes[self.rank]) * send.element_size()
        return exchange(send, send_sizes, recv_sizes, self._group)


def exchange(send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int], group: Any = None) -> torch.Tensor:
    import torch.distributed as dist

    received = send.new_empty(sum(recv_sizes))
    with peers():
        dist.all_to_all_single(received, send, recv_sizes, send_sizes, group=group)
    return received


@contextmanager
def peers() -> Iterator[None]:
    """Tells apart what comes of the others: torch raises a bare RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a peer is gone or late: {error}") from error
