"""The interval of a median, as ranking has it: `longca.store.interval`, where the index of a study's cells needs it, too."""

from longca.store.interval import CONFIDENCE, median_interval

__all__ = ["CONFIDENCE", "median_interval"]
