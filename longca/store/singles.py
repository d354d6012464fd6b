"""What each kernel reached alone: what context parallelism over it is held against."""

from collections.abc import Iterable

from longca.core.record import Record
from longca.store.hardware import Hardware
from longca.store.view import View


class Singles:
    """For each cell of context parallelism, the rate of its kernel on one device: in the same study, on the same model of device, over the
    very same mask, so over all its tokens, with the same heads and in the same direction. Of several records the last one counts.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        content = list(records)
        wanted = {record.cell.single_gpu_baseline().cell_id for record in content if record.cell.kind == "cp"}
        self._tflops: dict[tuple[str, str, str], float] = {}
        for record in sorted(content, key=lambda record: record.started_at):
            if record.cell_id in wanted and record.samples is not None:
                view = View(record, Hardware())
                rate = view.tflops(view.median_ms)
                if rate is not None:
                    self._tflops[record.study, view.device, record.cell_id] = rate

    def tflops(self, view: View) -> float | None:
        """None for what is no context parallelism, and where the kernel was not measured alone."""
        if view.cell.kind != "cp":
            return None
        return self._tflops.get((view.record.study, view.device, view.cell.single_gpu_baseline().cell_id))
