"""Verdicts by records of several models of GPUs: each model is judged by itself, the study's first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.claims.contract import OPEN, Claim, Verdict
from longca.claims.rows import ROLE, STUDY_GPU, prepared
from longca.ranking.sentences import protocols_text
from longca.ranking.table import has_rests
from longca.store.text import short_device

if TYPE_CHECKING:
    import pandas as pd


def judged(claims: Iterable[Claim], table: pd.DataFrame) -> list[Verdict]:
    """The verdict on each claim by the records of one model of GPU; those by others are in its `elsewhere`.

    The study's GPU decides, unless its records leave the claim open and those of another GPU do not; of
    several others, the one with the most cells behind its verdict. Each finding names its GPU.

    Args:
        table: as of `Claim.judge`, of any devices.
    """
    of_gpus = table.loc[table.device_type == "cuda"].groupby("device", sort=True)
    tables = {short_device(str(device)): prepared(rows) for device, rows in of_gpus}
    return [_judged(claim, tables) if tables else claim.judge(table) for claim in claims]


def _judged(claim: Claim, tables: Mapping[str, pd.DataFrame]) -> Verdict:
    verdicts = [_of_gpu(claim, rows, gpu) for gpu, rows in tables.items()]
    first, *others = sorted(
        verdicts,
        key=lambda verdict: (
            not verdict.cell_ids,
            verdict.status == OPEN,
            STUDY_GPU not in verdict.gpu,
            -len(verdict.cell_ids),
        ),
    )
    return replace(first, elsewhere=tuple(verdict for verdict in others if verdict.cell_ids))


def _of_gpu(claim: Claim, rows: pd.DataFrame, gpu: str) -> Verdict:
    verdict = claim.judge(rows)
    protocols = _protocols(rows, verdict.cell_ids)
    if protocols:
        verdict = replace(verdict, note=f"{verdict.note} {protocols}".strip())
    return (
        replace(verdict, gpu=gpu, finding=f"On {gpu}: {verdict.finding}")
        if verdict.cell_ids
        else replace(verdict, gpu=gpu)
    )


def _protocols(rows: pd.DataFrame, cell_ids: Collection[str]) -> str:
    """A sentence where some of these cells were timed with rests of the GPU and others without; else ""."""
    timed = rows[(rows[ROLE] == "own") & (rows.status == "ok") & rows.cell_id.isin(cell_ids)]
    text = protocols_text(int(has_rests(timed).sum()), len(timed), "cell")
    return f"{text}; the two are never compared." if text else ""
