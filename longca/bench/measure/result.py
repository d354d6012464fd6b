"""The result of one cell as a measuring process sends it; the runner makes a record from it."""

import math

from longca.core.record import Accuracy, MaskFacts, Memory, Node, Others, Outcome, Samples, Software
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
    others: Others | None = None


class WrongRow(Frozen):
    """The first row of one tensor that is clearly wrong; where none is, the worst one."""

    tensor: str
    kind: str
    """"query" or "key": what a row of the tensor belongs to"""
    row: int
    head: int
    """query head of a query, KV head of a key"""
    error: float
    """‖x − reference‖ / ‖reference‖ of this row; infinite where it is not finite"""
    num_wrong: int
    """rows of the checked part that are clearly wrong, over heads"""
    num_checked: int

    def __str__(self) -> str:
        where = f"{self.kind} {self.row} of {'KV ' if self.kind == 'key' else ''}head {self.head}"
        off = f"off by {100 * self.error:.3g} % of its size" if math.isfinite(self.error) else "not finite"
        if not self.num_wrong:
            return f"no row is far off; the worst is {where}, {off}"
        return f"first wrong row: {where}, {off}; {self.num_wrong:,} of {self.num_checked:,} checked rows are wrong"
