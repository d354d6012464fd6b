"""A corpus from a user's own files, from the files to the sampler."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.data.build import bin_lengths, build_corpus
from longca.data.sampler import sample_documents


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": "x" * length}) + "\n" for length in (3, 0, 700, 3))
    )
    (folder / "b.txt").write_text("y" * 40)
    return folder


def test_from_files_to_a_draw(plugin_folder: Path, files: Path):
    path = build_corpus("mine", [files])
    assert path == plugin_folder / "corpora" / "mine.json"
    corpus = Registry("corpus").load("mine")
    assert corpus.bins.tolist() == [[3, 3, 2], [40, 40, 1], [700, 700, 1]]
    assert corpus.content.unit == "bytes"
    assert corpus.content.notes == ("Lengths count bytes of UTF-8.", "Empty texts left out: 1.")
    assert corpus.summary == "Lengths of 4 documents in 2 files."
    assert set(sample_documents("mine", 4096, seed=0)[:-1]) <= {3, 40, 700}


def test_tokens(plugin_folder: Path, files: Path, tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tmp_path / "tokenizer.json"
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.save(str(tokenizer))
    build_corpus("mine", [files / "b.txt"], tokenizer=tokenizer)
    content = Registry("corpus").load("mine").content
    assert (content.unit, content.bins) == ("tokens", ((40, 40, 1),))
    assert content.notes == ("Lengths count tokens of 'tokenizer.json'.",)


def test_options_reach_the_readers(plugin_folder: Path, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "12345"}')
    (tmp_path / "b.txt").write_text("123\n\n1234567")
    build_corpus("mine", [tmp_path / "a.jsonl", tmp_path / "b.txt"], field="body", separator="")
    assert [tuple(part) for part in Registry("corpus").load("mine").content.bins] == [
        (3, 3, 1),
        (5, 5, 1),
        (7, 7, 1),
    ]


def test_many_files_are_not_all_listed(plugin_folder: Path, tmp_path: Path):
    names = [tmp_path / f"{number}.txt" for number in range(5)]
    for name in names:
        name.write_text("x")
    build_corpus("mine", names)
    assert Registry("corpus").load("mine").content.source.endswith("2.txt and 2 more")


def test_nothing_is_replaced_unasked(plugin_folder: Path, files: Path):
    path = build_corpus("mine", [files])
    before = path.read_text()
    with pytest.raises(
        UserError, match=r"mine.json' exists. Choose another name, or replace it with `--force`"
    ):
        build_corpus("mine", [files / "b.txt"])
    assert path.read_text() == before
    build_corpus("mine", [files / "b.txt"], force=True)
    assert path.read_text() != before
    assert [entry.name for entry in path.parent.iterdir()] == ["mine.json"]


@pytest.mark.parametrize("force", [False, True])
def test_a_shipped_corpus_stays(plugin_folder: Path, files: Path, force: bool):
    with pytest.raises(UserError, match="There is a corpus 'pile' already"):
        build_corpus("pile", [files], force=force)
    assert not plugin_folder.exists()


@pytest.mark.parametrize("name", ["", "My", "my-own", "../mine", "1st", "a.b"])
def test_names_are_plain(plugin_folder: Path, files: Path, name: str):
    with pytest.raises(UserError, match=f"'{name}' cannot name a corpus"):
        build_corpus(name, [files])


def test_a_folder_that_is_given(monkeypatch: pytest.MonkeyPatch, files: Path, tmp_path: Path):
    monkeypatch.delenv("LONGCA_PLUGINS", raising=False)
    assert build_corpus("mine", [files], folder=tmp_path / "out") == tmp_path / "out" / "mine.json"
    with pytest.raises(UserError, match="There is no folder for the corpus: LONGCA_PLUGINS is not set"):
        build_corpus("mine", [files])


def test_no_documents(plugin_folder: Path, tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match="There are no documents in 2 files: 2 texts, all of them empty"):
        build_corpus("mine", [tmp_path / "empty.txt", tmp_path / "a.jsonl"])
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(UserError, match="There are no documents in 1 file"):
        build_corpus("mine", [tmp_path / "b.jsonl"])
    assert not plugin_folder.exists()


def test_a_broken_file_leaves_the_old_corpus(plugin_folder: Path, files: Path):
    path = build_corpus("mine", [files])
    before = path.read_text()
    (files / "c.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"c.jsonl:1"):
        build_corpus("mine", [files], force=True)
    assert path.read_text() == before


def test_a_folder_that_cannot_be_written(files: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write '.*mine.json': (Not a directory|File exists)"):
        build_corpus("mine", [files], folder=tmp_path / "file")


def test_a_disk_that_is_full(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"Cannot write '.*mine.json': No space left on device"):
        build_corpus("mine", [files], folder=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@given(st.lists(st.integers(0, 100) | st.integers(0, 10_000_000), max_size=300))
def test_bins_hold_each_length_once_and_narrowly(lengths: list[int]):
    bins, num_empty = bin_lengths(lengths)
    documents = [length for length in lengths if length]
    assert num_empty == len(lengths) - len(documents)
    assert all(first.hi < two.lo for first, two in pairwise(bins))
    for part in bins:
        inside = [length for length in documents if part.lo <= length <= part.hi]
        assert (min(inside), max(inside), len(inside)) == part
        assert part.hi - part.lo < max(1, part.lo / 16)
    assert sum(part.num_documents for part in bins) == len(documents)


@pytest.mark.parametrize(
    ("separator", "said"),
    [
        ("<|end|>", "'<|end|>' never occurs in 2 files"),
        ("\\n", "never occurs"),
        ("", "A blank line, the separator, never occurs"),
    ],
)
def test_a_separator_that_never_occurs_is_refused(tmp_path, separator, said):
    """Else a corpus cut by documents would be one giant document a file, without a word."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    (tmp_path / "empty.txt").write_text("")
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "empty.txt"]
    with pytest.raises(UserError, match=re.escape(said)):
        build_corpus("mine", files, separator=separator, folder=tmp_path)
    assert not (tmp_path / "mine.json").exists()
    (tmp_path / "c.txt").write_text(f"four{separator or chr(10) * 2}five")
    made = json.loads(
        build_corpus("mine", [*files, tmp_path / "c.txt"], separator=separator, folder=tmp_path).read_text()
    )
    assert "Without the separator, so one document each: 2 of 3 files of text." in made["notes"]
    assert sum(part[-1] for part in made["bins"]) == 4
