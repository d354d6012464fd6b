"""Cells of new tokens after a context are never ranked with square ones, and say what they are."""

import json

import pytest

from longca.core.errors import UserError
from longca.lab.bench.run.overview import rate_tables
from longca.lab.bench.run.scores import Score, Scoreboard
from longca.lab.claims.rows import NO_ROLE, ROLE, prepared
from longca.lab.ranking.table import standings
from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data
from longca.lab.report.decide.choice import answer, question_of
from longca.lab.report.decide.script import described, switches
from longca.lab.report.decide.views import decision
from longca.lab.report.series import labelled
from longca.lab.store.load import load_columns
from longca.lab.store.table import derived, is_square
from longca.lab.studies.fitting import fits
from longca.lab.studies.playoff.case import case_id
from tests.helpers.records import record
from tests.helpers.report.cases import cell
from tests.helpers.support import ROOT

SQUARE = {"sdpa": 40.0, "flex": 50.0}
CHUNK = {"sdpa": 30.0, "flex": 20.0}  # the other way round


@pytest.fixture(scope="module")
def records():
    square = [record(cell(kernel), tflops=rate) for kernel, rate in SQUARE.items()]
    chunks = [record(cell(kernel, new_tokens=128), tflops=rate) for kernel, rate in CHUNK.items()]
    return [*square, *chunks]


@pytest.fixture(scope="module")
def table(records):
    return derived(records)


def test_a_ranking_has_one_case_for_each_number_of_new_tokens(records, table):
    assert table.new_tokens.tolist() == [1024, 1024, 128, 128]
    assert is_square(table).tolist() == [True, True, False, False]
    first = {key[7]: case.leaders for key, case in standings(table).items()}
    assert first == {1024: ("flex",), 128: ("sdpa",)}
    assert len({case_id(each.cell, "gpu") for each in records}) == 2
    assert [fits(each) for each in records[2:]] == [False, False]


def test_the_map_the_chooser_and_the_sentences_keep_them_apart(table):
    decided = decision(table)
    assert decided is not None
    leaders = {view.switches.heads: view.cases["causal"].leaders for view in decided.views}
    assert leaders == {"no context": ("flex",), "128 new tokens": ("sdpa",)}
    assert {len(view.entries) for view in decided.views} == {2}
    texts = [described(view, decided) for view in decided.views]
    assert any("128 new tokens" in text for text in texts) and any("no context" in text for text in texts)
    [switch] = [each for each in switches(decided.views) if each["label"] == "New tokens"]
    assert [text for _, text in switch["options"]] == ["no context", "128"]


def test_new_tokens_are_named_even_where_all_rows_have_as_many(table):
    assert set(labelled(table[~is_square(table)]).setting) == {"128 new tokens"}
    assert set(labelled(table[is_square(table)]).setting) == {""}


def test_the_end_of_a_run_has_tables_of_their_own(records):
    board = Scoreboard(Score.of(each) for each in records)
    assert [table.title.partition(", ")[2] for table in rate_tables(board, 80)] == [
        "forward, S=1K",
        "forward, 128 new tokens, S=1K",
    ]
    assert {case[4 + 2]: standing.leaders for case, standing in board.standings().items()} == {
        None: ("flex",),
        128: ("sdpa",),
    }


def test_choose_answers_for_one_of_them_and_names_the_other_where_it_cannot(table):
    asked = {"seqlen": 1024, "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "dtype": "bf16", "gpus": 1,
             "corpus": None, "params": {}}  # fmt: skip
    square = answer(table, question_of("causal", **asked), "fwd")
    chunk = answer(table, question_of("causal", **asked, new_tokens=128), "fwd")
    assert [ranking.methods[0][0] for ranking in square.rankings] == ["flex"]
    assert [ranking.methods[0][0] for ranking in chunk.rankings] == ["sdpa"]
    assert "128 of them new" in chunk.rankings[0].setting and "new" not in square.rankings[0].setting
    assert "--new-tokens 128" in chunk.see_also["fwd"]
    with pytest.raises(UserError, match="the nearest have 128 of them new; all of them new"):
        answer(table, question_of("causal", **asked, new_tokens=256), "fwd")
    with pytest.raises(UserError, match="1 new token would be decoding"):
        question_of("causal", **asked, new_tokens=1)


def test_claims_leave_them_out(table):
    on_gpu = table.assign(device_type="cuda")
    assert (prepared(on_gpu)[ROLE] != NO_ROLE).tolist() == [True, True, False, False]


@pytest.mark.usefixtures("no_figures")
def test_the_page_says_both_lengths(records, tmp_path):
    build(records, [], tmp_path / "report.html", study_title="t")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.dumps([page_data(text, name) for name in ("data", "facts", "views")])
    assert "128 new tokens" in text + data and "--new-tokens {new}" in text + data


def test_tables_of_older_records_are_square():
    columns, problems = load_columns(
        [ROOT / "reports/h100/h100-cp.parquet"], ("cell_id", "seqlen", "new_tokens")
    )
    assert not problems and len(columns) > 500 and is_square(columns).all()
