"""The samplers: what every draw must be, what it must look like on average, and the exact values of some."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.data.corpus import Corpus
from longca.data.sampler import draw, draw_as_paper, draw_pieces, sample_documents
from tests.helpers.support import examples

SHIPPED = ("pile", "prolong512k", "prolong64k")

GOLDEN = {  # 8192 tokens, seed 0
    "pile": [2039, 103, 217, 426, 540, 2048, 422, 457, 309, 18, 343, 1270],
    "prolong64k": [61, 2048, 62, 2048, 49, 2048, 1876],
    "prolong512k": [1669, 2048, 2048, 915, 628, 323, 103, 203, 255],
}
GOLDEN_AS_PAPER = {
    "pile": [353, 559, 102, 421, 322, 13, 129, 314, 113, 768, 618, 469, 141, 3608, 88, 86, 88],
    "prolong64k": [545, 719, 166, 581, 482, 27, 161, 474, 177, 864, 778, 661, 205, 2352],
    "prolong512k": [481, 655, 134, 549, 418, 45, 161, 410, 145, 832, 682, 597, 173, 2252, 88, 86, 450, 34],
}
# (corpus, K tokens, documents, density of `full_document`), from the study's released code at its seed
AS_MEASURED_IN_THE_STUDY = [
    ("pile", 1, 4, 0.427),
    ("pile", 2, 8, 0.183),
    ("pile", 4, 12, 0.118),
    ("pile", 8, 17, 0.225),
    ("prolong64k", 16, 25, 0.110),
    ("prolong64k", 24, 43, 0.0595),
    ("prolong64k", 32, 59, 0.0393),
    ("prolong64k", 40, 69, 0.0324),
    ("prolong64k", 48, 77, 0.0281),
]
# (GPUs of 8K tokens, mean, least and largest density of `full_document_long` over 30 masks, median number of
# documents), likewise
LONG_AS_MEASURED_IN_THE_STUDY = [
    (8, 0.203, 0.117, 0.334, 43.5),
    (16, 0.132, 0.077, 0.247, 89),
    (32, 0.084, 0.046, 0.188, 147),
    (48, 0.094, 0.031, 0.188, 116),
    (64, 0.092, 0.026, 0.158, 132),
    (96, 0.083, 0.025, 0.152, 206.5),
]


@given(
    corpus=st.sampled_from((*SHIPPED, "prolong512k_long")),
    seqlen=st.integers(1, 20_000) | st.integers(1, 40),
    seed=st.integers(0, 2**31),
    paper_compat=st.booleans(),
)
@examples(150)
def test_documents_fill_the_sequence(corpus: str, seqlen: int, seed: int, paper_compat: bool):
    lengths = sample_documents(corpus, seqlen, seed=seed, paper_compat=paper_compat)
    assert lengths.dtype == np.int64
    assert lengths.sum() == seqlen
    assert lengths.min() >= 1
    if not paper_compat and seqlen >= 4:
        assert lengths.max() <= 0.25 * seqlen


@pytest.mark.parametrize("paper_compat", [False, True])
@pytest.mark.parametrize("seqlen", [1, 2, 3, 7])
def test_few_tokens(seqlen: int, paper_compat: bool):
    lengths = sample_documents("pile", seqlen, seed=3, paper_compat=paper_compat)
    assert lengths.sum() == seqlen
    assert lengths.min() == 1 or paper_compat


def test_a_million_tokens():
    lengths = sample_documents("prolong512k", 1 << 20, seed=0)
    assert lengths.sum() == 1 << 20
    assert lengths.max() <= 1 << 18


@pytest.mark.parametrize("corpus", SHIPPED)
@pytest.mark.parametrize("paper_compat", [False, True])
def test_seeds_decide(corpus: str, paper_compat: bool):
    draws = [
        sample_documents(corpus, 8192, seed=seed, paper_compat=paper_compat).tolist() for seed in (5, 5, 6)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_corpus_and_length_are_part_of_the_seed():
    content = Registry("corpus").load("pile").content
    first, other = (draw(Corpus(content, name), 8192, seed=0).tolist() for name in ("one", "other"))
    assert first != other
    assert draw(Corpus(content, "one"), 8193, seed=0).tolist()[:3] != first[:3]


@pytest.mark.parametrize("corpus", SHIPPED)
def test_golden_values(corpus: str):
    assert sample_documents(corpus, 8192, seed=0).tolist() == GOLDEN[corpus]
    assert sample_documents(corpus, 8192, seed=0, paper_compat=True).tolist() == GOLDEN_AS_PAPER[corpus]


@pytest.mark.parametrize(("corpus", "kilotokens", "num_documents", "density"), AS_MEASURED_IN_THE_STUDY)
def test_paper_compat_draws_the_documents_of_the_study(
    corpus: str, kilotokens: int, num_documents: int, density: float
):
    seqlen = kilotokens * 1024
    lengths = sample_documents(corpus, seqlen, seed=0, paper_compat=True)
    assert len(lengths) == num_documents
    assert (lengths**2).sum() / seqlen**2 == pytest.approx(density, rel=5e-3)


@pytest.mark.parametrize(
    ("world", "mean", "least", "largest", "num_documents"), LONG_AS_MEASURED_IN_THE_STUDY
)
def test_the_masks_of_the_studys_distributed_runs(
    world: int, mean: float, least: float, largest: float, num_documents: float
):
    seqlen = 8192 * world
    draws = [sample_documents("prolong512k_long", seqlen, seed=seed, paper_compat=True) for seed in range(30)]
    densities = [(lengths**2).sum() / seqlen**2 for lengths in draws]
    assert (np.mean(densities), min(densities), max(densities)) == pytest.approx(
        (mean, least, largest), abs=6e-4
    )
    assert np.median([len(lengths) for lengths in draws]) == num_documents
    later = sample_documents("prolong512k_long", seqlen, seed=30, paper_compat=True).tolist()
    assert later not in [lengths.tolist() for lengths in draws]


@pytest.mark.parametrize("paper_compat", [False, True])
def test_long_documents_have_their_share_of_a_sequence(write_corpus: Callable[..., Path], paper_compat: bool):
    write_corpus("mixed", histogram=[[1, 9, 1.0]], long_documents={"share": 0.6, "lo": 100, "hi": 200})
    lengths = sample_documents("mixed", 100_000, seed=1, paper_compat=paper_compat)
    long = lengths[lengths > 19]
    assert 59_800 < long.sum() <= 60_000, "but for the last one, which is cut"
    assert long.mean() == pytest.approx(150, rel=0.05)
    assert (lengths[:1000] > 19).any() and (lengths[-1000:] > 19).any(), "they are spread over the sequence"
    assert (lengths == sample_documents("mixed", 100_000, seed=1, paper_compat=paper_compat)).all()
    assert sample_documents("mixed", 1, seed=0, paper_compat=paper_compat).tolist() == [1]


@pytest.mark.parametrize("corpus", SHIPPED)
def test_mean_of_whole_documents_is_that_of_the_counts(corpus: str):
    source = Registry("corpus").load(corpus)
    lengths = draw_pieces(source, source.longest + 1, 400_000, np.random.default_rng(0))
    assert len(lengths) == 400_000
    assert lengths.mean() == pytest.approx(source.mean_length, rel=0.05)


@pytest.mark.parametrize("cap", [1, 3, 5, 7, 100, 301])
def test_pieces_are_those_of_the_split_corpus(write_corpus: Callable[..., Path], cap: int):
    bins = [[0, 4, 800], [5, 5, 300], [6, 20, 1000], [60, 300, 50]]
    source = Corpus.from_file(write_corpus(bins=bins))
    expected = np.zeros(cap + 1)
    for lo, hi, count in bins:
        for length in range(max(lo, 1), hi + 1):
            share = count / (hi + 1 - max(lo, 1))
            expected[cap] += length // cap * share
            expected[length % cap] += share
    expected[0] = 0
    pieces = draw_pieces(source, cap, 200_000, np.random.default_rng(1))
    actual = np.bincount(pieces, minlength=cap + 1) / len(pieces)
    assert pieces.max() <= cap
    assert np.abs(actual - expected / expected.sum()).max() < 0.01


@pytest.mark.parametrize("seqlen", [4, 8192])
def test_pieces_of_the_longest_documents_are_whole(write_corpus: Callable[..., Path], seqlen: int):
    source = Corpus.from_file(write_corpus(bins=[[1, 20, 5], [1 << 39, 1 << 40, 3]]))
    assert draw(source, seqlen, seed=0).tolist() == [seqlen // 4] * 4


def test_open_last_bin_inflates_the_lengths_of_the_paper():
    source = Registry("corpus").load("pile")
    lengths = draw_as_paper(source, 1 << 30, seed=0)[:-1]
    last = source.content.histogram[-1]
    in_last = lengths[lengths > last.lo]
    assert in_last.mean() == pytest.approx((last.lo + last.hi) / 2, rel=0.15)
    assert lengths.mean() > 10 * source.mean_length


def test_paper_compat_needs_a_histogram(write_corpus: Callable[..., Path]):
    write_corpus("toy")
    assert sample_documents("toy", 64, seed=0).sum() == 64
    with pytest.raises(UserError, match="Corpus 'toy' has no histogram"):
        sample_documents("toy", 64, seed=0, paper_compat=True)


def test_a_document_of_the_paper_has_a_token(write_corpus: Callable[..., Path]):
    write_corpus("hollow", histogram=[[0, 1, 1.0]])
    assert sample_documents("hollow", 5, seed=0, paper_compat=True).tolist() == [1] * 5


@pytest.mark.parametrize("seqlen", [0, -8])
def test_no_tokens_to_fill(seqlen: int):
    with pytest.raises(UserError, match=f"A sequence cannot have {seqlen} tokens"):
        sample_documents("pile", seqlen, seed=0)


def test_unknown_corpus_offers_the_nearest():
    with pytest.raises(UserError, match="Unknown corpus 'prolong63k': did you mean 'prolong64k'"):
        sample_documents("prolong63k", 64, seed=0)
