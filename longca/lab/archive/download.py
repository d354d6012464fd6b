"""Files of a release from an address or a folder, each checked by its SHA-256 before anything uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

from longca.core import UserError
from longca.lab.archive import manifest
from longca.lab.archive.releases import SUMS
from longca.lab.store import PARTIAL, RefusedTransfer, TransferError, WrongDigest, fetch_file, transfer

LARGEST_SUMS = 1 << 20  # bytes
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
        target = self._target(name)
        partial = target.with_name(f"{name}{PARTIAL}")
        partial.unlink(missing_ok=True)
        try:
            transfer(self._url(name), partial, LARGEST_SUMS)
        except TransferError as error:
            raise self._not_fetched(name, error) from error
        partial.replace(target)
        return target

    def fetch(self, name: str, digest: str, report: Callable[[str], None] = print) -> Path:
        """A file in the cache with this SHA-256; one that is already there is not fetched again.

        Raises:
            UserError: it cannot be fetched, or it has another digest and is removed.
        """
        target = self._target(name)
        try:
            fetch_file(self._url(name), target, digest, report)
        except TransferError as error:
            raise self._not_fetched(name, error) from error
        except WrongDigest as error:
            raise UserError(
                f"'{self._url(name)}' is not the file of the release",
                why=f"its SHA-256 is {str(error)[:16]}…, {SUMS} has {digest[:16]}…",
                todo=(
                    "What was fetched is removed: run the command again, and tell the maintainers if this "
                    "repeats"
                ),
            ) from error
        return target

    def _target(self, name: str) -> Path:
        self._cache.mkdir(parents=True, exist_ok=True)
        return self._cache / name

    def _url(self, name: str) -> str:
        return f"{self.address}/{quote(name)}"

    def _not_fetched(self, name: str, error: TransferError) -> UserError:
        is_final = self.address.startswith("file:") or isinstance(error, RefusedTransfer)
        return UserError(
            f"'{self._url(name)}' cannot be fetched",
            why=str(error),
            todo=HOW
            if is_final
            else "Run the command again: what has come is kept. Without a network, `--from` "
            "takes a folder that has the files",
        )
