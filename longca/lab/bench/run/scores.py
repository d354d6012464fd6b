"""Scores: the numbers of finished cells, each beside the best that was measured for the same problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from longca.core import AS_RELEASED, Hardware, format_length
from longca.lab.bench.measure.failure import RAISED_AT
from longca.lab.ranking import (
    MeasuredPoint,
    Measurement,
    Resolutions,
    Standing,
    compare,
    measurement_of,
    repeat_pairs,
    standing,
)
from longca.lab.ranking.facts import facts_of
from longca.lab.ranking.measurement import ABSENT
from longca.lab.store import View
from longca.lab.store.index import CellFacts
from longca.lab.store.text import number, percent, rate_scale
from longca.lab.studies import WAS_AT, Cell, Record

FAILED = ("incorrect", "implausible", "error", "timeout")
"""statuses that are a verdict: a run with such a cell ends with exit code 1"""
Problem = tuple[object, ...]
Case = tuple[object, ...]
"""device, then all of a cell but its method and its seed"""


@dataclass(frozen=True)
class Score:
    """The outcome of one cell, in numbers."""

    cell: Cell
    status: str
    time_ms: float | None = None
    """median; of several ranks the slowest counts"""
    tflops: float | None = None
    """of all ranks together; None for a control without operations"""
    gb_per_s: float | None = None
    """of a copy"""
    error_of_budget: float | None = None
    """the largest error over the error allowed there; above 1 is wrong"""
    reason: str = ""
    """why there is no number, in one line"""
    raised_at: str = ""
    """file, line and function of the user's code where it broke; or where each rank was when it died or was
    stopped"""
    is_control: bool = False
    num_disturbed: int = 0
    """records of the cell in a row during which others used the device; 0 if none did this time"""
    is_drifting: bool = False
    """its samples drift in the order measured"""
    device: str = ""
    """model that measured it"""
    facts: CellFacts | None = field(default=None, repr=False)
    """what is remembered of its record; None where there is the record itself"""
    measured: Measurement | None = None
    """the record as it is ranked, with its samples"""

    @classmethod
    def of(cls, record: Record) -> Score:
        score = cls.known(record.cell, CellFacts.of(record))
        measured = measurement_of(View(record, Hardware()), score.tflops) if score.is_ranked else None
        return replace(score, facts=None, measured=measured)

    @classmethod
    def known(cls, cell: Cell, facts: CellFacts) -> Score:
        """The score of a cell by what is remembered of its record."""
        return cls(
            cell,
            facts.status,
            facts.time_ms,
            facts.tflops,
            facts.gb_per_s,
            facts.error_of_budget,
            facts.reason,
            _place(facts.log_start.splitlines(), cell.world),
            facts.is_control,
            facts.num_disturbed,
            facts.is_drifting,
            facts.device,
            facts,
        )

    @cached_property
    def measurement(self) -> Measurement | None:
        """The score as it is ranked; None where it is not, and for masks without visible pairs."""
        if self.facts is None or not self.is_ranked:
            return self.measured
        return _remembered(self.cell, self.facts)

    @property
    def is_failed(self) -> bool:
        return self.status in FAILED

    @property
    def is_ranked(self) -> bool:
        """True if it is a time of attention. Controls are no attention, and kernels that repeat a defect are
        never ranked."""
        return (
            self.time_ms is not None and not self.is_control and not self.cell.kernel.startswith(AS_RELEASED)
        )

    @cached_property
    def problem(self) -> Problem:
        """The problem that it solves: all of its cell but the method."""
        return *self.case, self.cell.seed

    @cached_property
    def case(self) -> Case:
        """The problem without its seed, on one model of device."""
        cell = self.cell
        return self.device, cell.kind, *_mask(cell), *_setting(cell)

    @property
    def rate(self) -> str:
        """The rate with its unit; empty where it has none."""
        if self.gb_per_s is not None:
            return f"{number(self.gb_per_s)} GB/s"
        if self.tflops is None:
            return ""
        factor, unit = rate_scale(self.tflops)
        return f"{number(factor * self.tflops)} {unit}"


class Scoreboard:
    """The scores of a run, and the best time of each problem so far. Who leads, `longca.lab.ranking` says."""

    def __init__(self, known: Iterable[Score] = ()) -> None:
        """
        Args:
            known: scores from before the run.
        """
        self.scores: list[Score] = []
        self._best: dict[tuple[Problem, bool], Score] = {}
        self._rivals: dict[tuple[Problem, bool], set[str]] = defaultdict(set)
        self._standings: dict[Case, Standing] | None = None
        for score in known:
            self.add(score)

    def add(self, score: Score) -> None:
        self.scores.append(score)
        self._standings = None
        if score.is_ranked and score.time_ms is not None:
            self._rivals[_rivalry(score)].add(score.cell.method)
            best = self._best.setdefault(_rivalry(score), score)
            if best.time_ms is None or score.time_ms < best.time_ms:
                self._best[_rivalry(score)] = score

    def share(self, score: Score) -> float | None:
        """The rate as a share of the best one so far for the same problem by the same protocol, 1 for the
        best itself. None for what is not ranked."""
        best = self._best.get(_rivalry(score)) if score.is_ranked else None
        return (
            best.time_ms / score.time_ms
            if best is not None and best.time_ms is not None and score.time_ms
            else None
        )

    def is_tied(self, score: Score) -> bool:
        """True if it is not the best so far for its problem, and not told apart from it."""
        best = self._best.get(_rivalry(score)) if score.is_ranked else None
        if (
            best is None
            or best.cell.method == score.cell.method
            or not (best.measurement and score.measurement)
        ):
            return False
        first = MeasuredPoint(best.cell.method, (best.measurement,))
        return compare(first, MeasuredPoint(score.cell.method, (score.measurement,))).is_tie

    def numbers(self, score: Score) -> str:
        """Time, rate and share of the best, in columns of the same width; "tie" if not told apart from the
        best. A method without a rival so far has no share."""
        share = self.share(score) if len(self._rivals[_rivalry(score)]) > 1 else None
        text = f"{number(score.time_ms):>7} ms {score.rate:>14} {'' if share is None else percent(share):>5}"
        return f"{text} tie" if self.is_tied(score) else text

    def standings(self) -> dict[Case, Standing]:
        """The standing of each case: the last record of each cell counts, and all seeds of a mask are one
        case."""
        if self._standings is None:
            self._standings = self._ranked()
        return self._standings

    def _ranked(self) -> dict[Case, Standing]:
        own: dict[Case, dict[str, dict[int, Measurement]]] = defaultdict(lambda: defaultdict(dict))
        played: dict[Case, dict[str, dict[int, Measurement]]] = defaultdict(lambda: defaultdict(dict))
        lacking: dict[Case, dict[str, str]] = defaultdict(dict)
        for score in self.scores:
            if score.measurement:
                where = played if score.measurement.playoff else own
                where[score.case][score.cell.method][score.cell.seed] = score.measurement
            elif score.status not in ("ok", ABSENT):
                lacking[score.case][score.cell.method] = score.status
        measured = [score.measurement for score in self.scores if score.measurement]
        known = Resolutions.known().widened(repeat_pairs(measured))
        standings = {}
        for case in dict.fromkeys((*own, *played)):
            methods = dict.fromkeys((*own[case], *played[case]))
            points = [
                MeasuredPoint(
                    method, tuple(own[case][method].values()), tuple(played[case][method].values()), known
                )
                for method in methods
            ]
            nowhere = ("", *case[1:])  # what failed before a device was known
            could_not = {
                method: status
                for method, status in (lacking[nowhere] | lacking[case]).items()
                if method not in methods
            }
            standings[case] = standing(points, could_not)
        return standings

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each score, for JSON."""
        return [
            {
                "cell_id": score.cell.cell_id,
                "method": score.cell.method,
                **score.cell.model_dump(),
                "status": score.status,
                "time_ms": score.time_ms,
                "tflops": score.tflops,
                "gb_per_s": score.gb_per_s,
                "share_of_best": self.share(score),
                "tied_with_best": self.is_tied(score),
                "error_of_budget": score.error_of_budget,
                "reason": score.reason,
                "raised_at": score.raised_at,
                "disturbed": score.num_disturbed > 0,
                "drifting": score.is_drifting,
            }
            for score in self.scores
        ]


