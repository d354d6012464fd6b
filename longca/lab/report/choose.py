"""The choice of a method for one call, from records: the rows that answer the question, or else the nearest
ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from longca.core import Registry, format_length
from longca.lab.ranking import HALF
from longca.lab.ranking.sentences import field_text
from longca.lab.ranking.table import COLUMNS as RANKING
from longca.lab.ranking.table import resolutions_of
from longca.lab.report.content.earlier import is_earlier
from longca.lab.report.decide.heat_map import HeatMap, Placed
from longca.lab.report.decide.totals import TOTAL, WORDS, total_views
from longca.lab.report.decide.views import decision
from longca.lab.report.look.labels import join
from longca.lab.report.series import DIRECTIONS, RESOLUTIONS, labelled
from longca.lab.store.table import is_ranked
from longca.lab.studies import SETTING_AXES as AXES
from longca.lab.studies import setting_distance, usual_corpus

if TYPE_CHECKING:
    import pandas as pd

_OWN = (
    "cell_id",
    "study",
    "kind",
    "method",
    "kernel",
    "is_control",
    "mask",
    "mask_family",
    "mask_params",
    "mask_density_asked",
    "corpus",
    *AXES,
    "seed",
    "input_values",
    "sustained",
    "status",
    "reason",
    "num_samples",
    "time_ms_median",
    "density",
    "tflops_per_device",
    "tflops_per_device_low",
    "tflops_per_device_high",
    "device",
    "git_sha",
    "deterministic",
)
COLUMNS = tuple(dict.fromkeys((*_OWN, *RANKING)))
"""required columns of the derived table"""
SAME_BITS = "same bits in every run"


@dataclass(frozen=True)
class CallQuestion:
    """The attention call of the question."""

    mask: str
    params: dict[str, Any]
    """required parameters of the mask"""
    usual_params: dict[str, Any]
    """default parameters, preferred if measured"""
    seqlen: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    direction: str
    """`fwd`, `bwd`, or `TOTAL` for the sum of both"""
    world: int = 1
    """ranks; 1 is one device without context parallelism"""
    corpus: str | None = None
    """of document lengths; None for the usual one if it was measured, else any"""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """by the name of the command's option or of the mask's parameter, the value of what was left out"""
    deterministic: bool = False
    """only methods whose gradients were found to have the same bits in every run"""
    queries: int | None = None
    """the last tokens of the sequence; None if all tokens are queries"""

    @property
    def new_tokens(self) -> int:
        """As the column of that name: `seqlen` if all tokens are queries."""
        return self.seqlen if self.queries is None else self.queries

    @property
    def kind(self) -> str:
        return "kernel" if self.world == 1 else "cp"

    @property
    def mask_text(self) -> str:
        """The mask with the given parameters."""
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.mask} ({params})" if params else self.mask

    def __str__(self) -> str:
        documents = f"documents of {self.corpus}" if self.corpus else ""
        return join(
            self.mask_text, documents, _setting(_setting_of(self)), SAME_BITS if self.deterministic else ""
        )


@dataclass(frozen=True)
class CallRanking:
    """All methods of one case, fastest first, and those without a number."""

    finding: str
    setting: str
    methods: list[tuple[str, Placed]]
    missing: list[tuple[str, str, str]]
    """(method, status, reason)"""
    earlier: list[str]
    """methods whose records are of earlier versions of this project's kernels"""
    devices: tuple[str, ...]
    studies: tuple[str, ...]
    rests: bool = False
    """its methods compete by measurements with rests of the GPU"""
    direction: str = "fwd"
    mask: str = ""
    params: str = ""
    """of the mask, as recorded: "window=1024" """
    corpora: tuple[str, ...] = ()
    """of document lengths; () for masks without documents"""
    seeds: tuple[int, ...] = ()
    """of the masks that were measured"""
    deterministic: bool = False
    """the gradients of its methods were found to have the same bits in every run"""
    is_drawn: bool = False
    """the seed changes the mask"""
    shared_draws: Mapping[int, bool] = field(default_factory=dict)
    """seed → whether the first is the fastest there, of the draws that it and another method have"""
    over_draws: str = ""
    """the command that predicts over draws; "" for a mask that is not drawn"""

    @property
    def place(self) -> str:
        """The GPU and the direction."""
        return f"{' and '.join(self.devices)}, {WORDS[self.direction]}"

    @property
    def asks_draws(self) -> bool:
        """True if records have too few draws to tell the fastest, and there is a command that predicts."""
        return bool(self.over_draws) and len(self.shared_draws) < 2

    @property
    def draws_text(self) -> str:
        """Over how many draws it was taken, and in how many of them the first is the fastest; "" for a mask
        that is not drawn."""
        if not self.is_drawn:
            return ""
        num_draws = len(self.seeds)
        if num_draws < 2:
            return f"This is one draw of the mask (seed {self.seeds[0]}): another may rank otherwise."
        shared = len(self.shared_draws)
        won = f"{self.methods[0][0]} is the fastest in {sum(self.shared_draws.values())}"
        of = "of them" if shared == num_draws else f"of {shared}, since no more have it beside another method"
        return f"Ranked over {num_draws} draws of the mask: {won} {of}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        methods = [
            {"method": method, "place": placed.place, "tied": placed.tied, "time_ms": placed.ms,
             "tflops_per_device": placed.tflops, "tflops_per_device_low": placed.low,
             "tflops_per_device_high": placed.high, "share_of_best": placed.share, "num_cells": placed.num_cells,  # noqa: E501
             "num_samples": placed.num_samples, "cell_id": placed.cell_id}
            for method, placed in self.methods
        ]  # fmt: skip
        missing = [
            {"method": method, "status": status, "reason": reason} for method, status, reason in self.missing
        ]
        return {"finding": self.finding, "setting": self.setting, "mask": self.mask, "mask_params": self.params,  # noqa: E501
                "corpora": list(self.corpora), "seeds": list(self.seeds), "direction": self.direction,
                "draws": self.draws_text, "draws_shared": len(self.shared_draws),
                "draws_first_won": sum(self.shared_draws.values()), "over_draws": self.over_draws,
                "deterministic": self.deterministic, "rests": self.rests,
                "devices": list(self.devices), "studies": list(self.studies),
                "earlier": self.earlier, "num_cells": self.num_cells, "num_samples": self.num_samples,
                "methods": methods, "missing": missing}  # fmt: skip

    @property
    def num_cells(self) -> int:
        return sum(placed.num_cells for _, placed in self.methods)

    @property
    def num_samples(self) -> int:
        return sum(placed.num_samples for _, placed in self.methods)


