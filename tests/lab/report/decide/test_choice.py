"""`longca.choose`: the answer of `longca choose` as an object."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import longca
from longca.core.errors import UserError
from longca.lab.report.decide.choice import Choice
from longca.lab.store.export import export
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Unsupported
from longca.lab.studies.record import Record
from tests.helpers.ranking.league import dense_records, league_records
from tests.helpers.records import record

H200 = "NVIDIA H200"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three kernels under causal, and under documents of two corpora at a length where `prolong64k` is
    usual."""
    made = []
    settings = [("causal", None), ("causal_document", "pile"), ("causal_document", "prolong64k")]
    for (mask, corpus), (kernel, tflops), direction in product(
        settings, (("fa3", 660.0), ("flex", 430.0), ("sdpa", 320.0)), ("fwd", "bwd")
    ):
        cell = Cell(kind="kernel", kernel=kernel, mask=mask, corpus=corpus, seqlen=16384, num_q_heads=64, num_kv_heads=8,  # noqa: E501
                    head_dim=128, dtype="bf16", direction=direction)  # fmt: skip
        made.append(record(cell, tflops=tflops, gpu=H200))
    return str(export(made, tmp_path_factory.mktemp("records"))[2])


def test_each_direction_has_a_ranking(file: str):
    answer = longca.choose("causal", file, seqlen="16K", gpu="h200")
    assert isinstance(answer, Choice) and answer.best == {
        f"{H200}, forward": "fa3",
        f"{H200}, backward": "fa3",
    }
    assert len(repr(answer)) < 400 and "fa3" in repr(answer) and len(answer._repr_html_()) < 4000
    [forward] = longca.choose("causal", file, seqlen=16384, direction="fwd").rankings
    assert forward == answer.rankings[0]
    assert answer.to_dict()["see_also"] == {
        direction: f"longca advise -m causal -s 16K -d {direction} --gpu h200" for direction in ("fwd", "bwd")
    }, "advice about both would be about their sum"


def test_documents_are_of_the_usual_corpus_where_it_was_measured(file: str):
    [usual] = longca.choose("causal_document", file, seqlen="16K", direction="fwd").rankings
    [given] = longca.choose("causal_document", file, seqlen="16K", direction="fwd", corpus="pile").rankings
    assert usual.corpora == ("prolong64k",) and given.corpora == ("pile",) and usual.seeds == (0,)
    assert usual.to_dict()["corpora"] == ["prolong64k"] and "documents of prolong64k" in usual.setting
    mask = longca.build_mask("causal_document", seqlen="16K", corpus="pile")
    assert longca.choose(mask, file, direction="fwd").rankings == (given,)


def test_what_is_left_out_is_named(file: str):
    answer = longca.choose("causal_document", file, seqlen="16K")
    assert answer.defaults == {
        "gpus": "1",
        "heads": "64:8",
        "head_dim": "128",
        "dtype": "bf16",
        "direction": "fwd and bwd",
        "corpus": "prolong64k",
    }
    assert answer.to_dict()["defaults"] == answer.defaults and answer.not_given in answer._repr_html_()
    given = longca.choose("causal", file, seqlen="16K", num_q_heads=64, num_kv_heads=8, head_dim=128, dtype="bf16",  # noqa: E501
                          direction="fwd", gpus=1)  # fmt: skip
    assert given.defaults == {} and "Not given" not in given._repr_html_()


@pytest.mark.parametrize(("arguments", "said"), [
    ({"seqlen": "24K"}, "bf16 · forward or backward: the nearest have 16K tokens. Ask for one of these; "
                        "`longca advise -m causal -s 24K -d fwd` predicts it forward"),
    ({"seqlen": "16K", "gpus": 4}, "`longca advise -m causal -s 16K -d fwd -w 4` predicts it forward and "
                                   "`-d bwd` backward, `longca run` measures it"),
    ({"seqlen": "16K", "gpu": "b200"}, "No record is of GPU 'b200': they are of NVIDIA H200. `longca advise "
                                       "--gpu 'B200'` predicts it"),
    ({"seqlen": "16K", "gpu": "mi300"}, "they are of NVIDIA H200. Give one of these"),
    ({"mask": "causal_document", "seqlen": "16K", "corpus": "prolong512k"}, "the nearest have documents of "
                                                                            "prolong64k. Ask"),
    ({"seqlen": "16K", "direction": "up"}, "'up'"),
    ({"seqlen": "16K", "corpus": "pile"}, "has no documents"),
    ({"seqlen": "x"}, "'x'"),
    ({"mask": longca.Mask.from_documents([64, 64])}, "Records know masks by their pattern"),
])  # fmt: skip
def test_what_no_record_answers_is_one_line(file: str, arguments: dict, said: str):
    with pytest.raises(UserError) as error:
        longca.choose(arguments.pop("mask", "causal"), file, **arguments)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_deterministic_methods_alone_are_ranked(tmp_path: Path):
    """Backward, by records that prove it; others and older ones count for nothing."""
    file = str(export([*dense_records(), *league_records(run_id="another")], tmp_path)[2])
    answer = longca.choose("causal", file, seqlen="8K", deterministic=True)
    assert answer.best == {f"{H200}, backward": "band"} and not answer.unanswered and not answer.see_also
    (ranking,) = answer.rankings
    assert ranking.deterministic and ranking.finding.startswith(
        "Of those with the same bits in every run: band"
    )
    assert [method for method, _ in ranking.methods] == ["band", "fa4_deterministic", "fa3_deterministic"]
    (ranking,) = longca.choose("full", file, seqlen="8K", deterministic=True).rankings
    assert [(method, status) for method, status, _ in ranking.missing] == [("fa3_deterministic", "incorrect")]
    assert "not deterministic: " in ranking.missing[0][2]
    (usual,) = longca.choose("causal", file, seqlen="8K", direction="bwd").rankings
    assert {method for method, _ in usual.methods} == {"band", "fa3", "fa4", "flex"}
    with pytest.raises(UserError, match=r"in every run: the nearest have 8K tokens\..*`longca run det"):
        longca.choose("causal", file, seqlen="32K", deterministic=True)
    with pytest.raises(UserError, match="Forward needs no choice"):
        longca.choose("causal", file, seqlen="8K", direction="fwd", deterministic=True)
    older = str(export(dense_records(), tmp_path / "older")[2])
    with pytest.raises(UserError, match="No record proves that gradients have the same bits in every run"):
        longca.choose("causal", older, seqlen="8K", deterministic=True)


