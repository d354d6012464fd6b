"""Places that rank, each asked the same: who is in front in a committed case, and by how much."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from longca.core.hardware import load_hardware
from longca.lab.bench.run.overview import BEST, rate_tables
from longca.lab.bench.run.scores import Score, Scoreboard
from longca.lab.claims.evidence import points as claim_points
from longca.lab.claims.pairs import Pair
from longca.lab.compare.pairs import RecordPair
from longca.lab.compare.side import of_record
from longca.lab.compare.verdict import Rule, judge
from longca.lab.ranking import Standing
from longca.lab.ranking.table import CASE, is_beside, points, standings
from longca.lab.report import choose, winners
from longca.lab.report.decide.views import decision
from longca.lab.report.series import labelled
from longca.lab.store.decode import Decoder
from longca.lab.store.load import COMMITTED
from longca.lab.store.table import derived, in_order
from longca.lab.studies.record import Record
from tools import fastest

STUDIES = {"H100": ("h100-dense", "h100-sparse"), "H200": ("h200-dense", "h200-sparse")}
METHOD_OF_TABLE = fastest.OWN  # with which the table of `longca.attention` compares all others


@dataclass(frozen=True)
class PlaceAnswer:
    """One place's answer to one question."""

    first: str
    leaders: frozenset[str]
    """the first, and those that are not told apart from it"""
    ratio: float
    """the first's rate over the second's"""

    @classmethod
    def of(cls, case: Standing) -> PlaceAnswer:
        assert case.lead
        return cls(case.first.method, frozenset(case.leaders), round(case.lead.ratio, 6))


@dataclass(frozen=True)
class SharedCase:
    """One question: the records of a case."""

    key: tuple[Any, ...]
    records: tuple[Record, ...]

    @property
    def is_of_one_seed(self) -> bool:
        return len({record.cell.seed for record in self.records}) == 1


def shared_cases(gpu: str, count: int) -> list[SharedCase]:
    """So many cases of a GPU's committed studies, drawn once and for all, that two kernels or more ran."""
    actual: list[SharedCase] = []
    for study in STUDIES[gpu]:
        file = pq.ParquetFile(COMMITTED / gpu.lower() / f"{study}.parquet")
        wanted = (*CASE, "kernel", "is_control", "status", "playoff", "repeat")
        names = [name for name in wanted if name in file.schema_arrow.names]
        rows = file.read(names).to_pandas()
        is_asked = (rows.status == "ok") & (rows.kind == "kernel") & ~rows.is_control.astype(bool)
        is_asked &= ~is_beside(rows)
        is_asked &= ~rows.mask_params.str.contains("paper_compat=True") & ~rows.kernel.str.startswith(
            "as_released"
        )
        groups = (
            rows[is_asked].groupby([name for name in CASE if name in rows], sort=True, dropna=False).groups
        )
        groups = {key: list(places) for key, places in groups.items() if rows.kernel[places].nunique() > 1}
        share = round(count * (0.75 if study == STUDIES[gpu][0] else 0.25))
        chosen = random.Random(44).sample(sorted(groups, key=str), share)
        texts, decoder = file.read(["record"])["record"], Decoder()
        actual += [
            SharedCase(key, tuple(decoder.decode(texts[place].as_py().encode()) for place in groups[key]))
            for key in chosen
        ]
    return actual


def partly_rested(case: SharedCase, count: int) -> SharedCase:
    """The case as if so many of its methods, in the order of their names, had been measured with rests, and
    no other."""
    rested = sorted({record.cell.kernel for record in case.records})[:count]
    records = (with_duty(r, 0.5 if r.cell.kernel in rested else None) for r in case.records)
    return replace(case, records=tuple(records))


def with_duty(record: Record, duty: float | None) -> Record:
    assert record.samples is not None
    return record.model_copy(update={"samples": record.samples.model_copy(update={"duty": duty})})


