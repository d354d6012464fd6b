"""Measured cells beside a prediction: the record of the nearest length that has the same way, mask, heads,
directions and GPUs, and how its rate compares with the prediction for that very cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from longca.core import Registry, UserError, check_installed, format_length
from longca.cp.partition import check_grid
from longca.lab.advice.option import Candidate, candidate_of, predict
from longca.lab.store.text import number
from longca.lab.studies import SETTING_AXES, setting_distance
from longca.masks import build_mask
from longca.predict import ran_earlier

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.advice.question import AdviceQuestion

COLUMNS = (
    "cell_id", "study", "kind", "method", "kernel", "is_control", "world", "mask", "mask_params", "corpus",
    "seqlen", "new_tokens", "num_q_heads", "num_kv_heads", "head_dim", "dtype", "direction", "seed",
    "input_values", "sustained", "deterministic", "status", "time_ms_median", "tflops_per_device", "device",
    "git_sha", "duty",
)  # fmt: skip
"""of the derived table"""
CELL = ("seqlen", "seed", "study", "rests")  # what the directions of one call have in common


@dataclass(frozen=True)
class MeasuredBeside:
    """One way in one measured setting, all directions of the question together."""

    method: str
    seqlen: int
    gpus: int
    seed: int
    study: str
    rests: bool
    """the GPU rested between calls"""
    ms: float
    tflops_per_gpu: float
    predicted_ms: float
    """of that very cell, by the models of the answer"""
    cell_ids: tuple[str, ...]
    """one for each direction"""
    is_same_length: bool
    """it has the length that was asked for"""

    @property
    def of_prediction(self) -> float:
        """The measured rate over that of the prediction."""
        return self.predicted_ms / self.ms

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPUs" if self.gpus > 1 else "one GPU"
        rests = ", calls with rests" if self.rests else ""
        nearest = "" if self.is_same_length else ", the nearest length"
        return (
            f"{self.method} measured: {number(self.tflops_per_gpu)} TFLOP/s at {format_length(self.seqlen)} "
            f"on {gpus}{nearest} ({self.study}{rests}), {number(self.of_prediction)} × the prediction for "
            f"that setting"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"of_prediction": self.of_prediction, "text": str(self)}


def measured_beside(question: AdviceQuestion, candidates: Iterable[Candidate]) -> tuple[MeasuredBeside, ...]:
    """For each candidate that committed records have, the measured cell nearest to a question. None without
    pandas, which reads records, and of masks that no study can ask for."""
    from longca.lab.store.load import committed, load_columns

    try:
        check_installed("records", "pandas", "pyarrow")
    except UserError:
        return ()
    mask = question.mask
    is_cut = mask.seqlen_q != mask.params.get("new_tokens", mask.seqlen_k)
    is_own = mask.documents is not None and mask.origin is None
    files = committed()
    if mask.name not in Registry("mask").names() or is_cut or is_own or not files:
        return ()
    table = load_columns(files, COLUMNS)[0]
    found = (_nearest(_of_way(table, question, each), question, each) for each in candidates)
    return tuple(beside for beside in found if beside is not None)


def _nearest(rows: pd.DataFrame, question: AdviceQuestion, candidate: Candidate) -> MeasuredBeside | None:
    groups = [of_cell.drop_duplicates("direction") for _, of_cell in rows.groupby([*CELL], sort=False)]
    complete = [group for group in groups if len(group) == len(question.directions)]
    if not complete:
        return None
    asked = _setting(question)

    def order(group: pd.DataFrame) -> tuple[Any, ...]:
        row = group.iloc[0]
        setting = asked | {"seqlen": int(row.seqlen), "new_tokens": int(row.new_tokens)}
        far = setting_distance(setting, asked)
        return far, bool(row.rests) != question.fitted.rests, int(row.seed), row.study

    chosen = min(complete, key=order)
    first = chosen.iloc[0]
    try:
        predicted_s = _predicted_s(question, candidate, int(first.seqlen), int(first.seed))
    except (UserError, ValueError):  # a plan that today's code cannot make again
        return None
    times = chosen.time_ms_median.astype(float)
    total = float(times.sum())
    return MeasuredBeside(
        candidate.title,
        int(first.seqlen),
        question.gpus,
        int(first.seed),
        str(first.study),
        bool(first.rests),
        total,
        float((chosen.tflops_per_device.astype(float) * times).sum()) / total,
        predicted_s * 1e3,
        tuple(chosen.cell_id),
        int(first.seqlen) == question.mask.seqlen_k,
    )


def _setting(question: AdviceQuestion) -> dict[str, Any]:
    call = question.call
    values = (
        question.mask.seqlen_k, question.mask.seqlen_q, call.num_q_heads, call.num_kv_heads, call.head_dim,
        call.dtype, question.directions, question.gpus,
    )  # fmt: skip
    return dict(zip(SETTING_AXES, values, strict=True))


def _of_way(table: pd.DataFrame, question: AdviceQuestion, candidate: Candidate) -> pd.DataFrame:
    """The rows of a way at any length, with `rests`."""
    from longca.lab.store.table import is_ranked

    asked = _setting(question)
    rows = table.loc[is_ranked(table) & (table.status == "ok") & (table.method == candidate.title)]
    wanted = {axis: asked[axis] for axis in SETTING_AXES if axis not in ("seqlen", "new_tokens", "direction")}
    wanted |= {"kind": "cp" if candidate.strategy else "kernel", "mask": question.mask.name}
    wanted |= {"corpus": question.corpus or ""}
    for column, value in wanted.items():
        rows = rows.loc[rows[column] == value]
    rows = rows.loc[rows.device.isin(question.gpu.gpu_names) & rows.direction.isin(question.directions)]
    rows = rows.loc[rows.new_tokens == (question.mask.seqlen_q if question.has_context else rows.seqlen)]
    keep = [
        _has(text, question.mask_params) and not ran_earlier(str(kernel), str(sha))
        for text, kernel, sha in zip(rows.mask_params, rows.kernel, rows.git_sha, strict=True)
    ]
    rows = rows.loc[keep]
    return rows.assign(rests=rows.duty.astype("Float64").fillna(0) > 0)


def _has(recorded: str, params: Mapping[str, Any]) -> bool:
    """True if a recorded text, "window=512, …", has these parameters; what is false may be left out."""
    known = dict(pair.split("=", 1) for pair in recorded.split(", ") if pair)
    return all(known.get(key, "False") == str(value) for key, value in params.items())


def _predicted_s(question: AdviceQuestion, candidate: Candidate, seqlen: int, seed: int) -> float:
    """The prediction of one measured cell in seconds. Raises UserError or ValueError: today's code cannot
    make its mask or its plan."""
    mask = question.mask
    if seqlen != mask.seqlen_k or (mask.origin is not None and mask.origin.seed != seed):
        mask = build_mask(
            mask.name,
            seqlen=seqlen,
            corpus=question.corpus,
            seed=seed,
            num_kv_heads=question.call.num_kv_heads,
            new_tokens=mask.seqlen_q if question.has_context else None,
            **dict[str, Any](question.mask_params),
        )
        check_grid(mask, question.gpus)
    there = replace(question, mask=mask, seeds=(seed,) if mask.origin is not None else ())
    if candidate.strategy is None:
        return predict(candidate, there).seconds
    way = candidate_of(there, candidate.strategy, candidate.kernel, {}, dict(candidate.params))
    if isinstance(way, str):
        raise ValueError(way)
    return predict(way, there).seconds
