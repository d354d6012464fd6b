"""The shipped corpora hold what was released."""

import json

import pytest

from longca.core.plugin import Registry
from longca.data.corpus import CorpusFile

SHIPPED = ("pile", "prolong512k", "prolong64k")


@pytest.mark.parametrize(
    ("name", "num_documents", "mean_length", "longest", "mean_of_histogram"),
    [
        ("pile", 153_407_073, 870, 9_323_147, 11_219),
        ("prolong64k", 25_565_583, 1_014, 65_536, 1_017),
        ("prolong512k", 20_336_686, 1_003, 475_862, 2_381),
    ],
)
def test_numbers(name: str, num_documents: int, mean_length: int, longest: int, mean_of_histogram: int):
    corpus = Registry("corpus").load(name)
    histogram = corpus.content.histogram
    weight = sum(part.weight for part in histogram)
    assert corpus.num_documents == num_documents
    assert round(corpus.mean_length) == mean_length
    assert corpus.longest == longest
    assert weight == pytest.approx(1, abs=6e-4)
    assert (
        round(sum((part.lo + part.hi) / 2 * part.weight for part in histogram) / weight) == mean_of_histogram
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_bins_leave_no_gap(name: str):
    content = Registry("corpus").load(name).content
    assert all(two.lo == first.hi + 1 for first, two in zip(content.bins, content.bins[1:], strict=False))
    assert all(
        two.lo == first.hi for first, two in zip(content.histogram, content.histogram[1:], strict=False)
    )


@pytest.mark.parametrize("name", Registry("corpus", []).names())
def test_file_is_as_we_write_it(name: str):
    text = Registry("corpus").load(name).path.read_text(encoding="utf-8")
    content = CorpusFile.model_validate(json.loads(text))
    assert content.to_json() == text
    assert content.source


def test_the_shipped_are_there():
    assert set(SHIPPED) <= set(Registry("corpus", []).names())


def test_the_mixture_is_of_the_corpus_that_it_names():
    mixed, plain = (Registry("corpus").load(name).content for name in ("prolong512k_long", "prolong512k"))
    assert (mixed.bins, mixed.histogram) == (plain.bins, plain.histogram)
    assert plain.long_documents is None and mixed.long_documents is not None
