"""The interval of a median, from its samples alone, as records have it."""

from longca.store.view import CONFIDENCE, median_interval

__all__ = ["CONFIDENCE", "median_interval"]