class ShortNames:
    """Names of cells that say only what differs among them: a run of one head size does not repeat it in each
    line."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        masks = {_mask(cell): cell for cell in cells}
        loads = {_load(cell): cell for cell in cells}  # a study has many cells of few masks and few loads
        values: dict[str, set[str]] = defaultdict(set)
        variants: dict[tuple[str, str], set[str]] = defaultdict(set)
        for cell in masks.values():
            for key, value in cell.mask_params.items():
                variants[cell.mask, key].add(str(value))
        for cell in loads.values():
            for key, text in self._texts(cell).items():
                values[key].add(text)
        self._varied = {key for key, values_seen in variants.items() if len(values_seen) > 1}
        self._shown = {
            key
            for key, values_seen in values.items()
            if len(values_seen) > 1 and (key != "corpus" or len(values_seen - {""}) > 1)
        }
        same = {
            key: text
            for key, values_seen in values.items()
            if len(values_seen) == 1
            for text in values_seen
            if text and key != "seed"
        }
        self.common = ", ".join(f"S={text}" if key == "seqlen" else text for key, text in same.items())
        """what all cells have in common"""
        self._masks = {key: self._mask(cell) for key, cell in masks.items()}
        in_name = {key: " ".join(["", *self._shown_texts(cell), ""]) for key, cell in loads.items()}
        self.longest = max(
            (len(cell.method) + len(in_name[_load(cell)]) + len(self._masks[_mask(cell)]) for cell in cells),
            default=0,
        )
        """characters of the longest name"""

    def name(self, cell: Cell) -> str:
        """Method, direction, length and so on, and the mask last: what is cut off is least of it."""
        return " ".join([cell.method, *self._shown_texts(cell), self.mask(cell)])

    def mask(self, cell: Cell) -> str:
        """The mask's name, with those of its parameters by which masks of that name differ."""
        return self._masks.get(_mask(cell)) or self._mask(cell)

    def _mask(self, cell: Cell) -> str:
        params = ",".join(
            f"{key}={value}" for key, value in cell.mask_params.items() if (cell.mask, key) in self._varied
        )
        return f"{cell.mask}({params})" if params else cell.mask

    def _shown_texts(self, cell: Cell) -> list[str]:
        return [text for key, text in self._texts(cell).items() if key in self._shown and text]

    def _texts(self, cell: Cell) -> dict[str, str]:
        return {
            "direction": cell.direction,
            "seqlen": format_length(cell.seqlen),
            "new_tokens": "" if cell.new_tokens is None else f"new={format_length(cell.new_tokens)}",
            "world": f"×{cell.world}" if cell.kind == "cp" else "",
            "heads": f"{cell.num_q_heads}:{cell.num_kv_heads}",
            "head_dim": f"D={cell.head_dim}",
            "dtype": cell.dtype,
            "corpus": cell.corpus or "",
            "seed": f"seed={cell.seed}",
            "load": " ".join(
                [cell.input_values] * (cell.input_values != "normal") + ["sustained"] * cell.sustained
            ),
        }


