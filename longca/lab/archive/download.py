"""Files of a release from an address or a folder, each checked by its SHA-256 before anything uses it.

A transfer that was cut off is resumed, where the server knows how to.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

from longca.core import VERSION, UserError
from longca.lab.archive import manifest
from longca.lab.archive.releases import SUMS
from longca.lab.store.text import format_bytes

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 18
LARGEST_SUMS = 1 << 20  # bytes
LARGEST_FILE = 4 << 30
PARTIAL = ".part"  # ends the name of a file that is being fetched
SCHEMES = ("https", "http", "file")
HOW = f"Give a folder or an address that has the release's {SUMS} by `--from`"


class ReleaseSource:
    """The files of one release: a folder, or an address that begins with https://, http:// or file://.

    Args:
        address: where the files are.
        cache: folder of SHA256SUMS and of files that are being fetched.

    Raises:
        UserError: the address is of another kind.
    """

    def __init__(self, address: str, cache: Path) -> None:
        scheme = urlsplit(address).scheme
        if "://" in address and scheme not in SCHEMES:
            raise UserError(f"'{address}' cannot be read", why=f"it begins with {scheme}://", todo=HOW)
        self.address = address.rstrip("/") if "://" in address else Path(address).absolute().as_uri()
        self._cache = cache

    def sums(self) -> dict[str, str]:
        """Name → SHA-256 of the release's files, from its SHA256SUMS, which also lies in the cache then.

        Raises:
            UserError: it cannot be fetched or read.
        """
        path = self.fetch_unchecked(SUMS)
        try:
            return manifest.read_manifest(path.read_bytes())
        except ValueError as error:
            path.unlink()
            raise UserError(
                f"'{self._url(SUMS)}' is no list of checksums", why=str(error), todo=HOW
            ) from error

    def fetch_unchecked(self, name: str) -> Path:
        """A small file in the cache, as it is there now. Raises UserError."""
        target = self._cache / name
        partial = self._partial(name, "")
        partial.unlink(missing_ok=True)
        self._transfer(name, partial, LARGEST_SUMS)
        partial.replace(target)
        return target

    def fetch(self, name: str, digest: str, report: Callable[[str], None] = print) -> Path:
        """A file in the cache with this SHA-256; one that is already there is not fetched again.

        Raises:
            UserError: it cannot be fetched, or it has another digest and is removed.
        """
        target = self._cache / name
        partial = self._partial(name, digest[:16])
        if target.is_file() and manifest.file_sha256(target) == digest:
            return target
        if partial.exists():
            report(f"{name}: resumed after {format_bytes(partial.stat().st_size)}")
        self._transfer(name, partial, LARGEST_FILE)
        received = manifest.file_sha256(partial)
        if received != digest:
            partial.unlink()
            raise UserError(
                f"'{self._url(name)}' is not the file of the release",
                why=f"its SHA-256 is {received[:16]}…, {SUMS} has {digest[:16]}…",
                todo=(
                    "What was fetched is removed: run the command again, and tell the maintainers if this "
                    "repeats"
                ),
            )
        partial.replace(target)
        return target

    def _partial(self, name: str, mark: str) -> Path:
        self._cache.mkdir(parents=True, exist_ok=True)
        return self._cache / f"{name}.{mark}{PARTIAL}"

    def _url(self, name: str) -> str:
        return f"{self.address}/{quote(name)}"

    def _transfer(self, name: str, partial: Path, most_bytes: int) -> None:
        """Append what `partial` lacks of a file. Raises UserError; what was received stays."""
        url = self._url(name)
        is_local = self.address.startswith("file:")
        offset = partial.stat().st_size if partial.exists() and not is_local else 0
        headers = {"User-Agent": f"longca/{VERSION}", **({"Range": f"bytes={offset}-"} if offset else {})}
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                resumed = offset and answer.status == http.HTTPStatus.PARTIAL_CONTENT
                with partial.open("ab" if resumed else "wb") as file:
                    _copy(answer, file, most_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # all of it is there, or it is another file: its digest tells
            raise UserError(f"'{url}' cannot be fetched", why=_answer(error), todo=HOW) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"'{url}' cannot be fetched",
                why=getattr(reason, "strerror", None) or str(reason) or type(reason).__name__,
                todo=HOW
                if is_local
                else "Run the command again: what has come is kept. Without a network, `--from` "
                "takes a folder that has the files",
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
