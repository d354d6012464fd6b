"""The patterns pair by pair, in plain Python: what the bands are held against.

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
    inside = j - start(j, facts)
    prefix = facts["prefix"][number]
    return j <= i or inside < prefix or (facts["paper_compat"] and inside == prefix)


def global_sliding_window(i, j, seqlen, facts):
    size = facts["num_global"]
    window = facts["window"]
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


def node(i, facts):
    return bisect_right(list(accumulate(facts["node_lengths"].tolist())), i)


def prefix_tree(i, j, seqlen, facts):
    above = node(j, facts)
    own = node(i, facts)
    while own > above:
        own = int(facts["node_above"][own]) - 1
    return j <= i and own == above


def speculative_tree(i, j, seqlen, facts):
    return prefix_tree(i, j, seqlen, facts)  # the context is the root, and each drafted token a node


def sink_local(i, j, seqlen, facts):
    return j <= i and (j < facts["num_sinks"] or i - j <= facts["window"])


def chunked_local(i, j, seqlen, facts):
    return j <= i and j // facts["chunk"] == i // facts["chunk"]


def longformer(i, j, seqlen, facts):
    dilation = facts["dilation"]
    is_near = abs(i - j) <= facts["window"] * dilation and (i - j) % dilation == 0
    return i < facts["num_global"] or j < facts["num_global"] or is_near


def hstu(i, j, seqlen, facts):
    if document(i, facts) != document(j, facts):
        return False
    begin = start(i, facts)
    length = facts["documents"][document(i, facts)]
    first_candidate = begin + max(length - facts["num_candidates"], 0)
    if j >= first_candidate:
        return i == j
    return j <= i or i < begin + facts["num_context"]


OF_THE_STUDY = {
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
DEFINITIONS = OF_THE_STUDY | {
    function.__name__: function
    for function in (prefix_tree, speculative_tree, sink_local, chunked_local, longformer, hstu)
}


def raster(name, seqlen, facts):
    """Bool (S, S), pair by pair."""
    sees = DEFINITIONS[name]
    return np.array([[bool(sees(i, j, seqlen, facts)) for j in range(seqlen)] for i in range(seqlen)])


def block_raster(grid, seqlen):
    """Bool (G, S, S): a pair is visible iff its blocks were chosen."""
    result = np.zeros((len(grid.visible), seqlen, seqlen), dtype=bool)
    for group in range(len(grid.visible)):
        rows = grid.q_bounds[group].tolist()
        cols = grid.k_bounds[group].tolist()
        for i in range(seqlen):
            for j in range(seqlen):
                result[group, i, j] = grid.visible[
                    group, bisect_right(rows, i) - 1, bisect_right(cols, j) - 1
                ]
    return result
