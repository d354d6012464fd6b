"""A corpus from a user's own files: the lengths of their documents in bytes, or in the tokens of a
tokenizer."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from longca.core import Registry, UserError, folder_for_new, plugin_folders
from longca.data.corpus import Bin, CorpusFile
from longca.data.readers import find_files, is_text, read_documents

STEPS = 16  # bins for each factor of two in length
BATCH = 256  # documents given to a tokenizer at once
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def build_corpus(
    name: str,
    files: Sequence[str | Path],
    *,
    field: str = "text",
    separator: str | None = None,
    tokenizer: Path | None = None,
    folder: Path | None = None,
    force: bool = False,
) -> Path:
    """Measure the documents of files and write the corpus of their lengths.

    Args:
        name: of the corpus: a lower-case identifier.
        files: paths, folders or globs of JSON lines, plain text and Parquet (`longca.data.readers`).
        field: field of JSON lines, or column of Parquet, that holds the text.
        separator: text between documents of a text file, "" for blank lines; None for one document per file.
            tokenizer: a tokenizer.json to count tokens; None to count UTF-8 bytes.
        folder: the folder of `<name>.json`; by default `corpora` in the first folder of `LONGCA_PLUGINS`.
        force: replace a corpus of that name in that folder.

    Returns:
        The file written.

    Raises:
        UserError: an unreadable, invalid or unwritable file, or a separator that no text file contains.
    """
    target = _target(name, folder, force)
    lengths = in_tokens(tokenizer) if tokenizer else in_bytes
    paths = find_files(files)
    divided: dict[Path, bool] = {}
    bins, num_empty = bin_lengths(lengths(_documents(paths, field, separator, divided)))
    if not bins:
        raise UserError(
            f"There are no documents in {_files(len(paths))}", why=f"{num_empty:,} texts, all of them empty"
        )
    num_documents = sum(part.num_documents for part in bins)
    notes = [f"Lengths count tokens of '{tokenizer.name}'." if tokenizer else "Lengths count bytes of UTF-8."]
    if separator is not None:
        _check_separator(separator, divided)
        if num_whole := sum(not has for has in divided.values()):
            notes.append(
                f"Without the separator, so one document each: {num_whole:,} of {_files(len(divided))} of "
                f"text."
            )
    if num_empty:
        notes.append(f"Empty texts left out: {num_empty:,}.")
    content = CorpusFile(
        label=name,
        description=f"Lengths of {num_documents:,} documents in {_files(len(paths))}.",
        source=", ".join(map(str, files[:3])) + (f" and {len(files) - 3:,} more" if len(files) > 3 else ""),
        unit="tokens" if tokenizer else "bytes",
        notes=tuple(notes),
        bins=bins,
    )
    _write(target, content.to_json())
    return target


def _documents(
    paths: Sequence[Path], field: str, separator: str | None, divided: dict[Path, bool]
) -> Iterator[str]:
    """The documents of all files. `divided` records for each non-empty text file whether it contains the
    separator."""
    for path in paths:
        num_texts = 0
        longest = 0
        for document in read_documents(path, field=field, separator=separator):
            num_texts = num_texts + 1
            longest = max(longest, len(document))
            yield document
        if is_text(path) and longest:
            divided[path] = num_texts > 1


def _check_separator(separator: str, divided: Mapping[Path, bool]) -> None:
    """Raises UserError for a separator that no text file contains: each file would be one document."""
    if divided and not any(divided.values()):
        name = f"The separator '{separator}'" if separator else "A blank line, the separator,"
        raise UserError(
            f"{name} never occurs in {_files(len(divided))} of text",
            why="each would be one document",
            todo="Give it as it stands in the files ($'\\n' in bash is a line end), or none where a file is "
            "a document",
        )


def bin_lengths(lengths: Iterable[int]) -> tuple[tuple[Bin, ...], int]:
    """(bins of the lengths, number of lengths that are 0). Memory is needed only for the bins.

    Each length below 32 has its own bin; above, each factor of two is divided into 16 bins, so that no bin is
    wider than a sixteenth of its lengths. A bin extends from the shortest to the longest of its lengths, so
    no bin is open, and few documents are represented exactly.
    """
    bins: dict[int, Bin] = {}
    num_empty = 0
    for length in lengths:
        if not length:
            num_empty += 1
            continue
        dropped_bits = max(0, length.bit_length() - STEPS.bit_length())
        key = length >> dropped_bits << dropped_bits
        lo, hi, count = bins.get(key, Bin(length, length, 0))
        bins[key] = Bin(min(lo, length), max(hi, length), count + 1)
    return tuple(bins[key] for key in sorted(bins)), num_empty


class Lengths(Protocol):
    """A function from documents to their lengths, in order."""

    def __call__(self, documents: Iterable[str]) -> Iterator[int]: ...


def in_bytes(documents: Iterable[str]) -> Iterator[int]:
    """Lengths in bytes of UTF-8."""
    return (len(document.encode("utf-8", "surrogatepass")) for document in documents)


def in_tokens(tokenizer: Path) -> Lengths:
    """Lengths in tokens, without special ones, of a tokenizer.json of the `tokenizers` library.

    Raises:
        UserError: the library is not installed, or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError(
            "Counting tokens needs the `tokenizers` library",
            todo="`pip install tokenizers`, or leave out the tokenizer and count bytes",
        ) from error
    if not tokenizer.is_file():
        raise UserError(
            f"Cannot read '{tokenizer}'", why="there is no such file", todo="Give a tokenizer.json"
        )
    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"'{tokenizer}' is not a tokenizer",
            why=" ".join(str(error).split()),
            todo="Give a tokenizer.json",
        ) from error
    loaded.no_truncation()  # a tokenizer file may contain the limits of its model
    loaded.no_padding()

    def lengths(documents: Iterable[str]) -> Iterator[int]:
        rest = iter(documents)
        while batch := [_without_surrogates(document) for document in islice(rest, BATCH)]:
            yield from (
                len(encoding.ids) for encoding in loaded.encode_batch(batch, add_special_tokens=False)
            )

    return lengths


def _without_surrogates(document: str) -> str:
    """The text with surrogates replaced: JSON may contain unpaired surrogates, which tokenizers refuse."""
    return document.encode("utf-8", "replace").decode("utf-8")


def _target(name: str, folder: Path | None, force: bool) -> Path:
    """The file to write. All checks are made before the input files are read."""
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot name a corpus", todo="Use small letters, digits and underscores")
    if folder is None:
        folder = folder_for_new("corpus")
        if folder is None:
            raise UserError(
                "There is no folder for the corpus",
                why="LONGCA_PLUGINS is not set",
                todo="Set it to a folder of yours, or give `--folder`",
            )
    target = folder / f"{name}.json"
    taken = Registry("corpus", plugin_folders(may_be_new=True)).paths().get(name)
    if taken and taken != target.resolve():
        raise UserError(f"There is a corpus '{name}' already", why=str(taken), todo="Choose another name")
    if target.exists() and not force:
        raise UserError(f"'{target}' exists", todo="Choose another name, or replace it with `--force`")
    return target


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _write(target: Path, text: str) -> None:
    """Write the file atomically: readers see the old file or the new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise UserError(f"Cannot write '{target}'", why=error.strerror or str(error)) from error
