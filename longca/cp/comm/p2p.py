"""Point-to-point messages between ranks, by NCCL or gloo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca.cp.comm.process_group import as_peer_lost

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.buffers import BufferOffset
    from longca.cp.comm.process_group import WorldGroup

    Message = tuple[int, torch.Tensor]  # peer, contiguous tensor
    # peer, contiguous tensor, destination at the peer
    Outgoing = tuple[int, torch.Tensor, BufferOffset | None]


class Pending:
    """Posted messages, and the tensors that they need until completion."""

    def __init__(self, works: Sequence[Any] = (), tensors: Sequence[torch.Tensor] = ()) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> None:
        """Waits until all messages are sent and received: on a GPU the current stream waits, not the host. A
        second call has no cost."""
        works = self._works
        self._works = ()
        with as_peer_lost():
            for work in works:
                work.wait()
        self._tensors = ()


class CommStream:
    """Messages between pairs of ranks, in the order of posting, independent of other comm streams. A comm
    stream is a separate torch process group.

    On a GPU it has a high-priority CUDA stream: a copy kernel that waits next to an attention kernel gets the
    next free multiprocessor.
    """

    def __init__(self, torch_group: Any, group: WorldGroup) -> None:
        """
        Args:
            torch_group: `torch.distributed.ProcessGroup` of all ranks, used only by this stream.
        """
        self._torch_group = torch_group
        self._group = group

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        """Posts all as one batch. Sender and receiver must list their messages in the same order. A rank with
        no messages posts nothing.

        Sent tensors must not change, and destination tensors must not be touched, before `wait` on the
        result. On a GPU the batch starts after the present work of the current stream.
        """
        import torch.distributed as dist

        leaving = [(peer, x) for peer, x, _ in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not leaving and not receives:
            return Pending()
        operations = [
            dist.P2POp(operation, x, group=self._torch_group, group_peer=peer)
            for operation, messages in ((dist.irecv, receives), (dist.isend, leaving))
            for peer, x in messages
        ]
        self._group.moved_bytes += sum(x.nbytes for _, x in leaving)
        with as_peer_lost():
            return Pending(dist.batch_isend_irecv(operations), [x for _, x in (*leaving, *receives)])

    def all_to_all(
        self,
        received: Sequence[torch.Tensor],
        sent: Sequence[torch.Tensor],
        receive_sizes: Sequence[Sequence[int]],
        send_sizes: Sequence[Sequence[int]],
    ) -> Pending:
        """One collective for each tensor, called by all ranks: one host call for any number of peers.

        Args:
            received, sent: contiguous; a piece for each rank, in the order of ranks.
            receive_sizes, send_sizes: elements in each piece, by tensor and rank; 0 for a missing piece.
        """
        import torch.distributed as dist

        works = []
        tensors = [*received, *sent]
        with as_peer_lost():
            for target, source, arriving, leaving in zip(
                received, sent, receive_sizes, send_sizes, strict=True
            ):
                self._group.moved_bytes += (sum(leaving) - leaving[self._group.rank]) * source.element_size()
                works.append(
                    dist.all_to_all_single(
                        target.view(-1),
                        source.view(-1),
                        list(arriving),
                        list(leaving),
                        self._torch_group,
                        async_op=True,
                    )
                )
        return Pending(works, tensors)
