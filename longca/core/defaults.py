"""The call that is meant where a question or a study leaves something out: that of most committed records."""

from __future__ import annotations

SEQLEN, HEADS, HEAD_DIM, DTYPE = "32K", "64:8", 128, "bf16"
CORPORA = {1: "pile", 12289: "prolong64k"}
"""first length → corpus of document lengths from there on: documents of the Pile do not fill longer sequences"""
DRAWS = 8
"""sequences over which a prediction is made, for masks that are drawn"""


def usual_corpus(seqlen: int) -> str:
    """The corpus of document lengths for sequences of so many tokens."""
    return CORPORA[max((start for start in CORPORA if start <= seqlen), default=1)]
