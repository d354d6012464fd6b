"""Reading of files from outside: regular files alone, no larger than a limit, and JSON that means one thing only."""

import errno
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from longca.core.limits import Limit

CHUNK_BYTES = 1 << 20

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def read_file(path: Path, limit: Limit) -> bytes:
    """The content of a file.

    Raises:
        OSError: there is none, it cannot be read, it is a pipe or the like (nothing waits for its other end), or it is larger than
            `limit`. `strerror` says which.
    """
    if "\0" in str(path):
        raise FileNotFoundError(errno.ENOENT, "A file's name has no NUL", str(path))
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # else the opening of a pipe waits for a writer
    try:
        facts = os.fstat(file)
        check_file(path, facts, limit)
        content = os.read(file, facts.st_size + 1)
        while len(content) <= limit.num_bytes() and (more := os.read(file, CHUNK_BYTES)):
            content += more
    finally:
        os.close(file)
    if len(content) > limit.num_bytes():  # it grew meanwhile
        raise too_large(path, limit)
    return content


def check_file(path: Path, facts: os.stat_result, limit: Limit) -> None:
    """Raises OSError where that is no regular file, or a larger one than `limit`."""
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, f"It is {_KINDS.get(stat.S_IFMT(facts.st_mode), 'of another kind')}, not a file", str(path))
    if facts.st_size > limit.num_bytes():
        raise too_large(path, limit)


def too_large(path: Path, limit: Limit) -> OSError:
    """The error of a file that is larger than `limit`."""
    return OSError(errno.EFBIG, f"It is larger than {limit.value():,} {limit.unit}; {limit.todo}", str(path))


class JsonError(ValueError):
    """A text that is no JSON, or JSON that could be read in two ways: "is not …" or "has …". `line` is where, if that is known."""

    def __init__(self, says: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(says)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        JsonError: it is not JSON, nested too deeply, has a number of thousands of digits, or a key that stands twice in one object.
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
    except ValueError:  # of Python's limit on the digits of a whole number
        raise JsonError("has a number of thousands of digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise JsonError(f"has key '{twice}' twice")
    return found


_decode = json.JSONDecoder(object_pairs_hook=_object).decode
