"""The result of one cell as a measuring process sends it; the runner makes a record from it."""

from longca.core.record import Accuracy, MaskFacts, Memory, Node, Outcome, Samples, Software
from longca.core.schema import Frozen

FAILURES = ("error", "oom")  # statuses after which a process may no longer be healthy


class Result(Frozen):
    """A part of `longca.core.record.Record`; the fields have the same meaning there."""

    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    costs: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    software: Software | None = None
