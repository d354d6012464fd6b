"""The table of a study's draws."""

import json

from longca.core.plugin import Registry
from longca.data.sampler import sample_documents
from longca.data.table import sample_table
from longca.lab.studies.cell import Cell

CELL = Cell(
    kind="kernel",
    kernel="any",
    mask="causal_document",
    corpus="pile",
    seqlen=512,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=64,
    dtype="bf16",
    direction="fwd",
    seed=1,
)


def test_each_draw_once_and_in_order():
    cells = [
        CELL,
        CELL.model_copy(update={"direction": "bwd"}),
        CELL.model_copy(update={"mask": "shared_question"}),
        CELL.model_copy(update={"corpus": None, "mask": "causal"}),
        CELL.model_copy(update={"seed": 2}),
        CELL.model_copy(update={"seqlen": 256}),
        CELL.model_copy(update={"corpus": "prolong64k"}),
        *(CELL.model_copy(update={"mask_params": {"paper_compat": compat}}) for compat in (True, False)),
    ]
    rows = sample_table(cells)
    assert [(row["corpus"], row["seqlen"], row["seed"], row["paper_compat"]) for row in rows] == [
        ("pile", 512, 1, False),
        ("pile", 512, 2, False),
        ("pile", 256, 1, False),
        ("prolong64k", 512, 1, False),
        ("pile", 512, 1, True),
    ]
    assert json.loads(json.dumps(rows)) == rows


def test_a_row_says_what_was_drawn():
    [row] = sample_table([CELL])
    lengths = sample_documents("pile", 512, seed=1).tolist()
    assert row == {
        "corpus": "pile",
        "seqlen": 512,
        "seed": 1,
        "paper_compat": False,
        "num_documents": len(lengths),
        "longest": max(lengths),
        "lengths": lengths,
        "digest": Registry("corpus").load("pile").digest,
    }


def test_no_documents_no_rows():
    assert sample_table([CELL.model_copy(update={"corpus": None})]) == []
