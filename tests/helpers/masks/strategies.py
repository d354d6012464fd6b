"""Random masks for hypothesis."""

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from longca.masks import Mask, band, build_mask
from tests.helpers.masks.definitions import DEFINITIONS, OF_THE_STUDY
from tests.helpers.support import examples

quick = settings(examples(60), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""For every test here: few examples, the same ones each time, so that all of them take seconds on one slow
core."""

WITH_DOCUMENTS = (
    "full_document",
    "causal_document",
    "shared_question",
    "causal_blockwise",
    "prefix_lm_document",
)
DYNAMIC = ("block_sparse_uniform", "block_sparse_variable")
PATTERNS = (*DEFINITIONS, *DYNAMIC)


@st.composite
def documents(draw, seqlen):
    """Lengths that sum to seqlen; one document and documents of one token among them."""
    cuts = (
        draw(st.sets(st.integers(1, seqlen - 1), max_size=draw(st.sampled_from([0, 3, 95]))))
        if seqlen > 1
        else set()
    )
    return np.diff(sorted({0, seqlen} | cuts))


@st.composite
def arguments(draw, name, seqlen):
    """Parameters of that pattern for that length, extremes among them."""
    size = st.one_of(st.sampled_from([0, 1, seqlen - 1, seqlen, 2 * seqlen]), st.integers(0, seqlen))
    chosen = {}
    if name in WITH_DOCUMENTS:
        chosen["documents"] = draw(documents(seqlen))
    if name in ("sliding_window", "causal_sliding_window", "global_sliding_window"):
        chosen["window"] = draw(size)
    if name == "global_sliding_window":
        chosen["num_global"] = draw(size)
    if name == "prefix_tree":
        chosen |= {
            "trees": draw(st.integers(1, 4)),
            "levels": draw(st.integers(0, 4)),
            "branches": draw(st.integers(1, 4)),
            "order": draw(st.sampled_from(["depth", "breadth"])),
        }
    if name == "speculative_tree":
        chosen |= {
            "levels": draw(st.integers(1, 9)),
            "branches": draw(st.integers(1, 4)),
            "order": draw(st.sampled_from(["depth", "breadth"])),
        }
    if name == "sink_local":
        chosen |= {"num_sinks": draw(size), "window": draw(size)}
    if name == "chunked_local":
        chosen["chunk"] = max(1, draw(size))
    if name == "longformer":
        chosen |= {"num_global": draw(size), "window": draw(size), "dilation": max(1, draw(size))}
    if name == "hstu":
        chosen |= {
            "documents": draw(documents(seqlen)),
            "num_context": draw(size),
            "num_candidates": draw(size),
        }
    if name == "block_causal_document":
        chosen["block"] = max(1, draw(size))
    if name == "block_sparse_uniform":
        chosen["block"] = draw(st.sampled_from([n for n in range(1, seqlen + 1) if seqlen % n == 0]))
        chosen["scores"] = draw(st.sampled_from(["random", "qk"]))
    if name == "block_sparse_variable":
        chosen["mean_block"] = draw(st.integers(1, seqlen))
    if name in DYNAMIC:
        chosen["density"] = draw(st.sampled_from([1e-3, 0.1, 0.25, 0.5, 0.9, 1.0]))
        chosen["num_kv_heads"] = draw(st.integers(1, 3))
    elif name in OF_THE_STUDY and name not in ("full", "causal", "causal_sliding_window"):
        enough = seqlen >= 6 if name == "global_sliding_window" else seqlen % chosen.get("block", 1) == 0
        chosen["paper_compat"] = enough and draw(st.booleans())
    return chosen


@st.composite
def masks(draw, name=None, max_seqlen=96, names=PATTERNS):
    """A mask of one of the patterns."""
    name = name or draw(st.sampled_from(names))
    seqlen = draw(st.integers(1, max_seqlen))
    return build_mask(name, seqlen=seqlen, seed=draw(st.integers(0, 9)), **draw(arguments(name, seqlen)))


@st.composite
def raw_bands(draw, max_size=20):
    """One band as anybody might write it: perhaps empty, not tight, with infinite or huge offsets."""
    edge = st.integers(0, max_size)
    offset = st.one_of(st.integers(-max_size - 3, max_size + 3), st.sampled_from([-band.INF, band.INF]))
    q0, q1 = sorted((draw(edge), draw(edge)))
    k0, k1 = sorted((draw(edge), draw(edge)))
    return np.array([[q0, q1, k0, k1, draw(offset), draw(offset)]])


@st.composite
def patchworks(draw, max_size=20):
    """A mask with one random band in each tile of a random tiling: disjoint, and like no pattern."""

    def bounds():
        return sorted({0, max_size} | draw(st.sets(st.integers(1, max_size - 1), max_size=3)))

    rows = bounds()
    cols = bounds()
    tiles = []
    for q0, q1 in pairwise(rows):
        for k0, k1 in pairwise(cols):
            low = draw(st.integers(-3, 3))
            high = draw(st.integers(-3, 6))
            tiles.append([q0, q1, k0, k1, k0 - q0 + low, k0 - q0 + high])
    groups = [np.array(tiles)] * draw(st.integers(1, 2))
    return Mask(max_size, max_size, tuple(groups))


def shatter(mask, seed):
    """The same pairs in more bands: each band cut twice, by a random row or column or along a diagonal."""
    rng = np.random.default_rng(seed)

    def split(row):
        q0, q1, k0, k1, lo, hi = row
        way = rng.integers(3)
        if way == 0:
            at = rng.integers(q0, q1 + 1)
            return [[q0, at, k0, k1, lo, hi], [at, q1, k0, k1, lo, hi]]
        if way == 1:
            at = rng.integers(k0, k1 + 1)
            return [[q0, q1, k0, at, lo, hi], [q0, q1, at, k1, lo, hi]]
        at = rng.integers(max(lo, k0 - q1), min(hi, k1 - q0) + 1)
        return [[q0, q1, k0, k1, lo, at], [q0, q1, k0, k1, at + 1, hi]]

    groups = []
    for bands in mask.groups:
        for _ in range(2):
            bands = band.normal(
                np.array([part for row in bands.tolist() for part in split(row)]).reshape(-1, 6)
            )
        groups.append(bands)
    return Mask(mask.seqlen_q, mask.seqlen_k, tuple(groups))
