"""Files: those of the project, whose `config` is in force, and the reading of external files, which must be
regular, within limits, and unambiguous JSON.

A wheel is used away from any checkout. It holds a copy of the checkout's `config` and records in the package.

Each limit is checked before memory is allocated. Environment variables `LONGCA_LIMIT_*` change the limits;
settings files cannot, since they are read under these limits.
"""

import errno
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longca.core.errors import UserError, unknown

PACKAGE_ROOT = Path(__file__).resolve().parent.parent
ROOT = PACKAGE_ROOT.parent  # of the checkout, of a copy of it, or of an unpacked bundle
MARK = Path("config/studies")  # a folder that has it is a project
SHIPPED = PACKAGE_ROOT / "shipped"  # in a wheel: `config`, the project's own records and COMMIT, by setup.py


def project_root() -> Path:
    """The working folder or the nearest one above it that is a project; else `origin`.

    The working folder is `Path()`, so that messages show relative paths.
    """
    here = Path.cwd()
    if (here / "config").is_dir():
        return Path()
    above = next((folder for folder in here.parents if (folder / MARK).is_dir()), None)
    if above is not None:
        return above
    return origin() or Path()


def origin() -> Path | None:
    """The folder with the `config` and records that longca came with: its checkout, or what its wheel holds.

    None for a package that was copied out of both.
    """
    return next((folder for folder in (ROOT, SHIPPED) if (folder / MARK).is_dir()), None)


def in_project(path: Path) -> Path:
    """The path of a file or folder of the project."""
    return project_root() / path


PREFIX = "LONGCA_LIMIT_"
LARGEST = 1 << 40
CHUNK_BYTES = 1 << 20

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Limit:
    """One limit, with a default and a variable that overrides it."""

    name: str
    default: int
    unit: str
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def value(self) -> int:
        """The limit in force, in its unit. Raises UserError if its variable is not an integer of at least
        1."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not (
            text.isascii()
            and text.isdecimal()
            and len(text) <= len(str(LARGEST))
            and 1 <= int(text) <= LARGEST
        ):
            raise UserError(
                f"{self.variable} = '{text}' is no limit",
                todo=f"Give a whole number of {self.unit} from 1 to {LARGEST}",
            )
        return int(text)

    def num_bytes(self) -> int:
        """The same in bytes, for a limit in MiB."""
        assert self.unit == "MiB"
        return self.value() << 20

    @property
    def todo(self) -> str:
        """A hint how to raise the limit, for the end of a message."""
        return f"{self.variable} sets the limit"


YAML = Limit("yaml_mib", 1, "MiB", "A file of YAML: a study, settings, or facts of hardware")
YAML_VALUES = Limit(
    "yaml_values", 50_000, "values", "Values of a file of YAML, each counted as often as aliases repeat it"
)
CELLS = Limit("cells", 200_000, "cells", "Cells of a study, counted before equal ones become one")
CELL_FILE = Limit(
    "cell_file_mib", 8, "MiB", "The file of one measured cell, and one row of a table of records"
)
RECORDS = Limit(
    "records_mib", 1024, "MiB", "A file of records, `records.parquet` (unpacked) or `records.json`"
)
ROWS = Limit("rows", 1_000_000, "rows", "Records of one file")
ENVIRONMENTS = Limit(
    "environments_mib",
    64,
    "MiB",
    "The listings of environments beside records, unpacked, and the file of one of them",
)
CORPUS = Limit("corpus_mib", 4, "MiB", "The JSON file of a corpus")
DOCUMENTS = Limit("documents", 10_000_000, "documents", "Documents that are drawn for one sequence")
DOCUMENT = Limit("document_mib", 32, "MiB", "One document of the files that `longca data build` reads")
UNPACKED = Limit(
    "unpacked_ratio",
    200,
    "times",
    "How often larger than its packed file a corpus archive may be, from 4 MiB on",
)
CODE = Limit("code_mib", 4, "MiB", "The Python file that `longca bench` is given")
PLUGIN = Limit("plugin_seconds", 30, "seconds", "The import of a plug-in from outside the package")
LOG = Limit(
    "log_mib",
    100,
    "MiB",
    "What measuring processes of one run print into its logs; of each the last MiB is always kept",
)
LIMITS = (
    YAML,
    YAML_VALUES,
    CELLS,
    CELL_FILE,
    RECORDS,
    ROWS,
    ENVIRONMENTS,
    CORPUS,
    DOCUMENTS,
    DOCUMENT,
    UNPACKED,
    CODE,
    PLUGIN,
    LOG,
)


def check_variables() -> None:
    """Raises UserError for an unknown variable `LONGCA_LIMIT_*`, or an invalid value."""
    known = {limit.variable: limit for limit in LIMITS}
    for name in os.environ:
        if name.startswith(PREFIX):
            if name not in known:
                raise unknown("environment variable", name, known)
            known[name].value()


def read_file(path: Path, limit: Limit) -> bytes:
    """The content of a file.

    Raises:
        OSError: it does not exist, cannot be read, is not a regular file (pipes are not waited for), or is
            larger than `limit`. `strerror` gives the reason.
    """
    if "\0" in str(path):
        raise FileNotFoundError(errno.ENOENT, "A file's name has no NUL", str(path))
    # otherwise opening a pipe would wait for a writer
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(file)
        check_file(path, facts, limit)
        content = os.read(file, facts.st_size + 1)
        if len(content) != facts.st_size:  # it changed meanwhile, has an unknown size, or was read partially
            while len(content) <= limit.num_bytes() and (more := os.read(file, CHUNK_BYTES)):
                content += more
    finally:
        os.close(file)
    if len(content) > limit.num_bytes():  # it grew meanwhile
        raise too_large(path, limit)
    return content


def check_file(path: Path, facts: os.stat_result, limit: Limit) -> None:
    """Raises OSError if it is not a regular file, or larger than `limit`."""
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(
            errno.EINVAL,
            f"It is {_KINDS.get(stat.S_IFMT(facts.st_mode), 'of another kind')}, not a file",
            str(path),
        )
    if facts.st_size > limit.num_bytes():
        raise too_large(path, limit)


def too_large(path: Path, limit: Limit) -> OSError:
    """The error of a file that is larger than `limit`."""
    return OSError(errno.EFBIG, f"It is larger than {limit.value():,} {limit.unit}; {limit.todo}", str(path))


class JsonError(ValueError):
    """Invalid or ambiguous JSON; the message begins with "is not …" or "has …". `line` is its line, if
    known."""

    def __init__(self, says: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(says)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        JsonError: invalid JSON, too deep nesting, a number with thousands of digits, or a repeated key in an
            object.
    """
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise JsonError(f"is not UTF-8 text: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"is not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise JsonError("is nested too deeply") from None
    except JsonError:
        raise
    except ValueError:  # Python's limit on the digits of an integer
        raise JsonError("has a number of thousands of digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise JsonError(f"has key '{twice}' twice")
    return mapping


_decode = json.JSONDecoder(object_pairs_hook=_object).decode
