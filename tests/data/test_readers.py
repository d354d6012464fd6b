"""Readers: every form of file, and every way in which one cannot be read."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from longca.core.errors import UserError
from longca.data import readers
from longca.data.readers import find_files, read_documents

TEXTS = ["one", "", "zwei Größen", "three\nlines\n\nhere"]


def documents(path: Path, **options: str) -> list[str]:
    return list(read_documents(path, **options))


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".JSONL", ".jsonl.gz"])
def test_json_lines(tmp_path: Path, suffix: str):
    lines = (
        "\n\n".join(json.dumps({"body": text, "id": 1}) for text in TEXTS)
        + "\n\n"
        + json.dumps({"body": None})
    )
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(lines.encode()) if suffix.endswith("gz") else lines.encode())
    assert documents(path, field="body") == [*TEXTS, ""]


@pytest.mark.parametrize("suffix", [".txt", ".text", ".md", ".txt.gz"])
def test_a_text_file_is_a_document(tmp_path: Path, suffix: str):
    path = tmp_path / f"a{suffix}"
    text = "first\n\nsecond"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert documents(path) == [text]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1 << 20])
def test_text_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(readers, "CHUNK_CHARS", chunk)
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffeins\r\nzwei\r\n\r\ndrei\n\n\nvier<|end|>fünf\n".encode())
    assert documents(path, separator="") == ["eins\nzwei", "drei", "vier<|end|>fünf"]
    assert documents(path, separator="<|end|>") == ["eins\nzwei\n\ndrei\n\n\nvier", "fünf"]


def test_an_empty_text_file(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.touch()
    assert documents(path) == documents(path, separator="") == [""]


def test_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": [*TEXTS, None], "id": range(5)}), path)
    assert documents(path, field="body") == [*TEXTS, ""]


BROKEN = {
    "broken JSON": (
        "a.jsonl",
        b'{"text": "x"}\n{"text": \n',
        r"a.jsonl:2 is not valid JSON: Expecting value at column \d+",
    ),
    "missing field": (
        "a.jsonl",
        b'{"text": "x"}\n\n{"txet": "x"}',
        "Unknown field 'text': did you mean 'txet'.*a.jsonl:3",
    ),
    "no fields": ("a.jsonl", b"{}", "Unknown field 'text': there is none"),
    "not an object": ("a.jsonl", b'"x"', "a.jsonl:1 is not a JSON object"),
    "not text": ("a.jsonl", b'{"text": ["x"]}', "a.jsonl:1: 'text' holds list: it must hold text"),
    "Latin-1 in JSON": ("a.jsonl", b'{"text": "x"}\n{"text": "\xfc"}', "a.jsonl:2 is not UTF-8 text"),
    "Latin-1 text": ("a.txt", b"Gr\xfc\xdfe", "a.txt' is not UTF-8 text"),
    "damaged gzip": ("a.txt.gz", b"no gzip at all", "Cannot read '.*a.txt.gz': Not a gzipped file"),
    "cut gzip": (
        "a.txt.gz",
        gzip.compress(b"x" * 1000)[:-9],
        "Cannot read '.*a.txt.gz': Compressed file ended",
    ),
    "bits flipped in gzip": (
        "a.txt.gz",
        gzip.compress(b"x")[:10] + b"\xff" * 20,
        "Cannot read '.*a.txt.gz': Error -3",
    ),
    "damaged Parquet": ("a.parquet", b"PAR1 and nothing else", "a.parquet' is not a sound Parquet file"),
    "empty Parquet": ("a.parquet", b"", "a.parquet' is not a sound Parquet file"),
}


@pytest.mark.parametrize(("name", "content", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, expected: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        documents(path)
    assert "\n" not in str(caught.value)


def test_parquet_column(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2], "body": [b"x", b"y"]}), path)
    with pytest.raises(UserError, match=r"Unknown column 'bodi': did you mean 'body'\?.*a.parquet"):
        documents(path, field="bodi")
    with pytest.raises(UserError, match="'text' holds int"):
        documents(path)
    with pytest.raises(UserError, match="'body' holds bytes"):
        documents(path, field="body")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.parquet"
    path.touch()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow, .* `pip install \"longca\[lab\]\"`"):
        documents(path)


def test_a_file_that_has_gone(tmp_path: Path):
    with pytest.raises(UserError, match=r"Cannot read '.*gone.txt': No such file"):
        documents(tmp_path / "gone.txt")


def test_find_files(tmp_path: Path):
    for name in (
        "b.txt",
        "a.jsonl",
        "sub/c.parquet",
        "sub/d.md.gz",
        "README",
        "image.png",
        ".hidden/e.txt",
        "sub/.f.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    below = [tmp_path / name for name in ("a.jsonl", "b.txt", "sub/c.parquet", "sub/d.md.gz")]
    assert find_files([tmp_path]) == below
    assert find_files(
        [f"{tmp_path}/**/*.parquet", tmp_path / "b.txt", f"{tmp_path}/?.*", f"{tmp_path}/s*"]
    ) == [below[2], below[1], below[0], below[3]]
    for pattern in (tmp_path / "none.txt", f"{tmp_path}/*.csv", tmp_path / "sub" / "empty"):
        (tmp_path / "sub" / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match="No file matches '"):
            find_files([tmp_path, pattern])


@pytest.mark.parametrize("name", ["image.png", "README", "a.parquet.gz", "a.tar.gz", "a.gz"])
def test_unknown_kinds(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    with pytest.raises(
        UserError, match=rf"'.*{name}' is of no known kind: its name ends with none of .jsonl"
    ):
        find_files([tmp_path / name])
