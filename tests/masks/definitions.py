"""The 14 patterns pair by pair, in plain Python: what the bands are held against.

Each function says whether query i sees key j; `facts` are the mask's parameters and what was drawn
(`Mask.params`).
"""

from bisect import bisect_right
from itertools import accumulate

import numpy as np


def document(i, facts):
    return bisect_right(list(accumulate(facts["documents"].tolist())), i)


def start(i, facts):
    return sum(facts["documents"][: document(i, facts)].tolist())


def full(i, j, seqlen, facts):
    return True


def causal(i, j, seqlen, facts):
    return j <= i


def full_document(i, j, seqlen, facts):
    return document(i, facts) == document(j, facts)


def causal_document(i, j, seqlen, facts):
    return document(i, facts) == document(j, facts) and j <= i


def sliding_window(i, j, seqlen, facts):
    if facts["paper_compat"] and facts["window"] < seqlen:
        return 0 <= i - j <= facts["window"]
    return abs(i - j) <= facts["window"]


def causal_sliding_window(i, j, seqlen, facts):
    return 0 <= i - j <= facts["window"]


def shared_question(i, j, seqlen, facts):
    if document(i, facts) == document(j, facts):
        return j <= i
    return document(j, facts) == 0


def causal_blockwise(i, j, seqlen, facts):
    last = len(facts["documents"]) - 1
    return j <= i and (document(i, facts) == document(j, facts) or document(i, facts) == last)


def prefix_lm(i, j, seqlen, facts):
    return j <= i or j < facts["prefix"] or (facts["paper_compat"] and j == facts["prefix"])


def prefix_lm_document(i, j, seqlen, facts):
    number = document(i, facts)
    if number != document(j, facts):
        return False
    inside, prefix = j - start(j, facts), facts["prefix"][number]
    return j <= i or inside < prefix or (facts["paper_compat"] and inside == prefix)


def global_sliding_window(i, j, seqlen, facts):
    size, window = facts["num_global"], facts["window"]
    if not facts["paper_compat"]:
        return i < size or j < size or abs(i - j) <= window
    if j < size:  # bottom-right aligned over all rows: only the last of them see anything, the last one all
        return seqlen - 1 - i <= size - 1 - j
    if (
        i < size
    ):  # bottom-right aligned over the first rows: row size - 1 sees all columns, each before it one less
        return seqlen - 1 - j >= size - 1 - i
    return abs(i - j) <= window


def block_causal_document(i, j, seqlen, facts):
    return document(i, facts) == document(j, facts) and j // facts["block"] <= i // facts["block"]


DEFINITIONS = {
    function.__name__: function
    for function in (
        full,
        causal,
        full_document,
        causal_document,
        sliding_window,
        causal_sliding_window,
        shared_question,
        causal_blockwise,
        prefix_lm,
        prefix_lm_document,
        global_sliding_window,
        block_causal_document,
    )
}


def raster(name, seqlen, facts):
    """Bool (S, S), pair by pair."""
    sees = DEFINITIONS[name]
    return np.array([[bool(sees(i, j, seqlen, facts)) for j in range(seqlen)] for i in range(seqlen)])


def block_raster(grid, seqlen):
    """Bool (G, S, S): a pair is visible iff its blocks were chosen."""
    result = np.zeros((len(grid.visible), seqlen, seqlen), dtype=bool)
    for group in range(len(grid.visible)):
        rows, cols = grid.q_bounds[group].tolist(), grid.k_bounds[group].tolist()
        for i in range(seqlen):
            for j in range(seqlen):
                result[group, i, j] = grid.visible[
                    group, bisect_right(rows, i) - 1, bisect_right(cols, j) - 1
                ]
    return result
