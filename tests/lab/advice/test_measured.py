"""Measured cells that an answer names beside its predictions."""

import subprocess
import sys
from typing import Any

import pytest

from longca.lab.advice import measured
from longca.lab.advice.ranking import advise
from longca.masks import Mask
from tests.helpers.support import ROOT

ASKED: dict[str, Any] = {"gpu": "h100", "kernels": ["band"], "strategies": ["ring_allgather"]}


def test_the_cell_of_the_nearest_length_has_the_same_way_mask_heads_gpus_and_directions():
    advice = advise("causal_document", seqlen="20K", gpus=2, draws=1, **ASKED)
    [beside] = advice.measured
    assert (beside.method, beside.gpus, beside.seqlen) == ("ring_allgather+band", 2, 16384)
    assert len(beside.cell_ids) == 2 and not beside.is_same_length and beside.seed == 0
    assert beside.of_prediction == pytest.approx(beside.predicted_ms / beside.ms)
    assert 0.8 < beside.of_prediction < 1.25, "the models are fitted on these records"
    assert str(beside).startswith("ring_allgather+band measured: ") and "at 16K on 2 GPUs" in str(beside)
    assert "× the prediction for that setting" in str(beside)
    plain = advice.to_dict()["measured"]
    assert [one["text"] for one in plain] == [str(beside)] and str(beside) in advice._repr_html_()


def test_the_prediction_is_that_of_the_very_cell():
    advice = advise("causal_document", seqlen="16K", gpus=2, draws=1, direction="fwd", **ASKED)
    [beside] = advice.measured
    assert beside.is_same_length and "nearest" not in str(beside)
    assert beside.predicted_ms == pytest.approx(advice.best.prediction.seconds * 1e3)


@pytest.mark.parametrize(
    "question",
    [
        {"mask": "causal_document", "gpus": 64, "seqlen": "64K", "draws": 1},
        {"mask": "causal", "gpus": 2, "num_q_heads": 48, "num_kv_heads": 6},
        {"mask": "causal", "gpus": 2, "gpu": "a100 sxm"},
        {"mask": Mask.from_documents([4096, 4096]), "gpus": 2},
    ],
)
def test_what_no_record_has_is_not_named(question: dict[str, Any]):
    asked = {"mask": "causal", "seqlen": "16K", "direction": "fwd", **ASKED, **question}
    if isinstance(asked["mask"], Mask):
        del asked["seqlen"]
    assert advise(asked.pop("mask"), **asked).measured == ()


def test_cells_by_the_protocol_of_the_models_come_first():
    advice = advise("causal", seqlen="32K", direction="fwd", kernels=["fa3"])
    [beside] = advice.measured
    assert beside.rests == advice.question.fitted.rests and beside.seqlen == 32768


def test_records_are_not_read_where_pandas_is_missing(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: str) -> None:
        raise measured.UserError("no pandas")

    monkeypatch.setattr(measured, "check_installed", refuse)
    assert advise("causal", seqlen="32K", direction="fwd", kernels=["fa3"]).measured == ()


def test_the_command_names_it():
    command = "advise causal_document -s 16K -w 2 --gpu h100 -k band -d fwd --draws 1"
    done = subprocess.run(
        [sys.executable, "-m", "longca", *command.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    said = " ".join(done.stdout.split())
    assert "measured: " in said and "× the prediction for that setting." in said
    assert "longca choose causal_document -s 16K -w 2 -d fwd --gpu h100" in said