class Places:
    """The places, over the records of all questions together, as a page or a command has them."""

    def __init__(self, cases: Sequence[SharedCase]) -> None:
        self.cases = cases
        records = in_order(record for case in cases for record in case.records)
        self.table = derived(records)
        self.board = Scoreboard(map(Score.of, records))
        named = labelled(self.table)
        ids = ("mask_label", "setting", "seqlen", "direction")
        self._labels = dict(zip(named.cell_id, zip(*(named[name] for name in ids), strict=True), strict=True))
        self._ranked = standings(self.table)
        self._views = {
            (mask, view.keys[mask].setting, view.seqlen, view.direction): view.ranking(mask)
            for found in [decision(self.table)]
            if found
            for view in found.views
            for mask in view.masks
        }
        self._claims = {point.cell_ids: point for point in claim_points(self.table)}
        self._hardware = load_hardware()

    def ranking(self, case: SharedCase) -> PlaceAnswer:
        """The package itself."""
        return PlaceAnswer.of(self._ranked[self._key(case)])

    def page(self, case: SharedCase) -> PlaceAnswer:
        """The page's views, from which its pictures, tables and script have their numbers."""
        return _of_placed(self._views[self._labels[case.records[0].cell_id]])

    def choose(self, case: SharedCase) -> PlaceAnswer:
        cell = case.records[0].cell
        question = choose.CallQuestion(
            cell.mask,
            dict(cell.mask_params),
            dict(cell.mask_params),
            cell.seqlen,
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            cell.dtype,
            cell.direction,
        )
        rows = self.table[self.table.corpus == (cell.corpus or "")]
        (actual,) = choose.rankings(rows, question)
        answer = _of_placed(actual.methods)
        tie = re.match(r"A tie of (\d+) in front: (\S+) ", actual.finding)
        assert (
            (int(tie[1]), tie[2]) == (len(answer.leaders), answer.first)
            if tie
            else actual.finding.startswith(f"{answer.first} ")
        )
        return answer

    def claims(self, case: SharedCase) -> PlaceAnswer:
        """Pairs of points, as claims compare them."""
        asked = [self._claims[ids] for ids in self._cell_ids(case)]
        actual = sorted((point for point in asked if point.ranked), key=lambda point: -point.rate)
        pairs = [Pair(actual[0], other) for other in actual[1:]]
        return PlaceAnswer(
            actual[0].method,
            frozenset({actual[0].method, *(pair.second.method for pair in pairs if pair.order == "same")}),
            round(pairs[0].ratio, 6),
        )

    def compare(self, case: SharedCase) -> PlaceAnswer | None:
        """The verdicts on files of one method each beside that of the first of their protocol; only of cases
        of one seed."""
        if not case.is_of_one_seed:
            return None
        every = [of_record(record, self._hardware) for record in case.records]
        rested = [side for side in every if side.rests]
        sides = rested if len(rested) > 1 else [side for side in every if not side.rests]
        for side in every:
            if side not in sides:
                assert judge(RecordPair(side, sides[0]), Rule()).outcome == "incomparable"
        first, *others = sorted(sides, key=lambda side: side.time_ms.middle if side.time_ms else 0.0)
        verdicts = [
            (side.cell.method if side.cell else "", judge(RecordPair(side, first), Rule())) for side in others
        ]
        assert first.cell and all(
            verdict.outcome in ("faster", "same", "ambiguous") for _, verdict in verdicts
        )
        ties = {method for method, verdict in verdicts if verdict.outcome != "faster"}
        return PlaceAnswer(
            first.cell.method,
            frozenset({first.cell.method, *ties}),
            round(min(verdict.ratio for _, verdict in verdicts if verdict.ratio), 6),
        )

    def run(self, case: SharedCase) -> PlaceAnswer:
        """The scoreboard of a run, at its end."""
        score = next(score for score in self.board.scores if score.cell == case.records[0].cell)
        return PlaceAnswer.of(self.board.standings()[score.case])

    def marks(self, case: SharedCase) -> frozenset[str]:
        """The methods that the table at the end of a run marks, if it is of this case alone."""
        (table,) = rate_tables(Scoreboard(map(Score.of, case.records)), 10_000)
        return frozenset(
            name for name, text in zip(table.columns, table.rows[0], strict=True) if BEST in str(text)
        )

    def winners(self, case: SharedCase) -> tuple[str, bool]:
        """(the first, whether it is in a tie) by the table of winners of a page of this case alone."""
        (ranking,) = winners.rankings(self._rows(case))
        (row,) = (row for row in ranking.rows if not row.is_family)
        winner = row.winners[case.records[0].cell.direction]
        assert isinstance(winner, winners.Winner)
        return winner.method, winner.rest.startswith("tied with")

    def table_of_attention(self, case: SharedCase) -> dict[str, float] | None:
        """Kernel → lead over `band` in the table of `longca.attention`; None of cases without `band`."""
        of_case = fastest.competing_points(points(self._rows(case), ("mask",)))
        by_kernel = {kernel: {(mask,): point} for (mask, kernel), point in of_case.items()}
        return fastest.leads(by_kernel) if METHOD_OF_TABLE in by_kernel else None

    def _rows(self, case: SharedCase) -> pd.DataFrame:
        return self.table[self.table.cell_id.isin({record.cell_id for record in case.records})]

    def _key(self, case: SharedCase) -> tuple[Any, ...]:
        row = self._rows(case).iloc[0]
        return tuple(row[name] for name in CASE)

    def _cell_ids(self, case: SharedCase) -> list[tuple[str, ...]]:
        """The cells of each method in the order of the table."""
        return [tuple(ids) for _, ids in self._rows(case).groupby("method", sort=False).cell_id]


def _of_placed(methods: Sequence[tuple[str, Any]]) -> PlaceAnswer:
    (first, best), (_, second), *_ = methods
    leaders = {name for name, placed in methods if placed.place == 1 or placed.tied}
    return PlaceAnswer(first, frozenset(leaders), round(best.share / second.share, 6))


WHOLE: dict[str, Callable[[Places, SharedCase], PlaceAnswer | None]] = {
    "page": Places.page,
    "choose": Places.choose,
    "claims": Places.claims,
    "compare": Places.compare,
    "run": Places.run,
}
"""places that answer a question whole"""
