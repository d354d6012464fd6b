"""Answers that are kept in a file, with a digest of all that they follow from.

An answer is made again where the digest differs, or where the file is missing or damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.core.reading import JsonError, read_json
from longca.lab.store.files import write_atomically


def kept_answer(path: Path, causes: Iterable[str | bytes], make: Callable[[], Any]) -> Any:
    """The answer in the file if it follows from these causes, else a new one, which is written into it.

    Args:
        causes: texts of everything that the answer depends on, the code among them.
        make: makes the answer, of JSON data; None if there is none to keep.
    """
    content = hashlib.sha256()
    for cause in causes:
        data = cause if isinstance(cause, bytes) else cause.encode("utf-8", "surrogatepass")
        content.update(b"%d:" % len(data))
        content.update(data)
    key = content.hexdigest()
    with suppress(OSError, JsonError, KeyError, TypeError):
        kept = read_json(path.read_bytes())
        if kept["follows_from"] == key and kept["checksum"] == _checksum(key, kept["answer"]):
            return kept["answer"]
    answer = make()
    if answer is None:
        return None
    entry = {"follows_from": key, "answer": answer, "checksum": _checksum(key, answer)}
    with suppress(OSError):  # without write access, it is made each time
        write_atomically(path, json.dumps(entry).encode())
    return answer


def _checksum(key: str, answer: Any) -> str:
    return hashlib.sha256(f"{key} {json.dumps(answer, sort_keys=True)}".encode()).hexdigest()
