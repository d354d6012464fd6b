"""The verdict on a cell as the judge's process sends it to the runner, and its part in the cell's result."""

from __future__ import annotations

from longca.core import Frozen
from longca.lab.bench.measure.failure import as_failed
from longca.lab.bench.measure.result import Result
from longca.lab.studies import Accuracy
from longca.lab.studies.outcome import Outcome
from longca.lab.studies.record import MaskFacts

JUDGED = ("ok", "incorrect")  # outcomes that only the judge gives


class Judgement(Frozen):
    """The judge's findings about a cell."""

    outcome: Outcome | None
    """of what was judged last; None if nothing was"""
    accuracy: Accuracy | None = None
    mask: MaskFacts | None = None
    is_complete: bool = False
    """timed calls were judged, too"""


def with_judgement(result: Result, verdict: Judgement) -> Result:
    """The result of a cell of attention as the judge sees it. The measuring process's own statement of
    correctness is ignored."""
    facts = {"accuracy": verdict.accuracy, "mask": verdict.mask or result.mask}
    outcome = verdict.outcome
    if outcome is not None and outcome.status != "ok":
        return result.model_copy(update={**facts, "outcome": outcome, "samples": None, "memory": None})
    if result.outcome.status not in JUDGED:
        return result.model_copy(update=facts)
    if result.outcome.status == "ok" and outcome is not None and verdict.is_complete:
        return result.model_copy(update=facts)
    reason = (
        "the judge has seen no wrong result"
        if result.outcome.status == "incorrect"
        else "its results did not reach the judge"
    )
    return result.model_copy(
        update={**facts, "outcome": as_failed("NotJudged", reason), "samples": None, "memory": None}
    )
