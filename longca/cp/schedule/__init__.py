"""Schedules: the kernel calls and transfers of each rank, step by step, their buffers, and their estimated
cost. Pure numpy."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.cp.schedule.pair_traffic import PairTraffic, leaves_node, swapped
    from longca.cp.schedule.plan import Schedule
    from longca.cp.schedule.planner import LinkSpeeds
    from longca.cp.schedule.ring_and_gather import Gather, Ring
    from longca.cp.schedule.timeline import RankTimes
    from longca.cp.schedule.work_partition import (
        WorkPartition,
        describe_chunks,
        partition_heads,
        partition_on,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "Gather",
    "LinkSpeeds",
    "PairTraffic",
    "RankTimes",
    "Ring",
    "Schedule",
    "WorkPartition",
    "describe_chunks",
    "leaves_node",
    "partition_heads",
    "partition_on",
    "swapped",
]
