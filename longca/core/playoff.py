"""The play-off: the fastest methods of a case, timed again in turn. Its rules, its case, and the order of its calls.

A case is one problem on one model of device. All its cells ask the same of different kernels.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from longca.core.cell import AS_RELEASED, Cell
from longca.core.schema import Count, Frozen
from longca.core.units import parse_length

MOST_PLAYERS, MOST_ROUNDS = 1_000, 1_000_000
Ending = Literal["decided", "rounds", "time"]


class PlayoffRules(Frozen):
    """The rules by which the players of a case are chosen and timed. After a change of how they are timed, cases are played off again."""

    mask: tuple[str, ...] = ()
    """only cases of these masks are played off; without any, all"""
    seqlen: tuple[Annotated[int, BeforeValidator(parse_length)], ...] = ()
    """only cases of these lengths; without any, all"""
    first: int = Field(default=3, ge=2, le=MOST_PLAYERS)
    """so many of the fastest play"""
    within: float = Field(default=0.05, ge=0, le=10)
    """and all whose time is longer than the shortest by at most this share; also all that it takes a play-off to tell from the first"""
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
    """kernels in files outside of the package play, too: in one process with the others, whose memory they can reach"""

    @field_validator("mask", "seqlen", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else (value,)

    def has_case(self, cell: Cell) -> bool:
        """True if the case of a cell is to be played off."""
        return may_play(cell) and (not self.mask or cell.mask in self.mask) and (not self.seqlen or cell.seqlen in self.seqlen)

    @property
    def of_timing(self) -> dict[str, Any]:
        """The rules that have a part in each player's number. The others say who plays."""
        return self.model_dump(exclude={"mask", "seqlen", "first", "within", "own_files"})

    @model_validator(mode="after")
    def _consistent(self) -> PlayoffRules:
        if self.max_rounds < self.min_rounds:
            raise ValueError(f"`max_rounds` is {self.max_rounds}, less than `min_rounds`, {self.min_rounds}")
        return self


class Turns(Frozen):
    """The order of a player's timed calls among those of all players."""

    num_players: int = Field(ge=2, le=MOST_PLAYERS)
    """that began; some may have left"""
    numbers: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_ROUNDS)]
    """of each sample: round · num_players + place in the round. All rounds of a play-off are numbered in the order played"""
    ending: Ending
    """why the rounds ended: the order was decided, their number, or time"""

    @model_validator(mode="after")
    def _ascending(self) -> Turns:
        if any(before >= after for before, after in zip(self.numbers, self.numbers[1:], strict=False)):
            raise ValueError("the turns of a player must ascend")
        return self

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each sample. Samples of two players from one round are a pair."""
        return tuple(number // self.num_players for number in self.numbers)


def case_fields(cell: Cell) -> dict[str, Any]:
    """All that a kernel cell asks for but its kernel: equal for the cells of one case."""
    return {name: value for name, value in cell.model_dump().items() if name not in ("kernel", "kind")}


def case_id(cell: Cell, device: str) -> str:
    """16 hexadecimal digits that name the case of a kernel cell on a model of device."""
    canonical = json.dumps({**case_fields(cell), "device": device}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def playoff_id(case: str, run_id: str) -> str:
    """16 hexadecimal digits that name the play-off of a case in a run."""
    return hashlib.sha256(f"{case} {run_id}".encode()).hexdigest()[:16]


def may_play(cell: Cell) -> bool:
    """True for cells that can be played off.

    They are kernels whose calls are timed alone. Kernels that repeat a defect are left out. Strategies of context parallelism are not
    played off yet.
    """
    return cell.kind == "kernel" and not cell.sustained and not cell.kernel.startswith(AS_RELEASED)
