"""What goes between some of the ranks: messages from one to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import BufferOffset

    Message = tuple[int, torch.Tensor]  # peer, contiguous tensor
    Outgoing = tuple[int, torch.Tensor, BufferOffset | None]  # peer, contiguous tensor, where it lands there


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


class CommStream:
    """Messages between pairs of ranks, in the order in which they are posted; other lanes do not hold them up.

    A lane is a process group of its own. On a GPU that is a stream of its own, of high priority: a copy that waits beside an attention
    kernel gets the next multiprocessor that is free.
    """

    def __init__(self, group: Any, comm: Any) -> None:
        self._group, self._comm = group, comm

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        """All as one batch. Both sides of a message name it in the same order; a rank without any leaves the batch out.

        What is sent must not change, and what is received must not be touched, before `wait` on the result. On a GPU they start when
        what the current stream has been given by now is done.
        """
        import torch.distributed as dist

        leaving = [(peer, x) for peer, x, _ in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not leaving and not receives:
            return Pending()
        operations = [dist.P2POp(operation, x, peer, self._group)
                      for operation, messages in ((dist.irecv, receives), (dist.isend, leaving)) for peer, x in messages]
        self._comm.moved_bytes += sum(x.nbytes for _, x in leaving)
        with peers():
            return Pending(dist.batch_isend_irecv(operations), [x for _, x in (*leaving, *receives)])

    def all_to_all(self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], receive_sizes: Sequence[Sequence[int]],
                   send_sizes: Sequence[Sequence[int]]) -> Pending:
        """A collective for each tensor, of all ranks alike: to the host it costs one call, whatever the number of peers.

        Args:
            received, sent: contiguous; a piece for each rank, in the order of ranks.
            receive_sizes, send_sizes: numbers in each piece, by tensor and rank; 0 for what does not go.
        """
        import torch.distributed as dist

        works, tensors = [], [*received, *sent]
        with peers():
            for target, source, arriving, leaving in zip(received, sent, receive_sizes, send_sizes, strict=True):
                self._comm.moved_bytes += (sum(leaving) - leaving[self._comm.rank]) * source.element_size()
                works.append(dist.all_to_all_single(target.view(-1), source.view(-1), list(arriving), list(leaving), self._group,
                                                    async_op=True))
        return Pending(works, tensors)


def exchange(send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
    import torch.distributed as dist

    received = send.new_empty(sum(recv_sizes))
    with peers():
        dist.all_to_all_single(received, send, recv_sizes, send_sizes)
    return received


@contextmanager
def peers() -> Iterator[None]:
    """Tells apart what comes of the others: torch raises a bare RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a peer is gone or late: {error}") from error
