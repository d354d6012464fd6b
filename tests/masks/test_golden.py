"""One mask of each pattern by its digest: other machines, and later versions of numpy, must draw the same.

A digest that changes here changes what every record of that mask means. If that is wanted, say so in the
change and set the new value; records made before are then of other masks.
"""

import pytest

from longca.masks import build_mask
from tests.helpers.masks.strategies import PATTERNS

DOCUMENTS = [100, 1, 60, 351]
GOLDEN = [
    ("full", {}, "00ff599b0c4c2703"),
    ("causal", {}, "c5f8218e3b4f15dd"),
    ("full_document", {"documents": DOCUMENTS}, "8811defbf7211086"),
    ("causal_document", {"documents": DOCUMENTS}, "5a8f9da45d6a1d51"),
    ("sliding_window", {"window": 64}, "635f5771dde9cc18"),
    ("sliding_window", {"window": 48, "paper_compat": True}, "7b2475f54892b6c0"),
    ("causal_sliding_window", {"window": 64}, "016752b06441126d"),
    ("shared_question", {"documents": DOCUMENTS}, "e89b4cc0e5e5fe4b"),
    ("causal_blockwise", {"documents": DOCUMENTS}, "8f1323cc97e6bcd8"),
    ("prefix_lm", {}, "cff6a2b77f0d2163"),
    ("prefix_lm", {"paper_compat": True}, "658651e618990e2c"),
    ("prefix_lm_document", {"documents": DOCUMENTS}, "44339affe401a7ba"),
    ("prefix_lm_document", {"documents": DOCUMENTS, "paper_compat": True}, "18f24820f3b19016"),
    ("global_sliding_window", {"num_global": 32, "window": 64}, "525a6bc414904476"),
    ("global_sliding_window", {"paper_compat": True}, "2aff68856cd1b7d2"),
    ("block_causal_document", {"block": 32}, "f6d214f62a660ec3"),
    ("block_sparse_uniform", {"block": 16, "num_kv_heads": 2}, "b34643c7d84aa3db"),
    ("block_sparse_uniform", {"block": 16, "num_kv_heads": 2, "scores": "qk"}, "34e51a697b46eff6"),
    ("block_sparse_variable", {"mean_block": 16, "num_kv_heads": 2}, "81a8373e316f54dd"),
    ("prefix_tree", {}, "26157bd3aca6b60e"),
    ("prefix_tree", {"order": "breadth"}, "96213d3f07fca01f"),
    ("speculative_tree", {}, "a234da58a024e7c6"),
    ("speculative_tree", {"order": "depth", "new_tokens": 96}, "2a24200d749ee543"),
    ("causal_document", {"documents": DOCUMENTS, "new_tokens": 96}, "9adaa42a36696d28"),
    ("sink_local", {"window": 64}, "ccafd228fa604131"),
    ("chunked_local", {"chunk": 100}, "50298c89df1892ad"),
    ("longformer", {"window": 8, "dilation": 4}, "695044b895592afc"),
    ("hstu", {"documents": DOCUMENTS}, "868736ff9e7f9c35"),
]


@pytest.mark.parametrize(("name", "arguments", "digest"), GOLDEN)
def test_digest(name, arguments, digest):
    assert build_mask(name, seqlen=512, seed=1, **arguments).digest == digest


def test_each_pattern_is_in_the_table_and_no_two_masks_are_equal():
    assert {name for name, _, _ in GOLDEN} == set(PATTERNS)
    assert len({digest for _, _, digest in GOLDEN}) == len(GOLDEN)
