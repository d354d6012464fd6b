"""Context parallelism: the contract of strategies, communication, and one file for each strategy."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.cp import forecast, paper_style_forecast, partition, schedule
    from longca.cp.comm.process_group import DEFAULT_TIMEOUT_S
    from longca.cp.context import ContextParallel, context_parallel
    from longca.cp.contract import HeadStrategy, PreparedStrategy, Strategy
    from longca.cp.planned import PlannedStrategy
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "ContextParallel",
    "HeadStrategy",
    "PlannedStrategy",
    "PreparedStrategy",
    "Strategy",
    "context_parallel",
    "forecast",
    "paper_style_forecast",
    "partition",
    "schedule",
]
