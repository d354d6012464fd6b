"""The result of one cell as a measuring process sends it; the runner makes a record from it."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from longca.core import Frozen, UserError, problems_of
from longca.lab.bench.measure.failure import as_failed
from longca.lab.studies import Accuracy, Cell, Failed, Node, Software, mask_name
from longca.lab.studies.facts import RankEnvironment
from longca.lab.studies.outcome import Outcome
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Costs, MaskFacts, Memory, Notes, Others, Samples

PEER_LOST = "PeerLost"  # of `longca.cp.comm.process_group`, which needs torch
FAILURES = ("error", "oom")  # statuses after which a process may no longer be healthy


class Result(Frozen):
    """A part of `longca.lab.studies.record.Record`; the fields have the same meaning there."""

    outcome: Outcome
    samples: Samples | None = None
    accuracy: Accuracy | None = None
    memory: Memory | None = None
    mask: MaskFacts | None = None
    costs: Costs = {}
    notes: Notes = ()
    nodes: tuple[Node, ...] = ()
    software: Software | None = None
    ranks: tuple[RankEnvironment, ...] = ()
    listings: dict[str, Any] = {}
    """by digest, the listings that `ranks` name and that the group of workers has not sent before"""
    others: Others | None = None

    @classmethod
    def received(cls, content: Any) -> Self:
        """The result that a measuring process has sent; a failure where no record could hold it: a time of 0,
        half of a character …"""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            [problem], _ = problems_of(cls, error, 1)
            return cls(
                outcome=as_failed(
                    "InvalidResult", f"the measuring process sent a result that cannot be: {problem}"
                )
            )


class PlayerResult(Frozen):
    """The result of one player of a play-off, and the turns of its samples."""

    result: Result
    turns: Turns | None = None

    @classmethod
    def received(cls, content: Any) -> Self:
        """The result that a measuring process has sent; a failure where no record could hold it."""
        result = Result.received(content.get("result"))
        try:
            return cls(result=result, turns=content.get("turns"))
        except ValidationError:
            return cls(
                result=Result(
                    outcome=as_failed("InvalidResult", "the measuring process sent turns that cannot be")
                )
            )


class WrongRow(Frozen):
    """The first row of one tensor that is clearly wrong; where none is, the worst one."""

    tensor: str
    kind: str
    """"query" or "key": what a row of the tensor belongs to"""
    row: int
    head: int
    """query head of a query, KV head of a key"""
    error: Annotated[float, Field(allow_inf_nan=True)]
    """‖x − reference‖ / ‖reference‖ of this row; infinite where it is not finite"""
    num_wrong: int
    """rows of the checked part that are clearly wrong, over heads"""
    num_checked: int

    def __str__(self) -> str:
        where = f"{self.kind} {self.row} of {'KV ' if self.kind == 'key' else ''}head {self.head}"
        off = f"off by {100 * self.error:.3g} % of its size" if math.isfinite(self.error) else "not finite"
        if not self.num_wrong:
            return f"no row is far off; the worst is {where}, {off}"
        return (
            f"first wrong row: {where}, {off}; {self.num_wrong:,} of {self.num_checked:,} checked rows "
            f"are wrong"
        )


def read_digests(path: Path) -> dict[str, str]:
    """Name of a mask (`longca.masks.build.mask_name`) → digest; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        return {row["key"]: row["digest"] for row in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Cannot use '{path}'",
            why=f"it is damaged ({type(error).__name__})",
            todo="Remove it: it is made again",
        ) from error


def check_mask(cell: Cell, result: Result, digests: dict[str, str]) -> Result:
    """The unchanged result, or a failure if it was measured on another mask than the study expects."""
    expected = digests.get(mask_name(cell))
    if expected is None or result.mask is None or result.mask.digest == expected:
        return result
    message = (
        f"the measuring process built mask {result.mask.digest}, masks.json has {expected}: "
        "the two ran different code or data; remove masks.json or have the workflow make it anew, then "
        "measure with `--retry error`"
    )
    return Result(
        outcome=Failed(type="MaskMismatch", message=message),
        mask=result.mask,
        nodes=result.nodes,
        software=result.software,
        ranks=result.ranks,
        listings=result.listings,
        notes=result.notes,
    )


def culprit(results: dict[int, Result], failed: list[int]) -> int:
    """The first failed rank whose failure is not only that it lost another rank."""
    blamed = [rank for rank in failed if getattr(results[rank].outcome, "type", "") != PEER_LOST]
    return (blamed or failed)[0]