def calls(kernel: str, forward: float | None, backward: float | None, **fields: Any) -> list[Record]:
    """Records of a kernel in both directions at these TFLOP/s; None stands for a refusal."""
    made = []
    for direction, tflops in (("fwd", forward), ("bwd", backward)):
        asked: dict[str, Any] = {
            "mask": "causal",
            "seqlen": 16384,
            "head_dim": 128,
            "dtype": "bf16",
            "direction": direction,
            **fields,
        }
        cell = Cell(kind="kernel", kernel=kernel, num_q_heads=64, num_kv_heads=8, **asked)
        outcome = Unsupported(reason="has no backward") if tflops is None else None
        made.append(record(cell, outcome, tflops=tflops or 1.0, gpu=H200))
    return made


def test_forward_and_backward_together_are_ranked_by_the_sum_of_their_times(tmp_path: Path):
    """The first forward is the last together, and what has no backward is left out with the reason."""
    made = [*calls("fa3", 700.0, 420.0), *calls("fa4", 650.0, 560.0), *calls("flashinfer", 690.0, None)]
    file = str(export(made, tmp_path)[2])
    [each] = longca.choose("causal", file, seqlen="16K", direction="fwd").rankings
    assert each.methods[0][0] == "fa3"
    answer = longca.choose("causal", file, seqlen="16K", direction="fwd+bwd")
    [together] = answer.rankings
    assert answer.best == {f"{H200}, forward and backward together": "fa4"}
    assert [method for method, _ in together.methods] == ["fa4", "fa3"]
    apart = longca.choose("causal", file, seqlen="16K", direction="both").rankings
    times = [dict(ranking.methods)["fa4"] for ranking in apart]
    placed = dict(together.methods)["fa4"]
    assert placed.ms == pytest.approx(sum(part.ms for part in times))
    assert placed.num_cells == 2 and placed.num_samples == sum(part.num_samples for part in times)
    work = sum(part.ms * part.tflops for part in times)
    assert placed.tflops == pytest.approx(work / placed.ms) and placed.low < placed.tflops < placed.high
    assert together.missing == [("flashinfer", "backward unsupported", "has no backward")]
    assert "forward and backward together" in together.setting and "1 could not" in together.finding
    assert json.loads(json.dumps(answer.to_dict()))["rankings"][0]["direction"] == "fwd+bwd"
    assert answer.see_also == {"fwd+bwd": "longca advise -m causal -s 16K"}, "which is about their sum"
    with pytest.raises(UserError, match=r"forward and backward together: the nearest have 16K tokens"):
        longca.choose("causal", file, seqlen="8K", direction="fwd+bwd")


def test_a_ranking_says_over_how_many_draws_it_was_taken(tmp_path: Path):
    documents = {"mask": "causal_document", "corpus": "prolong64k"}
    rates = {0: (600.0, 500.0), 1: (600.0, 500.0), 2: (600.0, 700.0)}
    made = [
        row
        for seed, (first, second) in rates.items()
        for kernel, tflops in (("fa3", first), ("fa4", second))
        for row in calls(kernel, tflops, tflops, seed=seed, **documents)
    ]
    file = str(export(made, tmp_path)[2])
    for direction in ("fwd", "fwd+bwd"):
        [ranking] = longca.choose("causal_document", file, seqlen="16K", direction=direction).rankings
        assert ranking.draws_text == "Ranked over 3 draws of the mask: fa3 is the fastest in 2 of them."
        plain = ranking.to_dict()
        assert (plain["draws_shared"], plain["draws_first_won"]) == (3, 2)
    one = str(export(made[:4], tmp_path / "one")[2])
    answer = longca.choose("causal_document", one, seqlen="16K", direction="fwd")
    [ranking] = answer.rankings
    assert ranking.draws_text == "This is one draw of the mask (seed 0): another may rank otherwise."
    assert ranking.over_draws == ("longca advise -m causal_document -s 16K -d fwd --gpu 'H200 SXM' --draws 8")
    assert "This is one draw" in answer._repr_html_()
    causal = str(export(calls("fa3", 600.0, 500.0), tmp_path / "causal")[2])
    [ranking] = longca.choose("causal", causal, seqlen="16K", direction="fwd").rankings
    assert not ranking.draws_text and not ranking.over_draws, "the mask is not drawn"
