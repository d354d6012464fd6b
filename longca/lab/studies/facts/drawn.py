"""Sampled lengths of a mask in a record: a full list of few lengths, digest and quantiles of many."""

import hashlib
import struct
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from longca.core import Count, Frozen

MOST_LENGTHS = 512  # in the full list of a record; the committed studies have up to 178 documents
QUANTILES = 5


class DrawnLengths(Frozen):
    """Lengths in tokens, in the order of sampling."""

    count: Count
    lengths: Annotated[tuple[Count, ...], Field(max_length=MOST_LENGTHS)] = ()
    """all lengths; empty if there are more than `MOST_LENGTHS`"""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of all lengths as little-endian 64-bit integers"""
    quantiles: Annotated[tuple[Count, ...], Field(max_length=QUANTILES)] = ()
    """least, lower quartile, median, upper quartile and largest length, each an actual length; empty if all
    are listed"""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self:
        """The record's form of these non-negative lengths."""
        values = list(map(int, lengths))
        digest = hashlib.sha256(struct.pack(f"<{len(values)}q", *values)).hexdigest()
        if len(values) <= MOST_LENGTHS:
            return cls(count=len(values), lengths=tuple(values), digest=digest)
        ordered = sorted(values)
        quantiles = tuple(ordered[(len(ordered) - 1) * part // (QUANTILES - 1)] for part in range(QUANTILES))
        return cls(count=len(values), digest=digest, quantiles=quantiles)
