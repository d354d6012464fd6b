"""Calls that are timed and judged: their inputs change before each call, and the judged parts are copied
right after the timed interval.

All of this happens outside of the samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from longca.lab.bench.check.oracle import PartResult, finite
from longca.lab.bench.check.plan import NUM_JUDGED, TimedResult

Tensors = dict[str, torch.Tensor]
DRAWN_BITS = 48  # of the number that chooses rows after a call


@dataclass(frozen=True)
class _Copied:
    """The copies of a call: its number, the number drawn after it, its parts, and what is finite."""

    call: int
    drawn: int
    parts: list[PartResult]
    are_finite: Tensors


class TimedCalls:
    """One call, made again and again.

    Args:
        call: the timed call.
        tensors: its result's tensors in T × heads (× D), by name.
        raw: its result's tensors as they are: the memory that later calls may find again.
        change: gives the inputs the content that they have in the call of a number.
        cut: copies what is judged of the call of a number; it is given a second number, drawn after the
            call, which chooses rows that no kernel can know before.
        kept: tensors that the next call reads: no memory of theirs is overwritten.
        chance: selects the calls that are judged; several ranks must select the same ones.
    """

    def __init__(
        self,
        call: Callable[[], object],
        *,
        tensors: Callable[[Any], Tensors],
        raw: Callable[[Any], Iterable[torch.Tensor | None]],
        change: Callable[[int], object],
        cut: Callable[[int, int, Tensors], list[PartResult]],
        kept: Iterable[torch.Tensor],
        chance: random.Random | None = None,
    ) -> None:
        self._call = call
        self._tensors = tensors
        self._raw = raw
        self._change = change
        self._cut = cut
        self.kept = {x.untyped_storage().data_ptr() for x in kept}
        """addresses of memory that must not be overwritten"""
        self._result: object = None
        self._chance = chance or random.SystemRandom()

        self._chosen: list[_Copied] = []
        self._scaled: list[_Copied] = []
        self._num_timed = 0
        self._num_scaled = 0
        self.number = 0
        """of the last call"""

    def __call__(self) -> None:
        self._result = self._call()

    def before(self) -> None:
        """Give the inputs new content."""
        self.number += 1
        self._change(self.number)

    def after(self, *, timed: bool, poison: bool = True) -> None:
        """Keep what will be judged, if this call is among those that chance selects, and forget the result.

        Args:
            timed: the call was a sample.
            poison: overwrite the result, so that memory which a later call finds does not hold it.
        """
        if timed:
            self._keep()
        if poison:
            overwrite(self._raw(self._result), self.kept)
        self._result = None

    def keep_scaled(self, factor: float) -> None:
        """Keep what will be judged of a call with scaled inputs, as if they were not: its result, but for the
        LSE, is `factor` times as large. Of many such calls two are kept."""
        self._num_scaled += 1
        # the first, and by chance one of all others: there are many where the machine is busy
        if self._num_scaled > 1 and self._slot(self._num_scaled - 1, 1) is None:
            return
        tensors = self._tensors(self._result)
        drawn = self._chance.getrandbits(DRAWN_BITS)
        parts = self._cut(self.number, drawn, tensors)
        for part in parts:
            part |= {name: x / factor for name, x in part.items() if name != "lse"}
        self._scaled = [*self._scaled[:1], _Copied(self.number, drawn, parts, finite(tensors))]

    def tensors(self) -> Tensors:
        """The tensors of the last call's result, by name."""
        return self._tensors(self._result)

    def plain(self) -> object:
        """A call without checks."""
        return self._call()

    def results(self) -> list[TimedResult]:
        """The copied parts of the selected calls, and of those with scaled results."""
        return [
            TimedResult(
                copied.call,
                copied.parts,
                {name: bool(flag) for name, flag in copied.are_finite.items()},
                is_sample,
                copied.drawn,
            )
            for calls, is_sample in ((self._chosen, True), (self._scaled, False))
            for copied in calls
        ]

    def choose(self) -> int | None:
        """The slot of this call in a reservoir sample, which keeps each call with equal probability; None if
        it is not kept."""
        self._num_timed += 1
        return self._slot(self._num_timed, NUM_JUDGED)

    def _slot(self, number: int, size: int) -> int | None:
        """The slot, of `size`, of the item with this number, counted from 1, in a reservoir sample."""
        if number <= size:
            return number - 1
        index = self._chance.randrange(number)
        return index if index < size else None

    def _keep(self) -> None:
        index = self.choose()
        if index is None:
            return
        require_plain(self._raw(self._result))
        tensors = self._tensors(self._result)
        # first of all: work that goes on after the call must not get done
        drawn = self._chance.getrandbits(DRAWN_BITS)
        parts = self._cut(self.number, drawn, tensors)
        self._chosen[index : index + 1] = [_Copied(self.number, drawn, parts, finite(tensors))]


class LateResult(TypeError):
    """A result may be computed when it is read."""


def require_plain(tensors: Iterable[torch.Tensor | None]) -> None:
    """Raise LateResult for a tensor of a sub-class: it may compute when it is read, which is after the timed
    interval."""
    for x in tensors:
        if x is not None and type(x) not in (torch.Tensor, torch.nn.Parameter):
            raise LateResult(f"a result is a {type(x).__name__}; it must be a plain torch.Tensor")


def overwrite(tensors: Iterable[torch.Tensor | None], kept: set[int]) -> None:
    """Fill tensors with NaN, but for those whose memory is among `kept` (addresses of storages)."""
    for x in tensors:
        if x is None or not x.is_floating_point() or x.untyped_storage().data_ptr() in kept:
            continue
        try:
            with torch.no_grad():
                x.fill_(float("nan"))
        except RuntimeError:
            # one that cannot be written: made in inference mode, or with elements that share memory
            continue
