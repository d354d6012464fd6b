"""The result: what one measuring process says about one cell. The runner makes a record of it."""

from longca.core.record import Accuracy, MaskFacts, Memory, Node, Outcome, Samples, Software
from longca.core.schema import Frozen

FAILURES = ("error", "oom")  # statuses that may leave a process unfit


class Result(Frozen):
    """A part of `longca.core.record.Record`; the fields mean what they mean there."""

    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    costs: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    software: Software | None = None
