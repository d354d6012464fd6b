"""The rules of play-offs, as a study has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from longca.core import Frozen, parse_length
from longca.lab.studies.cell import Cell
from longca.lab.studies.playoff.case import may_play
from longca.lab.studies.playoff.turns import MOST_PLAYERS, MOST_ROUNDS


class PlayoffRules(Frozen):
    """The rules that select and time the players of a case. After a change of the timing rules, play-offs are
    repeated."""

    mask: tuple[str, ...] = ()
    """only cases of these masks have play-offs; all if empty"""
    seqlen: tuple[Annotated[int, BeforeValidator(parse_length)], ...] = ()
    """only cases of these lengths; all if empty"""
    first: int = Field(default=3, ge=2, le=MOST_PLAYERS)
    """number of players: the fastest methods"""
    within: float = Field(default=0.05, ge=0, le=10)
    """further players: all methods whose time exceeds the shortest by at most this share, and all that tie
    with the first"""
    min_rounds: int = Field(default=10, ge=6, le=MOST_ROUNDS)
    """minimum number of rounds; each player makes one timed call in a round"""
    max_rounds: int = Field(default=300, ge=6, le=MOST_ROUNDS)
    """maximum number of rounds"""
    max_seconds: float = Field(default=10.0, gt=0, le=1e6)
    """no round begins after this time, except for the minimum number"""
    precision: float = Field(default=0.003, gt=0, le=1)
    """rounds end when the ratio of each player's time to the first's has an interval within this share …"""
    apart: float = Field(default=0.01, gt=0, le=10)
    """… or exceeds 1 by at least this share"""
    own_files: bool = False
    """kernels from external files take part, too: in one process with the others, whose memory they can
    access"""

    @field_validator("mask", "seqlen", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else (value,)

    def has_case(self, cell: Cell) -> bool:
        """True if the case of a cell has a play-off."""
        return (
            may_play(cell)
            and (not self.mask or cell.mask in self.mask)
            and (not self.seqlen or cell.seqlen in self.seqlen)
        )

    @property
    def of_timing(self) -> dict[str, Any]:
        """The rules that affect the timing of players. The others select the players."""
        return self.model_dump(exclude={"mask", "seqlen", "first", "within", "own_files"})

    @model_validator(mode="after")
    def _consistent(self) -> PlayoffRules:
        if self.max_rounds < self.min_rounds:
            raise ValueError(f"`max_rounds` is {self.max_rounds}, less than `min_rounds`, {self.min_rounds}")
        return self
