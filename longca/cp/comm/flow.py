"""Who may write when: messages straight into a peer's memory, without a host that waits and without anything overwritten unread.

Each rank does the steps of its batches one after the other, on one stream. A receiver tells its senders once what is received into is
free; a sender waits for that, writes, and tells the receiver that all is there. What they tell is how many batches the two have begun,
or finished, which only grows: it need not be reset, and a rank that looks late misses nothing.

No rank waits for itself: a batch's first steps wait for nobody, those that send wait for the first steps of the same batch elsewhere, and
the last ones for those that send. So where batches wait for each other in no circle, ranks do not either; nor do they where a driver puts
several streams of a rank into one queue, if all ranks post in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Signal = Literal["ready", "full"]
"""ready: of a receiver, to a sender; full: of a sender, to a receiver"""


@dataclass(frozen=True)
class Tell:
    peer: int
    signal: Signal
    number: int


@dataclass(frozen=True)
class Await:
    """Until the peer has told this number, or a later one."""

    peer: int
    signal: Signal
    number: int


@dataclass(frozen=True)
class Write:
    """All that the batch has for the peer."""

    peer: int


Step = Tell | Await | Write


class Handshake:
    """One rank's end of a lane. What is one batch with a peer here is one batch with this rank there."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def batch(self, to: Iterable[int], of: Iterable[int]) -> list[Step]:
        """The steps of a batch with messages to and of these peers; once for each batch, in their order."""
        receivers = sorted(set(to), key=self._distance)  # so that not all ranks write to the same one first
        senders = sorted(set(of))
        self._sent.update(receivers)
        self._received.update(senders)
        steps: list[Step] = [Tell(peer, "ready", self._received[peer]) for peer in senders]
        for peer in receivers:
            number = self._sent[peer]
            steps += [Await(peer, "ready", number), Write(peer), Tell(peer, "full", number)]
        return steps + [Await(peer, "full", self._received[peer]) for peer in senders]

    def _distance(self, peer: int) -> int:
        return (peer - self._rank) % self._world
