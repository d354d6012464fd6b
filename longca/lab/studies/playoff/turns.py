"""The order of calls in a play-off."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from longca.core import Count, Frozen

MOST_PLAYERS = 1_000
MOST_ROUNDS = 1_000_000
Ending = Literal["decided", "rounds", "time"]


class Turns(Frozen):
    """The order of a player's timed calls among those of all players."""

    num_players: int = Field(ge=2, le=MOST_PLAYERS)
    """at the beginning; some may have dropped out"""
    numbers: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_ROUNDS)]
    """of each sample: round · num_players + position in the round. Rounds are numbered in the order of
    play"""
    ending: Ending
    """why the rounds ended: decided order, maximum number, or time"""

    @model_validator(mode="after")
    def _ascending(self) -> Turns:
        if any(before >= after for before, after in zip(self.numbers, self.numbers[1:], strict=False)):
            raise ValueError("the turns of a player must ascend")
        return self

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each sample. Samples of two players from one round are a pair."""
        return tuple(number // self.num_players for number in self.numbers)
