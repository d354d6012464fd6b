"""Corpus files: statistics against plain counting, and every kind of damage named in one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.data.corpus import Corpus

DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no bins": ({"bins": []}, "the corpus has no documents"),
    "bins missing": ({"bins": None}, "key 'bins' is missing"),
    "all counts zero": ({"bins": [[1, 4, 0], [5, 9, 0]]}, "the corpus has no documents"),
    "negative count": ({"bins": [[1, 4, -8]]}, "'bins.0.2' = -8"),
    "negative length": ({"bins": [[-1, 4, 8]]}, "'bins.0.0' = -1"),
    "only empty documents": ({"bins": [[0, 0, 8]]}, "'bins.0.1' = 0"),
    "longer than any document": ({"bins": [[1, 1 << 62, 8]]}, "'bins.0.1' = 4611686018427387904"),
    "bin upside down": ({"bins": [[4, 1, 8]]}, "entry 1 of `bins` ends at 1, before it begins at 4"),
    "overlap": (
        {"bins": [[1, 4, 8], [4, 9, 1]]},
        "entry 2 of `bins` begins at 4, but the one before ends at 4",
    ),
    "unsorted": (
        {"bins": [[5, 9, 8], [1, 4, 1]]},
        "entry 2 of `bins` begins at 1, but the one before ends at 9",
    ),
    "a bin of two": ({"bins": [[1, 4]]}, "key 'bins.0.2' is missing"),
    "text for a count": ({"bins": [[1, 4, "many"]]}, "'bins.0.2' = 'many'"),
    "no source": ({"source": None}, "key 'source' is missing"),
    "unknown key": ({"licens": "MIT"}, "unknown key 'licens', did you mean 'licence'?"),
    "unknown unit": ({"unit": "words"}, "'unit' = 'words'"),
    "negative weight": ({"histogram": [[1, 4, -0.5]]}, "'histogram.0.2' = -0.5"),
    "weights all zero": ({"histogram": [[1, 4, 0], [4, 9, 0.0]]}, "all weights of `histogram` are 0"),
    "share of all": ({"long_documents": {"share": 1.0, "lo": 1, "hi": 2}}, "'long_documents.share' = 1.0"),
    "long upside down": (
        {"long_documents": {"share": 0.5, "lo": 9, "hi": 2}},
        "`long_documents` end at 2, before they begin at 9",
    ),
    "histogram upside down": (
        {"histogram": [[4, 1, 1]]},
        "entry 1 of `histogram` ends at 1, before it begins at 4",
    ),
}


@pytest.mark.parametrize(("changes", "expected"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_named_in_one_line(
    write_corpus: Callable[..., Path], changes: dict[str, Any], expected: str
):
    path = write_corpus(**changes)
    with pytest.raises(UserError) as caught:
        Registry("corpus").load("toy")
    message = str(caught.value)
    assert expected in message
    assert message.startswith(f"Corpus '{path}'")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "line 1 is not valid JSON: Expecting value"),
        (b'{"label": "x",\n "bins": [[1, 2', "line 2 is not valid JSON"),
        (b"[1, 2]", "valid dictionary"),
        (b'{"label": "\xff"}', "is not UTF-8 text"),
        (b"NaN", "valid dictionary"),
    ],
)
def test_a_file_that_is_no_corpus(tmp_path: Path, content: bytes, expected: str):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(expected)) as caught:
        Corpus.from_file(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match=r"Cannot read '.*nowhere.json': No such file"):
        Corpus.from_file(tmp_path / "nowhere.json")


def test_registry_names_it(write_corpus: Callable[..., Path]):
    path = write_corpus("my_own", description="What it is.")
    corpus = Registry("corpus").load("my_own")
    assert (corpus.name, corpus.path, corpus.label, corpus.summary) == ("my_own", path, "Toy", "What it is.")


@pytest.fixture
def toy(write_corpus: Callable[..., Path]) -> tuple[Corpus, np.ndarray, np.ndarray]:
    """The toy corpus, and each of its lengths with the number of documents expected of it."""
    bins = [[0, 4, 8], [5, 5, 3], [6, 8, 0], [10, 19, 2], [60, 300, 1]]
    corpus = Corpus.from_file(write_corpus(bins=bins))
    lengths = np.concatenate([np.arange(max(lo, 1), hi + 1) for lo, hi, _ in bins])
    counts = np.concatenate(
        [np.full(hi + 1 - max(lo, 1), count / (hi + 1 - max(lo, 1))) for lo, hi, count in bins]
    )
    return corpus, lengths, counts


def test_statistics_are_those_of_the_documents(toy: tuple[Corpus, np.ndarray, np.ndarray]):
    corpus, lengths, counts = toy
    assert corpus.num_documents == 14
    assert corpus.num_tokens == pytest.approx((lengths * counts).sum())
    assert corpus.mean_length == pytest.approx((lengths * counts).sum() / 14)
    assert corpus.longest == 300


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 12, 19, 20, 64, 299, 300, 10_000])
def test_shares_are_those_of_the_documents(toy: tuple[Corpus, np.ndarray, np.ndarray], length: int):
    corpus, lengths, counts = toy
    inside = lengths <= length
    expected = counts[inside].sum() / 14, (lengths * counts)[inside].sum() / (lengths * counts).sum()
    assert corpus.up_to(length) == pytest.approx(expected)


def test_facts_are_plain_and_add_up(toy: tuple[Corpus, np.ndarray, np.ndarray]):
    facts = json.loads(json.dumps(toy[0].facts()))
    assert [row["up_to"] for row in facts["by_length"]] == [64, 128, 256, 512]
    assert sum(row["documents"] for row in facts["by_length"]) == pytest.approx(1)
    assert sum(row["tokens"] for row in facts["by_length"]) == pytest.approx(1)
    assert facts["has_histogram"] is False
    assert facts["unit"] == "tokens"


def test_facts_of_short_documents(write_corpus: Callable[..., Path]):
    facts = Corpus.from_file(write_corpus()).facts()
    assert facts["by_length"] == [{"up_to": 64, "documents": pytest.approx(1), "tokens": pytest.approx(1)}]


def test_digest_names_the_numbers_only(write_corpus: Callable[..., Path]):
    first = Corpus.from_file(write_corpus("one"))
    assert first.digest == Corpus.from_file(write_corpus("two", label="Other", notes=["same numbers"])).digest
    assert first.digest != Corpus.from_file(write_corpus("three", bins=[[1, 4, 9]])).digest
    assert first.digest != Corpus.from_file(write_corpus("four", histogram=[[1, 4, 1.0]])).digest
    mixed = {"share": 0.5, "lo": 8, "hi": 9}
    assert (
        len(
            {
                corpus.digest
                for corpus in (
                    first,
                    *(
                        Corpus.from_file(write_corpus("five", long_documents=long))
                        for long in (mixed, mixed | {"share": 0.6})
                    ),
                )
            }
        )
        == 3
    )
