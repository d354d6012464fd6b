"""Scores: the numbers of finished cells, each beside the best that was measured for the same problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from longca.bench.measure.failure import RAISED_AT
from longca.core.cell import AS_RELEASED, Cell
from longca.core.record import Failed, Record
from longca.core.units import format_length
from longca.store.hardware import Hardware
from longca.store.text import number, percent, rate_scale
from longca.store.view import View

FAILED = ("incorrect", "error", "timeout")  # statuses that are a verdict: a run with such a cell ends with exit code 1
METHOD_FIELDS = ("kernel", "strategy", "strategy_params")


@dataclass(frozen=True)
class Score:
    """What came of one cell, in numbers."""

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
    """file, line and function of the user's code where it broke"""
    is_control: bool = False
    num_disturbed: int = 0
    """records of the cell in a row during which others used the device; 0 if none did this time"""

    @classmethod
    def of(cls, record: Record) -> Score:
        view = View(record, Hardware())
        log = record.outcome.log if isinstance(record.outcome, Failed) else ""
        raised = next((line.removeprefix(RAISED_AT) for line in log.splitlines()[:2] if line.startswith(RAISED_AT)), "")
        return cls(record.cell, record.outcome.status, view.median_ms, view.tflops(view.median_ms), view.gb_per_s,
                   view.budget_ratio(view.worst_tensor), view.reason, raised, view.is_control, view.num_disturbed)

    @property
    def is_failed(self) -> bool:
        return self.status in FAILED

    @property
    def is_ranked(self) -> bool:
        """True if it is a time of attention. Controls are no attention, and kernels that repeat a defect are never ranked."""
        return self.time_ms is not None and not self.is_control and not self.cell.kernel.startswith(AS_RELEASED)

    @property
    def problem(self) -> str:
        """The problem that it solves: all of its cell but the method."""
        return str({key: value for key, value in self.cell.model_dump().items() if key not in METHOD_FIELDS})

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
    """The scores of a run, and the best time of each problem so far."""

    def __init__(self, known: Iterable[Score] = ()) -> None:
        """
        Args:
            known: scores from before the run.
        """
        self.scores: list[Score] = []
        self._best_ms: dict[str, float] = {}
        for score in known:
            self.add(score)

    def add(self, score: Score) -> None:
        self.scores.append(score)
        if score.is_ranked and score.time_ms is not None:
            self._best_ms[score.problem] = min(score.time_ms, self._best_ms.get(score.problem, score.time_ms))

    def share(self, score: Score) -> float | None:
        """The rate as a share of the best one so far for the same problem, 1 for the best itself. None for what is not ranked."""
        best_ms = self._best_ms.get(score.problem) if score.is_ranked else None
        return best_ms / score.time_ms if best_ms is not None and score.time_ms else None

    def numbers(self, score: Score) -> str:
        """Time, rate and share of the best, in columns of the same width for all scores."""
        share = self.share(score)
        return f"{number(score.time_ms):>7} ms {score.rate:>14} {'' if share is None else percent(share):>5}"

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each score, for JSON."""
        return [{"cell_id": score.cell.cell_id, "method": score.cell.method, **score.cell.model_dump(), "status": score.status,
                 "time_ms": score.time_ms, "tflops": score.tflops, "gb_per_s": score.gb_per_s, "share_of_best": self.share(score),
                 "error_of_budget": score.error_of_budget, "reason": score.reason, "raised_at": score.raised_at,
                 "disturbed": score.num_disturbed > 0} for score in self.scores]


class ShortNames:
    """Names of cells that say only what differs among them: a run of one head size does not repeat it in each line."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        values: dict[str, set[str]] = defaultdict(set)
        variants: dict[tuple[str, str], set[str]] = defaultdict(set)
        for cell in cells:
            for key, value in cell.mask_params.items():
                variants[cell.mask, key].add(str(value))
            for key, text in self._texts(cell).items():
                values[key].add(text)
        self._varied = {key for key, found in variants.items() if len(found) > 1}
        self._shown = {key for key, found in values.items() if len(found) > 1 and (key != "corpus" or len(found - {""}) > 1)}
        same = {key: text for key, found in values.items() if len(found) == 1 for text in found if text and key != "seed"}
        self.common = ", ".join(f"S={text}" if key == "seqlen" else text for key, text in same.items())
        """what all cells have in common"""
        self.longest = max((len(self.name(cell)) for cell in cells), default=0)
        """characters of the longest name"""

    def name(self, cell: Cell) -> str:
        """Method, direction, length and so on, and the mask last: what is cut off is least of it."""
        texts = self._texts(cell)
        return " ".join([cell.method, *(text for key, text in texts.items() if key in self._shown and text), self.mask(cell)])

    def mask(self, cell: Cell) -> str:
        """The mask's name, with those of its parameters by which masks of that name differ."""
        params = ",".join(f"{key}={value}" for key, value in cell.mask_params.items() if (cell.mask, key) in self._varied)
        return f"{cell.mask}({params})" if params else cell.mask

    def _texts(self, cell: Cell) -> dict[str, str]:
        return {"direction": cell.direction, "seqlen": format_length(cell.seqlen), "world": f"×{cell.world}" if cell.kind == "cp" else "",
                "heads": f"{cell.num_q_heads}:{cell.num_kv_heads}", "head_dim": f"D={cell.head_dim}", "dtype": cell.dtype,
                "corpus": cell.corpus or "", "seed": f"seed={cell.seed}",
                "load": " ".join([cell.input_values] * (cell.input_values != "normal") + ["sustained"] * cell.sustained)}
