"""Lengths in bytes and in tokens."""

import json
import sys
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.data.build import in_bytes, in_tokens

HALF_A_CHARACTER = json.loads('"\\ud83d"')


def test_bytes():
    assert list(in_bytes(["", "abc", "ü", "漢字", HALF_A_CHARACTER])) == [0, 3, 2, 6, 3]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """One token a word, with the truncation, padding and special tokens of a model."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[BOS]": 1, "word": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    made.enable_truncation(4)
    made.enable_padding(length=3)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def test_tokens_are_counted_without_the_limits_of_a_model(tokenizer: Path):
    documents = ["", "word", "word " * 700, *["two words"] * 600, HALF_A_CHARACTER]
    assert list(in_tokens(tokenizer)(documents)) == [0, 1, 700, *[2] * 600, 1]


def test_documents_are_taken_as_they_come(tokenizer: Path):
    endless = iter(lambda: "word", None)
    lengths = in_tokens(tokenizer)(endless)
    assert [next(lengths) for _ in range(3)] == [1, 1, 1]


def test_not_a_tokenizer(tmp_path: Path):
    pytest.importorskip("tokenizers")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(UserError, match=r"broken.json' is not a tokenizer") as caught:
        in_tokens(tmp_path / "broken.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"Cannot read '.*gone.json': there is no such file"):
        in_tokens(tmp_path / "gone.json")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs the `tokenizers` library. `pip install tokenizers`"):
        in_tokens(tmp_path / "tokenizer.json")
