"""A pool that measures nothing."""

from collections.abc import Callable
from pathlib import Path

from longca.lab.bench.measure.result import Result
from longca.lab.bench.workers.pool import Device
from longca.lab.studies.cell import Cell


class FakePool:
    """Answers at once; `outcome` says what."""

    device = Device(type="cpu", name="fake", num_devices=1)
    outcome: Callable[[Cell], Result]
    measured: list[Cell]

    def __init__(
        self, device: str, logs: Path, stopped: Callable[[], bool], *_: object, **others: object
    ) -> None:
        FakePool.measured = []

    def __enter__(self) -> "FakePool":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def measure(self, cell: Cell, _: object) -> Result:
        FakePool.measured.append(cell)
        return FakePool.outcome(cell)