def rankings(
    table: pd.DataFrame, question: CallQuestion, repeats_of: pd.DataFrame | None = None
) -> list[CallRanking]:
    """The rankings that answer the question; several if unspecified corpora, devices or parameters differ;
    none without records.

    Args:
        repeats_of: rows whose repeats tell what differs, as those of a page are all of its study; those of
            the table if not given.
    """
    asked = _of_mask(table, question)
    for axis in AXES:
        wanted = list(DIRECTIONS) if getattr(question, axis) == TOTAL else [getattr(question, axis)]
        asked = asked.loc[asked[axis].isin(wanted)]
    usual = asked.corpus == usual_corpus(question.seqlen)
    if question.corpus is not None or usual.any():
        asked = asked.loc[usual if question.corpus is None else asked.corpus == question.corpus]
    if not len(asked):
        return []
    asked.attrs = {**asked.attrs, RESOLUTIONS: resolutions_of(table if repeats_of is None else repeats_of)}
    decided = decision(asked)
    if decided is None:
        return []
    named = labelled(asked)
    views = total_views(decided.views) if question.direction == TOTAL else decided.views
    return [_ranking(question, view, mask, named) for view in views for mask in view.masks]


def rankings_by_study(
    table: pd.DataFrame, question: CallQuestion, repeats_of: pd.DataFrame | None = None
) -> list[tuple[CallRanking, tuple[str, ...]]]:
    """For each GPU and setting, the ranking of the study that measured the most methods, and the other
    studies that measured some. A ranking with rests goes first if it has two methods, and at least half of
    the most.

    Records of several studies are never put together here: they differ in their runs, in what they ask, and
    in who was measured twice.

    Args:
        repeats_of: as of `rankings`; of each study its own.
    """
    whole = table if repeats_of is None else repeats_of
    found: dict[tuple[tuple[str, ...], str], list[CallRanking]] = {}
    every = [
        ranking
        for study, rows in table.loc[is_ranked(table)].groupby("study", sort=False)
        for ranking in rankings(rows, question, whole.loc[whole.study == study])
    ]
    most: dict[tuple[str, ...], int] = {}
    for ranking in every:
        most[ranking.devices] = max(most.get(ranking.devices, 0), _num_usual(ranking, question))
    for ranking in every:  # a study of a variant alone does not answer where another one has what was asked
        if _num_usual(ranking, question) == most[ranking.devices]:
            found.setdefault((ranking.devices, ranking.setting), []).append(ranking)
    chosen = []
    for alike in found.values():
        fewest = max(2, HALF * max(len(ranking.methods) for ranking in alike))
        first, *others = sorted(
            alike,
            key=lambda ranking: (
                not (ranking.rests and len(ranking.methods) >= fewest),
                -len(ranking.methods),
            ),
        )
        chosen.append((first, tuple(study for ranking in others for study in ranking.studies)))
    return chosen


def _num_usual(ranking: CallRanking, question: CallQuestion) -> int:
    """The number of parameters of its mask that are as asked or else usual, its corpus among them."""
    recorded = dict(pair.split("=", 1) for pair in ranking.params.split(", ") if pair)  # False is left out
    corpora = {question.corpus or usual_corpus(question.seqlen)}
    return (not ranking.corpora or set(ranking.corpora) == corpora) + sum(
        recorded.get(key, "False") == str(question.params.get(key, usual))
        for key, usual in question.usual_params.items()
    )


