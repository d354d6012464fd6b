"""The choice of a method for one call: the studies that answer it, and the page's verdict."""

from dataclasses import replace

from longca.lab.report.choose import COLUMNS, CallQuestion
from longca.lab.report.decide.choice import answer, question_of
from longca.lab.report.decide.views import decision
from longca.lab.store.load import committed, load_columns
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from tests.helpers.records import record

H200 = "NVIDIA H200"


def test_a_study_of_a_variant_alone_does_not_answer_beside_what_was_asked():
    """Another study has a variant of the mask, and one of the documents of another corpus, alone."""
    usual = Cell(kind="kernel", kernel="fa3", mask="causal_document", corpus="prolong64k", seqlen=16384, num_q_heads=64,  # noqa: E501
                 num_kv_heads=8, head_dim=128, dtype="bf16", direction="fwd")  # fmt: skip
    variants = [usual.model_copy(update={"corpus": "pile", "kernel": name}) for name in ("flex", "sdpa")]
    of_study = [
        record(cell, tflops=660.0, gpu=H200) for cell in (usual, usual.model_copy(update={"kernel": "sdpa"}))
    ]
    of_other = [
        record(cell, tflops=600.0, gpu=H200).model_copy(update={"study": "other"}) for cell in variants
    ]
    table = derived([*of_study, *of_other])
    left_out = dict.fromkeys(("num_q_heads", "num_kv_heads", "head_dim", "dtype", "gpus", "corpus"))
    question = question_of("causal_document", seqlen="16K", params={}, **left_out)
    [ranking] = answer(table, question, "fwd").rankings
    assert ranking.corpora == ("prolong64k",) and len(ranking.methods) == 2
    [asked] = answer(table, replace(question, corpus="pile"), "fwd").rankings
    assert asked.corpora == ("pile",) and asked.studies == ("other",)


def test_the_answer_is_that_of_the_study_s_page():
    """The difference of repeats is known from all of a study, not from the records of one mask."""
    table, _ = load_columns([file for file in committed() if file.stem == "h100-dense"], COLUMNS)
    study = table.loc[(table.seqlen == 32768) & (table.num_kv_heads == 8) & (table.direction == "fwd")]
    decided = decision(study)
    assert decided
    for mask in ("full", "causal"):
        answered = answer(study, asked(mask), "fwd")
        assert [one.finding.startswith(decided.default.verdicts[mask]) for one in answered.rankings] == [True]


def asked(mask: str) -> CallQuestion:
    return question_of(
        mask,
        seqlen="32K",
        num_q_heads=None,
        num_kv_heads=None,
        head_dim=None,
        dtype=None,
        gpus=None,
        corpus=None,
        params={},
    )
