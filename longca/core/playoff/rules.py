"""The rules of play-offs, as a study has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from longca.core.cell import Cell
from longca.core.playoff.case import may_play
from longca.core.playoff.turns import MOST_PLAYERS, MOST_ROUNDS
from longca.core.schema import Frozen
from longca.core.units import parse_length


class PlayoffRules(Frozen):
    """The rules by which the players of a case are chosen and timed. After a change of how they are timed,
    cases are played off again."""

    mask: tuple[str, ...] = ()
    """only cases of these masks are played off; without any, all"""
    seqlen: tuple[Annotated[int, BeforeValidator(parse_length)], ...] = ()
    """only cases of these lengths; without any, all"""
    first: int = Field(default=3, ge=2, le=MOST_PLAYERS)
    """so many of the fastest play"""
    within: float = Field(default=0.05, ge=0, le=10)
    """and all whose time is longer than the shortest by at most this share; also all that it takes a play-off
    to tell from the first"""
    min_rounds: int = Field(default=10, ge=6, le=MOST_ROUNDS)
    """rounds at least; in a round each player makes one timed call"""
    max_rounds: int = Field(default=300, ge=6, le=MOST_ROUNDS)
    """rounds at most"""
    max_seconds: float = Field(default=10.0, gt=0, le=1e6)
    """no round begins after so long, but for the least number of them"""
    precision: float = Field(default=0.003, gt=0, le=1)
    """rounds end when the ratio of each player's time to the first's is known within this share …"""
    apart: float = Field(default=0.01, gt=0, le=10)
    """… or is above 1 by at least this share"""
    own_files: bool = False
    """kernels in files outside of the package play, too: in one process with the others, whose memory they
    can reach"""

    @field_validator("mask", "seqlen", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else (value,)

    def has_case(self, cell: Cell) -> bool:
        """True if the case of a cell is to be played off."""
        return (
            may_play(cell)
            and (not self.mask or cell.mask in self.mask)
            and (not self.seqlen or cell.seqlen in self.seqlen)
        )

    @property
    def of_timing(self) -> dict[str, Any]:
        """The rules that have a part in each player's number. The others say who plays."""
        return self.model_dump(exclude={"mask", "seqlen", "first", "within", "own_files"})

    @model_validator(mode="after")
    def _consistent(self) -> PlayoffRules:
        if self.max_rounds < self.min_rounds:
            raise ValueError(f"`max_rounds` is {self.max_rounds}, less than `min_rounds`, {self.min_rounds}")
        return self
