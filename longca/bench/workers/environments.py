"""The environments of a group's ranks, as their answers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from longca.bench.workers.channel import Message
from longca.core.inventory import Installation, LoadedSoftware, RankEnvironment, listing_digest

_LISTING: TypeAdapter[Installation | LoadedSoftware] = TypeAdapter(Installation | LoadedSoftware)


def environments_of(answers: Sequence[Message]) -> tuple[tuple[RankEnvironment, ...], dict[str, Any]]:
    """The environment of each rank, or of all where it is the same, and the listings that came with them by digest.

    None if a rank has not told, or something that cannot be.

    Args:
        answers: to a request to measure, in the order of the ranks.
    """
    try:
        ranks = tuple(RankEnvironment.model_validate(answer.get("environment")) for answer in answers)
    except ValidationError:
        return (), {}
    listings: dict[str, Any] = {}
    for answer in answers:
        content = answer.get("listings")
        for digest, listing in content.items() if isinstance(content, dict) else ():
            if digest not in listings and _is_listing(digest, listing):
                listings[digest] = listing
    return ranks[:1] if len(set(ranks)) == 1 else ranks, listings


def _is_listing(digest: str, content: Any) -> bool:
    try:
        _LISTING.validate_python(content)
    except ValidationError:
        return False
    return listing_digest(content) == digest
