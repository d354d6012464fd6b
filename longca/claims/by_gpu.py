"""The judgement of a claim by records of several models of GPUs: each model is judged by itself, the study's first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.claims.contract import OPEN, Claim, Verdict

if TYPE_CHECKING:
    import pandas as pd

STUDY_GPU = "H100"


def judged(claim: Claim, table: pd.DataFrame) -> Verdict:
    """The verdict by the records of one model of GPU, with those by other models' records in `elsewhere`.

    The study's GPU decides, unless its records leave the claim open and those of another GPU do not; of several others, the one with the
    most cells behind its verdict. Each finding names its GPU.

    Args:
        table: as of `Claim.judge`, of any devices.
    """
    verdicts = [_of_gpu(claim, rows, gpu) for gpu, rows in _by_gpu(table)]
    if not verdicts:
        return claim.judge(table)
    first, *others = sorted(verdicts, key=lambda verdict: (not verdict.cell_ids, verdict.status == OPEN, STUDY_GPU not in verdict.gpu,
                                                           -len(verdict.cell_ids)))
    return replace(first, elsewhere=tuple(verdict for verdict in others if verdict.cell_ids))


def short_name(device: str) -> str:
    """"H100" for "NVIDIA H100 80GB HBM3"; other names keep their memory, which may tell two models apart."""
    return re.sub(r" \d+GB HBM\d\w*$", "", device.removeprefix("NVIDIA "))


def _by_gpu(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(short name, rows) of each model of GPU, in the order of their names."""
    of_gpus = table.loc[table.device_type == "cuda"]
    return [(short_name(str(device)), rows) for device, rows in of_gpus.groupby("device", sort=True)]


def _of_gpu(claim: Claim, rows: pd.DataFrame, gpu: str) -> Verdict:
    verdict = claim.judge(rows)
    return replace(verdict, gpu=gpu, finding=f"On {gpu}: {verdict.finding}") if verdict.cell_ids else replace(verdict, gpu=gpu)
