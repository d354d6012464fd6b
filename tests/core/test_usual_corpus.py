"""Defaults of questions and studies."""

from longca.core.schema import parse
from longca.lab.studies.cell import usual_corpus
from longca.lab.studies.study import Study


def test_the_corpus_is_that_of_the_records_of_a_length():
    assert [usual_corpus(tokens) for tokens in (1, 12288, 12289, 1 << 20)] == [
        "pile",
        "pile",
        "prolong64k",
        "prolong64k",
    ]


def test_a_study_without_a_corpus_has_the_same():
    grid = {
        "kernel": ["sdpa"],
        "mask": "causal_document",
        "seqlen": ["8K", "64K"],
        "heads": "64:8",
        "direction": "fwd",
    }
    cells = parse(Study, {"name": "own", "grids": [grid]}, "it").cells()
    assert {cell.seqlen: cell.corpus for cell in cells} == {8192: "pile", 65536: "prolong64k"}
    given = parse(Study, {"name": "own", "grids": [{**grid, "corpus": "pile"}]}, "it").cells()
    assert {cell.corpus for cell in given} == {"pile"}
