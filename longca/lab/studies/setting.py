"""Settings: the axes in which calls of one mask differ, and how far two settings are apart.

Where no record answers a question, the nearest settings are named, or stand in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

SETTING_AXES = (
    "seqlen",
    "new_tokens",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
    "world",
)
"""columns of the derived table"""
WEIGHTS = {
    "direction": 16.0,
    "dtype": 8.0,
    "world": 4.0,
    "head_dim": 4.0,
    "num_q_heads": 2.0,
    "num_kv_heads": 1.0,
    "seqlen": 1.0,
}
"""weights of the axes; numbers differ by their logarithm"""
NEW_WEIGHT = 4.0  # of the share of new tokens, likewise


def setting_distance(setting: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The distance of two settings; 0 for the same.

    Args:
        setting, other: a value for each of `SETTING_AXES`.
    """
    shares = setting["new_tokens"] / setting["seqlen"], other["new_tokens"] / other["seqlen"]
    total = NEW_WEIGHT * abs(log2(shares[0] / shares[1]))
    for axis, weight in WEIGHTS.items():
        own, asked = setting[axis], other[axis]
        if own != asked:
            total += weight * (1.0 if isinstance(asked, str) else abs(log2(own / asked)))
    return total
