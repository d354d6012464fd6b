"""Speeds of the links between ranks, within nodes and between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.mesh import RANKS_PER_NODE
from longca.cp.schedule.cost import INTRA_NODE_BYTES_PER_S, MESSAGE_S, OVERLAP_SLOWDOWN

if TYPE_CHECKING:
    pass


INTER_NODE_BYTES_PER_S = 40e9  # an assumption, not measured: one adapter of 400 Gb/s for each GPU, at 80 %


@dataclass(frozen=True)
class LinkSpeeds:
    """The speed of messages. Each rank has one link in each direction."""

    intra_node_bytes_per_s: float = INTRA_NODE_BYTES_PER_S
    inter_node_bytes_per_s: float = INTER_NODE_BYTES_PER_S
    message_s: float = MESSAGE_S
    """seconds of a batch of messages in addition to its bytes"""
    inter_node_message_s: float | None = None
    """the same if some of its ranks are on different nodes; None: the same value"""
    overlap_slowdown: float = OVERLAP_SLOWDOWN
    """slowdown of kernels by overlapped messages, as a share of the messages' time"""
    ranks_per_node: int = RANKS_PER_NODE
    packs: bool = False
    """True if sent rows of a gather are packed first, for a collective; copy engines send them in place"""

    def byte_s(self, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds per byte between each pair of these ranks of the job, (…, P) → (…, P, P). Ranks fill node
        after node."""
        node = np.asarray(ranks) // self.ranks_per_node
        return np.where(
            node[..., None] == node[..., None, :],
            1 / self.intra_node_bytes_per_s,
            1 / self.inter_node_bytes_per_s,
        )

    def batch_s(self, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds of a batch of messages among these ranks in addition to its bytes, (…, P) → (…)."""
        node = np.asarray(ranks) // self.ranks_per_node
        between_s = self.message_s if self.inter_node_message_s is None else self.inter_node_message_s
        return np.where((node == node[..., :1]).all(axis=-1), self.message_s, between_s)


FREE = LinkSpeeds(
    intra_node_bytes_per_s=np.inf, inter_node_bytes_per_s=np.inf, message_s=0.0
)  # messages that take no time
