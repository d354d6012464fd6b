"""Digests of a study's masks: what a worker built is what the workflow's table of masks has."""

import json
from pathlib import Path

from longca.core.errors import UserError
from longca.lab.bench.measure.result import Result
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Failed
from longca.masks.build import mask_name


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
