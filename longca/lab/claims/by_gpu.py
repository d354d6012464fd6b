"""Judgements by records of several models of GPUs. With repaired code each model is judged by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.lab.claims.as_study import without_compat
from longca.lab.claims.contract import Claim, Verdict, Verdicts
from longca.lab.claims.parts import OPEN
from longca.lab.claims.rows import ROLE, STUDY_GPU, prepared
from longca.lab.ranking.sentences import protocols_text
from longca.lab.ranking.table import has_rests
from longca.lab.store.text import distinct_names

if TYPE_CHECKING:
    import pandas as pd


def judged(claims: Iterable[Claim], table: pd.DataFrame) -> list[Verdicts]:
    """Both verdicts on each claim. The first, as the study has it, is by the study's GPU, but for claims
    about what depends on no model.

    The second verdict exists once for each model; those of other models are in `elsewhere`. The study's GPU
    decides, unless its records leave the claim open and those of another GPU do not. If several other GPUs
    decide it, the one with the most cells behind its verdict counts. Each finding names its GPU.

    Args:
        table: as of `Claim.judge`, of any devices.
    """
    of_gpus = table.loc[table.device_type == "cuda"].groupby("device", sort=True)
    names = distinct_names(str(device) for device in of_gpus.groups)
    tables = {names[str(device)]: prepared(rows) for device, rows in of_gpus}
    whole = prepared(table)
    return [_verdicts(claim, whole, tables) for claim in claims]


def _verdicts(claim: Claim, whole: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> Verdicts:
    is_of_study = type(claim).judge_as_study is not Claim.judge_as_study
    shown = {gpu: without_compat(rows) if is_of_study else rows for gpu, rows in tables.items()}
    repaired = _repaired(claim, shown) if tables else claim.judge(whole)
    return Verdicts(_noted(claim.judge_as_study(whole), whole) if is_of_study else repaired, repaired)


def _repaired(claim: Claim, tables: Mapping[str, pd.DataFrame]) -> Verdict:
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
    verdict = _noted(claim.judge(rows), rows)
    return (
        replace(verdict, gpu=gpu, finding=f"On {gpu}: {verdict.finding}")
        if verdict.cell_ids
        else replace(verdict, gpu=gpu)
    )


def _noted(verdict: Verdict, rows: pd.DataFrame) -> Verdict:
    """The verdict with a note on the protocols of its cells."""
    protocols = _protocols(rows, verdict.cell_ids)
    return replace(verdict, note=f"{verdict.note} {protocols}".strip()) if protocols else verdict


def _protocols(rows: pd.DataFrame, cell_ids: Collection[str]) -> str:
    """A sentence where some of these cells were timed with rests of the GPU and others without; else ""."""
    timed = rows[(rows[ROLE] == "own") & (rows.status == "ok") & rows.cell_id.isin(cell_ids)]
    text = protocols_text(int(has_rests(timed).sum()), len(timed), "cell")
    return f"{text}; the two are never compared." if text else ""
