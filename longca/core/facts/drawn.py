"""Lengths that were drawn for a mask, as a record holds them: all of a few, digest and quantiles of many."""

import hashlib
import struct
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from longca.core.schema import Count, Frozen

MOST_LENGTHS = 512  # that a record holds one by one; the committed studies have up to 178 documents
QUANTILES = 5


class DrawnLengths(Frozen):
    """Lengths in the order in which they were drawn, in tokens."""

    count: Count
    lengths: Annotated[tuple[Count, ...], Field(max_length=MOST_LENGTHS)] = ()
    """all of them; empty where there are more than `MOST_LENGTHS`"""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of all of them as little-endian integers of 64 bits"""
    quantiles: Annotated[tuple[Count, ...], Field(max_length=QUANTILES)] = ()
    """least, lower quartile, median, upper quartile and largest, each one of the lengths; empty where all are
    listed"""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self:
        """The record's form of these lengths, none of them negative."""
        values = list(map(int, lengths))
        digest = hashlib.sha256(struct.pack(f"<{len(values)}q", *values)).hexdigest()
        if len(values) <= MOST_LENGTHS:
            return cls(count=len(values), lengths=tuple(values), digest=digest)
        ordered = sorted(values)
        quantiles = tuple(ordered[(len(ordered) - 1) * part // (QUANTILES - 1)] for part in range(QUANTILES))
        return cls(count=len(values), digest=digest, quantiles=quantiles)
