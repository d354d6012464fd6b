"""What devices were seen to do at best: the matrix products and copies that were measured beside the attention."""

from collections.abc import Iterable

from longca.core.record import Record
from longca.store.hardware import Hardware
from longca.store.view import View

Place = tuple[str, str, str]  # study, device, dtype


class Ceilings:
    """The highest rates of the controls of each study, device and dtype, by median times; None where none was right.

    A copy only moves bytes, so that it holds for all dtypes.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._tflops: dict[Place, float] = {}
        self._gb_per_s: dict[Place, float] = {}
        for record in records:
            if record.work is None:
                continue
            view = View(record, Hardware())
            _raise(self._tflops, _place(view), view.tflops(view.median_ms))
            _raise(self._gb_per_s, _place(view, ""), view.gb_per_s)

    def tflops(self, view: View) -> float | None:
        """Of the matrix product that ran where this record was measured, in its dtype."""
        return self._tflops.get(_place(view))

    def gb_per_s(self, view: View) -> float | None:
        """Of the copy that ran where this record was measured."""
        return self._gb_per_s.get(_place(view, ""))


def _place(view: View, dtype: str | None = None) -> Place:
    return view.record.study, view.device, view.cell.dtype if dtype is None else dtype


def _raise(highest: dict[Place, float], place: Place, rate: float | None) -> None:
    if rate is not None:
        highest[place] = max(rate, highest.get(place, 0.0))
