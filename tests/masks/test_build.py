"""From names to masks: what may be asked, and what is said otherwise."""

import numpy as np
import pytest

from longca.core.errors import UserError
from longca.core.schema import MOST_TOKENS
from longca.lab.studies.cell import Cell
from longca.lab.studies.masks import cell_mask
from longca.masks import build_mask
from longca.masks.build import MaskBuilder
from tests.helpers.masks.strategies import WITH_DOCUMENTS


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("casual", {"seqlen": 8}, "Unknown mask 'casual': did you mean 'causal'"),
        ("sliding_window", {"seqlen": 8, "windw": 3}, "unknown key 'windw', did you mean 'window'"),
        ("full", {"seqlen": 8, "window": 3}, "unknown key 'window'"),
        ("sliding_window", {"seqlen": 8, "window": -1}, "'window' = -1"),
        ("sliding_window", {"seqlen": 8, "window": 1.5}, "'window' = 1.5"),
        ("full", {"seqlen": 0}, "cannot have 0 tokens"),
        ("full", {"seqlen": -4}, "cannot have -4 tokens"),
        ("full", {"seqlen": 1 << 31}, "cannot have 2147483648 tokens. Give at most 2147483647"),
        ("sliding_window", {"seqlen": 8, "window": 1 << 63}, "'window' = 9223372036854775808"),
        ("causal_sliding_window", {"seqlen": 8, "window": 10**30}, "'window' = 1000"),
        ("global_sliding_window", {"seqlen": 8, "window": 1 << 63}, "'window' = 9223372036854775808"),
        ("global_sliding_window", {"seqlen": 8, "num_global": 1 << 63}, "'num_global' = 9223372036854775808"),
        ("block_causal_document", {"seqlen": 8, "block": 1 << 63}, "'block' = 9223372036854775808"),
        ("full", {"seqlen": 8, "num_kv_heads": 0}, "cannot have 0 KV heads"),
        ("full", {"seqlen": 8, "seed": -1}, "cannot have -1 as its seed"),
        ("block_sparse_uniform", {"seqlen": 128, "density": 0}, "'density' = 0"),
        ("block_sparse_variable", {"seqlen": 128, "density": 1.5}, "'density' = 1.5"),
        ("block_sparse_uniform", {"seqlen": 128, "density": float("nan")}, "'density' = nan"),
        ("block_sparse_uniform", {"seqlen": 128, "scores": "topk"}, "'scores' = 'topk'"),
        ("block_sparse_uniform", {"seqlen": 100}, "multiple of the block, 64"),
        ("block_sparse_uniform", {"seqlen": 128, "block": 0}, "'block' = 0"),
        ("block_sparse_variable", {"seqlen": 100}, "at least the mean block, 128"),
        ("block_causal_document", {"seqlen": 1000, "paper_compat": True}, "multiple of the block, 1024"),
        ("global_sliding_window", {"seqlen": 5, "paper_compat": True}, "6 tokens at least"),
        (
            "full_document",
            {"seqlen": 8, "documents": [3, 4]},
            "Documents of 7 tokens do not fill a mask of 8",
        ),
        ("full_document", {"seqlen": 8, "documents": [8, 0]}, "positive lengths"),
        ("full_document", {"seqlen": 8, "documents": [9, -1]}, "positive lengths"),
        ("full_document", {"seqlen": 8, "documents": []}, "Documents of 0 tokens"),
        (
            "full_document",
            {"seqlen": 8, "documents": [1 << 62] * 4 + [8]},
            "Documents of 18446744073709551624 tokens",
        ),
        ("full_document", {"seqlen": 8, "documents": [4.6, 4.6]}, "must be a list of whole numbers"),
        ("full_document", {"seqlen": 8, "documents": [[4, 4]]}, "must be a list of whole numbers"),
        ("full_document", {"seqlen": 8, "documents": 8}, "must be a list of whole numbers"),
        ("causal", {"seqlen": 8, "documents": [8]}, "'causal' has no documents"),
        ("full_document", {"seqlen": 8, "documents": [[3], [5, 1]]}, "must be a list of whole numbers"),
        (3, {"seqlen": 8}, "Unknown mask 3: known: "),
        (["causal"], {"seqlen": 8}, "Unknown mask ['causal']: known: "),
        (
            "causal",
            {"seqlen": 8, "seed": "x"},
            "cannot have 'x' as its seed. Give a whole number of at least 0",
        ),
        ("causal", {"seqlen": 8, "seed": 1.5}, "cannot have 1.5 as its seed"),
        ("causal", {"seqlen": True}, "cannot have True tokens"),
        (
            "causal",
            {"seqlen": 8, "num_kv_heads": 2.5},
            "cannot have 2.5 KV heads. Give a whole number of at least 1",
        ),
        ("causal_document", {"seqlen": 8, "corpus": 3}, "Unknown corpus 3: known: "),
    ],
)
def test_mistakes_are_told_in_one_line(name, arguments, message):
    with pytest.raises(UserError) as caught:
        build_mask(name, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_params_hold_what_was_given_and_drawn():
    mask = build_mask("prefix_lm_document", seqlen=9, documents=[4, 5], seed=3)
    assert mask.name == "prefix_lm_document"
    assert mask.params["paper_compat"] is False
    assert mask.params["documents"].tolist() == [4, 5]
    assert mask.params["prefix"].shape == (2,)
    drawn = build_mask("global_sliding_window", seqlen=60, paper_compat=True, window=30, num_global=40).params
    assert drawn["window"] == drawn["num_global"] < 20  # what was drawn stands above what was given


def test_one_seed_is_one_mask():
    for name in ("prefix_lm", "block_sparse_uniform", "block_causal_document"):
        first, again, other = (build_mask(name, seqlen=1 << 16, seed=seed) for seed in (4, 4, 5))
        assert first.digest == again.digest != other.digest


def test_a_cell_says_all_that_decides_its_mask():
    cell = Cell(
        kind="kernel",
        kernel="naive",
        mask="block_sparse_uniform",
        mask_params={"block": 16, "density": 0.5},
        seqlen=128,
        num_q_heads=8,
        num_kv_heads=4,
        head_dim=64,
        dtype="bf16",
        direction="fwd",
        seed=7,
    )
    expected = build_mask("block_sparse_uniform", seqlen=128, seed=7, num_kv_heads=4, block=16, density=0.5)
    assert cell_mask(cell).digest == expected.digest
    assert cell_mask(cell).num_groups == 4


def test_many_masks_at_once_are_those_made_alone():
    builder = MaskBuilder()
    for seed in (0, 1):
        for name in (*WITH_DOCUMENTS, "prefix_lm", "causal"):
            together, alone = (
                build(name, seqlen=1 << 14, seed=seed) for build in (builder.build, build_mask)
            )
            assert together.digest == alone.digest and str(together.params) == str(alone.params)
            if together.documents is not None:
                together.documents[0] += 1  # of this mask alone


def test_a_mask_without_groups_is_shared_by_all_heads():
    assert build_mask("causal", seqlen=8, num_kv_heads=4).num_groups == 1
    assert build_mask("block_sparse_uniform", seqlen=64, num_kv_heads=1).num_groups == 1


@pytest.mark.parametrize("paper_compat", [False, True])
@pytest.mark.parametrize("name", WITH_DOCUMENTS)
def test_documents_come_from_the_corpus(name, paper_compat):
    masks = [
        build_mask(name, seqlen=4096, corpus=corpus, seed=1, paper_compat=paper_compat)
        for corpus in (None, "pile")
    ]
    lengths = masks[0].params["documents"]
    assert lengths.dtype == np.int64 and lengths.sum() == 4096 and lengths.min() >= 1
    assert masks[0].digest == masks[1].digest


@pytest.mark.parametrize(
    ("name", "params", "area"),
    [
        ("full", {}, lambda n: n * n),
        ("causal", {}, lambda n: n * (n + 1) // 2),
        ("sliding_window", {"window": 1 << 39}, lambda n: n * n),
        ("sliding_window", {"window": 5}, lambda n: 11 * n - 30),
        ("causal_sliding_window", {"window": 5}, lambda n: 6 * n - 15),
        ("global_sliding_window", {"num_global": 1 << 39}, lambda n: n * n),
        ("global_sliding_window", {"num_global": 3, "window": 0}, lambda n: 6 * n - 9 + n - 3),
        ("block_causal_document", {"block": 1 << 39}, lambda n: n * n),
    ],
)
def test_areas_are_exact_at_the_longest(name, params, area):
    mask = build_mask(name, seqlen=MOST_TOKENS, **params)
    assert mask.area == area(MOST_TOKENS)
    assert mask.traits.full == (mask.area == MOST_TOKENS**2)


TWICE = '''"""A window and the first tokens; some pairs are in both."""

from longca.core.schema import Frozen
from longca.masks import band
from longca.masks.contract import Pattern


class Twice(Pattern):
    label = "Twice"
    family = "heterogeneous"
    definition = "i - j < window or j < sink"

    class Params(Frozen):
        window: int = 3
        first: int = 0

    def build(self, draw, params):
        return draw.mask(band.make(0, draw.seqlen, params.first, 2, hi=0), band.make(0, draw.seqlen, 0, draw.seqlen, -params.window, 0))
'''  # noqa: E501


@pytest.fixture
def twice(tmp_path, monkeypatch):
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "twice.py").write_text(TWICE)
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))


