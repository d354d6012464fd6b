"""The deterministic league: who competes there, who does not, and what a page says of it."""

from pathlib import Path

import pandas as pd
import pytest

from longca.lab.ranking import Standing
from longca.lab.report.build import build
from longca.lab.report.decide.cases import cases
from longca.lab.report.decide.league import LeagueEntry, league
from longca.lab.report.series import Unit
from longca.lab.store.checks.record import contradiction
from longca.lab.store.export import export
from longca.lab.store.load import load, load_columns
from longca.lab.store.table import derived, is_deterministic, is_ranked
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Record
from tests.helpers.ranking.league import (
    H200,
    MASKS,
    PROMISING,
    dense_records,
    league_cell,
    league_records,
    with_bits,
)
from tests.helpers.records import record

UNIT = Unit(1.0, "TFLOP/s")


def in_playoff(measured: Record, name: str, tflops: float) -> Record:
    """The same cell as a player, at another rate."""
    number = len(measured.samples.time_ms[0]) if measured.samples else 0
    other = record(measured.cell, tflops=tflops, gpu=H200, study=measured.study)
    assert other.samples is not None and number
    turns = Turns(num_players=2, numbers=tuple(range(0, 2 * number, 2)), ending="decided")
    fields = {"playoff": name, "turns": turns, "samples": other.samples}
    return measured.model_copy(update=fields)


def test_only_what_is_proven_competes() -> None:
    table = derived([*dense_records(), *league_records()])
    rows = table[is_deterministic(table)]
    assert set(rows.method) == set(PROMISING) and set(rows.direction) == {"bwd"}
    assert set(rows.study) == {"deterministic"}, "the older record of `band` proves nothing"
    (wrong,) = rows[rows.status == "incorrect"].itertuples()
    assert (wrong.method, wrong.deterministic) == ("fa3_deterministic", False)


def test_kernels_in_a_fixed_order_stay_out_of_the_other_ranking() -> None:
    table = derived([*dense_records(), *league_records()])
    assert not any(name.endswith("_deterministic") for name in table.method[is_ranked(table)])
    alone = derived(league_records())
    assert set(alone.method[is_ranked(alone)]) == set(PROMISING), "without the others they compete"


def case_of(table: pd.DataFrame, *, deterministic: bool) -> Standing:
    """The standing under `causal`, backward."""
    of_kernels = cases(table, "kernel", deterministic=deterministic).standings.items()
    (case,) = [case for key, case in of_kernels if (key.mask_label, key.direction) == ("causal", "bwd")]
    return case


def test_play_offs_of_both_rankings_do_not_mix() -> None:
    """`band` has two play-offs of one cell: each counts among its own rivals."""
    dense = {measured.cell: measured for measured in dense_records()}
    ordered = {measured.cell: measured for measured in league_records()}
    band = ordered[league_cell("band")]
    players = [
        in_playoff(dense[league_cell("fa4")], "0" * 16, 660),
        in_playoff(band, "0" * 16, 600),
        in_playoff(ordered[league_cell("fa4_deterministic")], "1" * 16, 500),
        in_playoff(band, "1" * 16, 580),
    ]
    table = derived([*dense.values(), *ordered.values(), *players])
    case = case_of(table, deterministic=False)
    assert case.played_off and case.leaders == ("fa4",) and case.second and case.second.method == "band"
    assert case.second.rate == pytest.approx(600, rel=0.02)
    case = case_of(table, deterministic=True)
    assert case.played_off and case.leaders == ("band",) and case.first.rate == pytest.approx(580, rel=0.02)


def test_conclusions_rows_and_costs() -> None:
    made = league(derived([*dense_records(), *league_records()]), UNIT)
    assert made is not None
    opening, ratios, costs = made.findings
    assert (
        "same bits in every run, backward, band leads alone in all 3 cases (3 masks at 8K tokens)" in opening
    )
    assert ratios.startswith("band has 1.15 × the rate of the best other one in the median of 3 cases")
    assert "fa3 1.33 × as long in the median of 2 cases" in costs and "fa4 1.25 × as long" in costs
    ((setting, rows),) = made.tables
    assert not setting and {row.mask for row in rows} == set(MASKS) and made.methods[0] == "band"
    row = next(row for row in rows if row.mask == "full")
    assert row.entries["fa3_deterministic"] == "wrong" and row.lead == "1.15 ×"
    entry = row.entries["fa4_deterministic"]
    assert isinstance(entry, LeagueEntry) and entry.cost == "−20 %" and not entry.is_leader
    assert next(row for row in rows if row.mask == "prefix_lm").entries["fa4_deterministic"] == "no"


@pytest.mark.usefixtures("no_figures")
def test_there_is_no_league_without_two_proven_kernels(tmp_path: Path) -> None:
    assert league(derived(dense_records()), UNIT) is None
    alone = [*dense_records(), *(r for r in league_records() if r.cell.kernel == "band")]
    assert league(derived(alone), UNIT) is None
    page = build(alone, [], tmp_path / "report.html", study_title="Dense")
    assert 'id="deterministic"' not in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_figures")
def test_the_dense_page_shows_it_conclusions_first(tmp_path: Path) -> None:
    records = [*dense_records(), *league_records()]
    text = build(records, [], tmp_path / "report.html", study_title="Dense").read_text(encoding="utf-8")
    start = text.index('<section id="deterministic">')
    section = text[start : text.index("</section>", start)]
    assert section.index("band leads alone in all 3") < section.index("<table")
    assert 'href="#deterministic"' in text
    assert section.count("<tr>") == 1 + len(MASKS)


def test_records_keep_what_was_proven_and_older_ones_stay_readable(tmp_path: Path) -> None:
    older, (proven, *_) = dense_records(), league_records(run_id="another")
    assert "deterministic" not in older[0].model_dump_json() and "bit_runs" not in older[0].model_dump_json()
    again = Record.model_validate_json(proven.model_dump_json())
    assert again == proven and again.accuracy is not None and again.accuracy.deterministic
    for path in export([*older, proven], tmp_path):
        if path.suffix in (".json", ".parquet"):
            loaded = load(path)
            assert not loaded.problems and len(loaded.records) == len(older) + 1 and proven in loaded.records
    table, _ = load_columns([tmp_path / "records.parquet"], ["cell_id", "kernel", "deterministic"])
    assert table.deterministic.notna().sum() == 1


def test_a_record_that_contradicts_itself_is_damaged() -> None:
    (proven, *_) = league_records()
    assert contradiction(proven) is None
    assert "bits of its gradients differ" in str(contradiction(with_bits(proven, False)))
    assert proven.accuracy is not None
    once = proven.accuracy.model_copy(update={"bit_runs": 1})
    assert "bits of 1 runs" in str(contradiction(proven.model_copy(update={"accuracy": once})))
