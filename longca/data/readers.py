"""Documents of a user's own files, one after another: JSON lines, plain text, Parquet."""

import glob
import gzip
import io
import json
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longca.core import UserError, missing, unknown
from longca.core.reading import DOCUMENT, UNPACKED

JSON_LINES = (".jsonl", ".ndjson")
TEXT = (".txt", ".text", ".md")
PARQUET = (".parquet",)
KNOWN = (*JSON_LINES, *TEXT, *PARQUET)  # the first two also with a further .gz
BLANK_LINE = "\n\n"
CHUNK_CHARS = 1 << 20
SURE_BYTES = 4 << 20  # up to this size, no limit on the compression ratio
MOST_FIELDS = 50  # named in a message
Opened = gzip.GzipFile | io.BufferedReader


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """The files of paths, folders and globs, each once, sorted within each pattern.

    A folder stands for all its files of known kinds, with sub-folders and without hidden files.

    Raises:
        UserError: a pattern matches nothing, or names a file of unknown kind.
    """
    found: dict[Path, None] = {}
    for pattern in map(str, patterns):
        path = Path(pattern)
        # not Path.glob, which takes no absolute patterns
        matches = (
            [path] if path.exists() else [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207
        )
        files = [file for match in matches for file in (_files_below(match) if match.is_dir() else [match])]
        if not files:
            raise UserError(
                f"No file matches '{pattern}'", todo="Give files, folders or globs of " + ", ".join(KNOWN)
            )
        found.update(dict.fromkeys(files))
    for file in found:
        if _kind(file) not in KNOWN:
            raise UserError(
                f"'{file}' is of no known kind", why="its name ends with none of " + ", ".join(KNOWN)
            )
    return list(found)


def is_text(path: Path) -> bool:
    """True for a plain text file, which a separator splits into documents."""
    return _kind(path) not in (*JSON_LINES, *PARQUET)


def read_documents(path: Path, *, field: str = "text", separator: str | None = None) -> Iterator[str]:
    """The texts in a file, including empty ones, with at most one of them (or 1 MiB) in memory.

    Args:
        field: field of JSON lines, or column of Parquet, with the text; null is an empty text.
        separator: text between documents in a text file, "" for blank lines; None for one document per file.

    Raises:
        UserError: the file cannot be read, decoded or parsed, lacks the field, or exceeds a limit.
    """
    kind = _kind(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"Cannot read '{path}'", why="it is not a file")
        if kind in PARQUET:
            yield from _read_parquet(path, field)
        else:
            with _open(path) as file:
                yield from (
                    _read_json_lines(path, file, field)
                    if kind in JSON_LINES
                    else _read_text(path, file, separator)
                )
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"Cannot read '{path}'", why=getattr(error, "strerror", None) or str(error)
        ) from error


def _read_json_lines(path: Path, file: Opened, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path, file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number} is not UTF-8 text", why=error.reason) from error
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}:{number} is not valid JSON", why=f"{error.msg} at column {error.colno}"
            ) from error
        except (RecursionError, ValueError):
            raise UserError(
                f"{path}:{number} is no document",
                why="it is nested too deeply, or has a number of thousands of digits",
            ) from None
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number} is not a JSON object", why="each line must be one, with the text in a field"
            )
        if field not in row:
            raise unknown(
                "field",
                field,
                list(row)[:MOST_FIELDS],
                todo=f"{path}:{number} does not have it; choose another with `--field`",
            )
        yield _text(row[field], f"{path}:{number}", field)


def _lines(path: Path, file: Opened) -> Iterator[bytes]:
    """Lines of bounded length. Raises UserError."""
    unpacked = _Unpacked(path, file)
    most = DOCUMENT.num_bytes()
    while line := file.readline(most + 1):
        if len(line) > most:
            raise _too_long(path)
        unpacked.add(len(line))
        yield line


def _read_text(path: Path, file: Opened, separator: str | None) -> Iterator[str]:
    pending = ""
    unpacked = _Unpacked(path, file)
    try:
        for chunk in _decoded(file):
            unpacked.add(len(chunk))
            pending += chunk
            if separator is not None:
                *documents, pending = pending.split(separator or BLANK_LINE)
                yield from (document.strip("\n") for document in documents)
            if len(pending) > DOCUMENT.num_bytes():
                raise _too_long(path)
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text", why=error.reason) from error
    yield pending if separator is None else pending.strip("\n")


def _too_long(path: Path) -> UserError:
    return UserError(f"A document of '{path}' is larger than {DOCUMENT.value():,} MiB", todo=DOCUMENT.todo)


class _Unpacked:
    """A counter of decompressed bytes: a small compressed file may expand without bound."""

    def __init__(self, path: Path, file: Opened) -> None:
        self._path = path
        self._num_bytes = 0
        self._packed: Any = file.fileobj if isinstance(file, gzip.GzipFile) else None

    def add(self, num_bytes: int) -> None:
        """Count bytes or characters. Raises UserError if they far exceed the bytes read from the compressed
        file."""
        self._num_bytes += num_bytes
        if self._packed is None or self._num_bytes < SURE_BYTES:
            return
        if self._num_bytes > UNPACKED.value() * self._packed.tell():
            raise UserError(
                f"'{self._path}' holds more than {UNPACKED.value():,} times its size", todo=UNPACKED.todo
            )


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing("A Parquet file", "pyarrow") from error
    try:
        schema = pyarrow.parquet.read_schema(path)
        if column not in schema.names:
            raise unknown(
                "column",
                column,
                schema.names[:MOST_FIELDS],
                todo=f"'{path}' does not have it; choose another with `--field`",
            )
        texts = [column] if pyarrow.types.is_string(schema.field(column).type) else []
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0):  # one by one: all rows may share the same text
                    yield _text(value.as_py(), str(path), column)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not a sound Parquet file", why=" ".join(str(error).split())) from error


def _text(value: Any, where: str, field: str) -> str:
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}: '{field}' holds {type(value).__name__}", why="it must hold text")
    if value and len(value) > DOCUMENT.num_bytes():
        raise UserError(f"{where}: a document is larger than {DOCUMENT.value():,} MiB", todo=DOCUMENT.todo)
    return value or ""


def _decoded(file: Opened) -> Iterator[str]:
    """Text in chunks, line ends as \\n, without a byte-order mark."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig")
    while chunk := text.read(CHUNK_CHARS):
        yield chunk


def _open(path: Path) -> Opened:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _kind(path: Path) -> str:
    """The kind of a file: its suffix, or the one before .gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"] and suffixes[-2:-1] != [".parquet"]
    return "".join(suffixes[-2:-1] if packed else suffixes[-1:])


def _files_below(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and _kind(path) in KNOWN
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
