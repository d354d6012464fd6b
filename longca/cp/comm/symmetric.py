"""Messages that a rank writes straight into the memory of another, by copy engines: no multiprocessor is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from longca.cp.comm.flow import Await, Handshake, Signal, Tell
from longca.cp.comm.p2p import Pending

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.p2p import Message, Outgoing
    from longca.cp.comm.process_group import Comm


class Wire(Protocol):
    """A stream of one lane, and the numbers that peers tell this rank there. All is done in order, and the host waits for nothing."""

    def follow(self) -> None:
        """What comes starts when what the current stream has been given by now is done."""
        ...

    def tell(self, peer: int, signal: Signal, number: int) -> None: ...

    def wait_for(self, peer: int, signal: Signal, number: int) -> None: ...

    def write(self, there: torch.Tensor, x: torch.Tensor) -> None: ...

    def mark(self) -> Any:
        """What `wait` on it has the current stream wait for: all so far."""
        ...


class SymmetricCommStream:
    """As `channels.CommStream`; what is received into is of `ReceiveBuffers.empty`, and senders name its spot."""

    def __init__(self, wire: Wire, comm: Comm) -> None:
        self._wire, self._comm, self._flow = wire, comm, Handshake(comm.rank, comm.world)

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        """As `CommStream.post`. Besides, what is one batch with a peer here must be one batch there."""
        sends = [(peer, x, spot) for peer, x, spot in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not sends and not receives:
            return Pending()
        self._wire.follow()
        for step in self._flow.batch([peer for peer, *_ in sends], [peer for peer, _ in receives]):
            if isinstance(step, Tell):
                self._wire.tell(step.peer, step.signal, step.number)
            elif isinstance(step, Await):
                self._wire.wait_for(step.peer, step.signal, step.number)
            else:
                for peer, x, spot in sends:
                    if peer == step.peer:
                        assert spot is not None, "of `SymmetricReceiveBuffers`"
                        self._wire.write(spot.at(peer, x), x)
        self._comm.moved_bytes += sum(x.nbytes for _, x, _ in sends)
        return Pending([self._wire.mark()], [x for _, x, *_ in (*sends, *receives)])