def nearest_settings(table: pd.DataFrame, question: CallQuestion, count: int = 3) -> list[str]:
    """The differences of the nearest settings with records of this mask, nearest first; none without
    records."""
    rows = _of_mask(table, question)
    known = rows.loc[rows.status == "ok", list(AXES)].drop_duplicates()
    if question.direction == TOTAL:  # settings with both directions
        others = [axis for axis in AXES if axis != "direction"]
        known = known.loc[known.duplicated(others)].assign(direction=TOTAL)
    settings = known.to_dict("records")
    by_distance = sorted(
        settings, key=lambda setting: (setting_distance(setting, _setting_of(question)), setting["seqlen"])
    )
    return [_setting(setting, question) for setting in by_distance[:count]]


def _of_mask(table: pd.DataFrame, question: CallQuestion) -> pd.DataFrame:
    """Rows that may be ranked, of the question's kind and mask; unspecified parameters have their defaults if
    those were measured."""
    rows = table.loc[is_ranked(table) & (table["mask"] == question.mask) & (table.kind == question.kind)]
    given = [dict(pair.split("=", 1) for pair in text.split(", ") if pair) for text in rows.mask_params]
    for key, usual in question.usual_params.items():
        wanted = str(question.params.get(key, usual))
        fits = [params.get(key) == wanted for params in given]
        if key in question.params or any(fits):
            rows = rows.loc[fits]
            given = [params for params, fit in zip(given, fits, strict=True) if fit]
    return rows


def _ranking(question: CallQuestion, view: HeatMap, mask: str, asked: pd.DataFrame) -> CallRanking:
    methods = view.ranking(mask)
    of_case = asked.loc[(asked.mask_label == mask) & (asked.setting == view.keys[mask].setting)]
    reasons = dict(zip(of_case.cell_id, of_case.reason, strict=True))
    missing = sorted(
        (method, status, reasons.get(cell_id, ""))
        for (name, method), (status, cell_id) in view.missing.items()
        if name == mask
    )
    ran = of_case.loc[of_case.status == "ok"]
    params = [pair for pair in ran.mask_params.iloc[0].split(", ") if pair and not pair.endswith("=False")]
    documents = " and ".join(sorted(set(ran.corpus) - {""}))
    setting = join(
        f"{question.mask} ({', '.join(params)})" if params else question.mask,
        f"documents of {documents}" if documents else "",
        _setting(_setting_of(question)),
    )
    earlier = set(ran.method[is_earlier(ran)])
    case = view.cases[mask]
    others = (
        f" {field_text(case).partition('; ')[2]}."
        if case.could_not or case.not_asked or case.other_protocol
        else ""
    )
    among = f"Of those with the {SAME_BITS}: " if question.deterministic else ""
    return CallRanking(
        f"{among}{view.verdicts[mask]}{others}",
        setting,
        methods,
        missing,
        sorted(earlier),
        tuple(sorted(set(ran.device))),
        tuple(sorted(set(ran.study))),
        case.rests,
        question.direction,
        question.mask,
        ", ".join(params),
        tuple(sorted(set(ran.corpus) - {""})),
        tuple(sorted({part.seed for entry in case.entries for part in entry.point.best_known})),
        question.deterministic,
        _is_drawn(question, params),
        case.shared_draws,
    )


def _is_drawn(question: CallQuestion, recorded: Sequence[str]) -> bool:
    """True if the seed changes the mask with these recorded parameters, "window=512" each."""
    pattern = Registry("mask").load(question.mask)
    given = dict(pair.split("=", 1) for pair in recorded)
    params = {key: given.get(key, usual) for key, usual in question.usual_params.items()}
    return pattern.draws(pattern.Params(**params))


def _setting_of(question: CallQuestion) -> dict[str, Any]:
    return {axis: getattr(question, axis) for axis in AXES}


def _setting(values: dict[str, Any], other: CallQuestion | None = None) -> str:
    """The values of all axes in words: "32K tokens · 64:8 heads · head dim 128 · bf16 · forward"; only those
    that differ from `other`."""
    heads = f"{values['num_q_heads']}:{values['num_kv_heads']} heads"
    has_context = values["new_tokens"] < values["seqlen"]
    other_has_context = other is not None and other.queries is not None
    words = {
        "seqlen": f"{format_length(int(values['seqlen']))} tokens",
        "new_tokens": f"{format_length(int(values['new_tokens']))} of them new"
        if has_context
        else "all of them new"
        if other_has_context
        else "",
        "world": f"{values['world']} ranks" if values["world"] > 1 else "",
        "num_q_heads": heads,
        "num_kv_heads": heads,
        "head_dim": f"head dim {values['head_dim']}",
        "dtype": values["dtype"],
        "direction": WORDS[values["direction"]],
    }
    return join(
        *dict.fromkeys(
            text for axis, text in words.items() if other is None or values[axis] != getattr(other, axis)
        )
    )