def test_a_pattern_whose_bands_overlap_is_refused(twice):
    with pytest.raises(UserError) as error:
        build_mask("twice", seqlen=16)
    assert str(error.value) == (
        "Mask 'twice' with seqlen=16, window=3, first=0 is no mask: bands must be disjoint, and [0 16 0 2 "
        "-∞ 0] and [0 16 0 16 -3 0] are not: both hold queries 0 to 4 of keys 0 to 1. Change its `build`"
    )


def test_a_pattern_whose_bands_leave_the_mask_is_refused(twice):
    with pytest.raises(
        UserError, match=r"first=-1 is no mask: its band \[0 16 -1 2 -∞ 0\] leaves the 16 × 16 pairs"
    ):
        build_mask("twice", seqlen=16, first=-1)


def test_a_plan_refuses_overlapping_bands(twice, longca, tmp_path):
    study = tmp_path / "mine.yaml"
    study.write_text(
        'grids:\n  - {kernel: [naive, sdpa], mask: [causal, {twice: {window: 5}}], seqlen: 64, heads: "4:2", '
        "head_dim: 64}\n"
    )
    done = longca("plan", study)
    assert done.returncode == 2 and done.stdout == ""
    assert "Mask 'twice' with seqlen=64, window=5, first=0 is no mask: bands must be disjoint" in done.stderr
    assert done.stderr.count("\n") == 1
