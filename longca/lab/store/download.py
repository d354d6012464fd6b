"""Files from an address, checked by their SHA-256 before anything uses them.

A transfer that was cut off is resumed, where the server knows how to.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from longca.core import VERSION
from longca.lab.store.files import file_sha256
from longca.lab.store.text import format_bytes

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 18
LARGEST_FILE = 4 << 30
PARTIAL = ".part"  # ends the name of a file that is being fetched


class TransferError(OSError):
    """A file did not come, or not in full; what has come is kept. Its text is the reason."""


class RefusedTransfer(TransferError):
    """A server answers that it does not have the file, or does not give it."""


class WrongDigest(ValueError):
    """A file that came has another SHA-256, which is the text of this error. It is removed."""


def fetch_file(url: str, target: Path, digest: str, report: Callable[[str], None] | None = None) -> None:
    """Fetches a file, unless it is there with this SHA-256 already.

    Args:
        report: is told of a transfer that is resumed.

    Raises:
        TransferError: it cannot be fetched.
        WrongDigest: it has another digest.
    """
    if target.is_file() and file_sha256(target) == digest:
        return
    partial = target.with_name(f"{target.name}.{digest[:16]}{PARTIAL}")
    if partial.exists() and report is not None:
        report(f"{target.name}: resumed after {format_bytes(partial.stat().st_size)}")
    transfer(url, partial, LARGEST_FILE)
    received = file_sha256(partial)
    if received != digest:
        partial.unlink()
        raise WrongDigest(received)
    partial.replace(target)


def transfer(url: str, partial: Path, most_bytes: int) -> None:
    """Appends what `partial` lacks of a file. Raises TransferError; what was received stays."""
    offset = partial.stat().st_size if partial.exists() and not url.startswith("file:") else 0
    headers = {"User-Agent": f"longca/{VERSION}", **({"Range": f"bytes={offset}-"} if offset else {})}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = offset and answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with partial.open("ab" if resumed else "wb") as file:
                _copy(answer, file, most_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise RefusedTransfer(_answer(error)) from error
        # else all of it is there, or it is another file: its digest tells
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise TransferError(
            getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        ) from error


def _copy(answer: BinaryIO, file: BinaryIO, most_bytes: int) -> None:
    """All bytes of an answer. Raises OSError if it is cut off or longer than `most_bytes`."""
    expected = getattr(answer, "length", None)  # of an HTTP answer, if the server says it
    received = 0
    while part := answer.read(CHUNK):
        received += len(part)
        if received > most_bytes:
            raise OSError(f"it has more than {format_bytes(most_bytes)}")
        file.write(part)
    if expected is not None and received < expected:
        raise OSError(f"the connection was closed after {received:,} of {expected:,} bytes")


def _answer(error: urllib.error.HTTPError) -> str:
    """The refusal of a server."""
    if error.code == http.HTTPStatus.NOT_FOUND:
        return "there is no such file or release (404)"
    return f"the server answers {error.code} {error.reason}".strip()