def _rivalry(score: Score) -> tuple[Problem, bool]:
    """The facts that compared scores have in common: the problem, and whether the GPU rested after each
    call."""
    if score.facts is not None:
        return score.problem, bool(score.facts.duty)
    return score.problem, score.measured is not None and score.measured.rests


def _place(lines: Sequence[str], world: int) -> str:
    """The place in the code that these lines name, as `Score.raised_at`."""
    raised = next((line.removeprefix(RAISED_AT) for line in lines if line.startswith(RAISED_AT)), "")
    ranks = [line.partition(WAS_AT) for line in lines if WAS_AT in line]
    return raised or ", ".join(line if world == 1 else f"{line} ({rank})" for rank, _, line in ranks)


def _mask(cell: Cell) -> tuple[object, ...]:
    return cell.mask, tuple(cell.mask_params.items())


def _load(cell: Cell) -> tuple[object, ...]:
    """All of a cell but its method and its mask."""
    return *_setting(cell), cell.seed


def _setting(cell: Cell) -> tuple[object, ...]:
    """The same without the seed."""
    return (
        cell.direction,
        cell.seqlen,
        cell.new_tokens,
        cell.kind == "cp" and cell.world,
        cell.num_q_heads,
        cell.num_kv_heads,
        cell.head_dim,
        cell.dtype,
        cell.corpus,
        cell.input_values,
        cell.sustained,
    )


def _remembered(cell: Cell, facts: CellFacts) -> Measurement | None:
    """The measurement by what is remembered of a record: not its samples, but the interval of their
    median."""
    if facts.status != "ok" or not (
        facts.tflops and facts.time_ms and facts.shortest_ms and facts.longest_ms
    ):
        return None
    work = facts.tflops * facts.time_ms
    return Measurement(
        facts.tflops, work / facts.longest_ms, work / facts.shortest_ms, **facts_of(facts.columns(cell))
    )
