"""Packing and unpacking of bundles: one compressed tar whose bytes depend only on its content."""

import hashlib
import io
import tarfile
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from longca.core import UserError
from longca.lab.archive import manifest
from longca.lab.store.text import format_bytes

SUFFIX = ".tar.gz"
# first bytes of `gzip.GzipFile`: deflate, no name, no time, best compression, any system
HEAD = bytes.fromhex("1f8b08000000000002ff")
CHUNK = 1 << 18  # bytes in memory at a time
PART = 1 << 20  # bytes that one thread compresses at a time; bundles of other parts are other bytes
MOST_PARTS = 32  # in memory
LONGEST_NAME = 4096  # bytes of a path on Linux
BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
NOT_OURS = "it is not as `longca archive` packs it"


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    content: bytes | Path
    """or the file that holds it, which is read piece by piece"""
    executable: bool = False

    @cached_property
    def num_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        return manifest.digest(self.content)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


@dataclass(frozen=True)
class Limits:
    """Limits of unpacking, beyond the size of a study of 100,000 records, so that larger bundles are refused
    early."""

    num_bytes: int = 2 << 30
    num_files: int = 20_000


class Opened(NamedTuple):
    """An unpacked bundle."""

    folder: Path
    sha256: str | None
    """of the packed file; None if the bundle is a folder"""


def pack(entries: Mapping[str, BundleFile], folder: str, when: int) -> bytes:
    """A compressed tar of these files below `folder`, sorted, without owners. Equal files give equal bytes.

    Args:
        when: modification time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with (
        _Zipped(packed) as compressed,
        tarfile.open(
            fileobj=cast("BinaryIO", compressed),  # of which it needs `write`
            mode="w|",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
        ) as tar,
    ):
        for path, entry in sorted((f"{folder}/{path}", entry) for path, entry in entries.items()):
            with entry.open() as content:
                tar.addfile(_member(path, entry.num_bytes, entry.executable, when), content)
    return packed.getvalue()


@contextmanager
def opened(bundle: Path, limits: Limits | None = None) -> Iterator[Opened]:
    """The folder of an unpacked bundle; a packed one is unpacked into a temporary folder during the `with`
    block.

    Raises:
        UserError: there is no bundle, it cannot be unpacked, or it exceeds `limits`.
    """
    if bundle.is_dir():
        yield Opened(_with_manifest(bundle, bundle), None)
        return
    if not bundle.is_file():
        raise UserError(
            f"There is no bundle '{bundle}'",
            why="it is neither a file nor a folder" if bundle.exists() else "",
            todo="`longca archive` makes one",
        )
    with tempfile.TemporaryDirectory() as name:
        try:
            with bundle.open("rb") as packed:
                digest = _unpack(_Unzipped(packed), Path(name), limits or Limits(), bundle)
        except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
            raise UserError(
                f"'{bundle}' cannot be unpacked",
                why=" ".join(str(error).split()),
                todo="`longca records check` examines a file of records"
                if bundle.suffix in {".parquet", ".json"}
                else "It is damaged, or no bundle: get it again",
            ) from error
        inside = sorted(Path(name).iterdir())
        yield Opened(_with_manifest(inside[0] if len(inside) == 1 else Path(name), bundle), digest)


class _Zipped:
    """A gzip file that is written in one stream, whose parts threads compress side by side."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._ready = bytearray()
        self._checksum = 0
        self._num_bytes = 0
        self._threads = ThreadPoolExecutor(thread_name_prefix="longca-pack")
        self._parts = deque[Future[bytes]]()

    def __enter__(self) -> "_Zipped":
        self._packed.write(HEAD)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._add(bytes(self._ready), zlib.Z_FINISH)
            self._take(0)
            self._packed.write(self._checksum.to_bytes(4, "little"))
            self._packed.write((self._num_bytes % (1 << 32)).to_bytes(4, "little"))
        self._threads.shutdown(cancel_futures=True)

    def write(self, content: bytes) -> int:
        self._ready += content
        while len(self._ready) >= PART:
            self._add(bytes(self._ready[:PART]), zlib.Z_FULL_FLUSH)
            del self._ready[:PART]
        self._take(MOST_PARTS)
        return len(content)

    def _add(self, part: bytes, end: int) -> None:
        self._checksum = zlib.crc32(part, self._checksum)
        self._num_bytes += len(part)
        self._parts.append(self._threads.submit(_deflated, part, end))

    def _take(self, most: int) -> None:
        """Write the compressed parts, until no more than `most` are left."""
        while len(self._parts) > most:
            self._packed.write(self._parts.popleft().result())


def _deflated(part: bytes, end: int) -> bytes:
    stream = zlib.compressobj(zlib.Z_BEST_COMPRESSION, wbits=-zlib.MAX_WBITS)
    return stream.compress(part) + stream.flush(end)


class _Unzipped:
    """A tar inside of a gzip file, decompressed in a streaming fashion."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._sha256 = hashlib.sha256()
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._ready = b""
        self._head = b""
        self.num_read = 0
        """bytes read from the tar"""

    def read(self, size: int) -> bytes:
        """Exactly this many bytes, at most `CHUNK`. Raises EOFError if the file ends early."""
        while len(self._ready) < size:
            if not self._more():
                raise EOFError("it is truncated")
        part = self._ready[:size]
        self._ready = self._ready[size:]
        self.num_read += size
        return part

    def end(self) -> str:
        """The SHA-256 of the packed file, which must be at its end. Raises EOFError or ValueError."""
        if self._ready or self._more() or self._stream.unused_data or self._take() or self._head != HEAD:
            raise ValueError(NOT_OURS)
        return self._sha256.hexdigest()

    def _more(self) -> bool:
        """Decompress the next chunk. Returns False at the end of the stream, after checking its checksum."""
        while not self._stream.eof:
            given = self._stream.unconsumed_tail or self._take()
            if not given:
                raise EOFError("it is truncated")
            if part := self._stream.decompress(given, CHUNK):
                self._ready += part
                return True
        return False

    def _take(self) -> bytes:
        part = self._packed.read(CHUNK)
        self._head = self._head or part[: len(HEAD)]
        self._sha256.update(part)
        return part


def _unpack(tar: _Unzipped, folder: Path, limits: Limits, bundle: Path) -> str:
    """Write the files of a tar to a folder, and return the SHA-256 of the packed file.

    Hashes of files do not cover the bytes between them, so each header must equal, byte for byte, the one
    that `pack` writes. Compressed bytes depend on the version of zlib, so only gzip's checksum and header are
    compared. `tarfile` is not used where a file could control its use of memory or stack: chains of headers,
    sparse files, links.
    """
    last = ""
    when = None
    num_files = 0
    while (header := tar.read(BLOCK)) != bytes(BLOCK):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        if member.type == tarfile.XHDTYPE:  # for names that are long, or not ASCII
            name, blocks = _long_name(tar, member.size)
            header += blocks + (second := tar.read(BLOCK))
            member = tarfile.TarInfo.frombuf(second, "utf-8", "strict")
            member.name = name
        _check(member, bundle)
        when = int(member.mtime) if when is None else when
        expected = _member(member.name, member.size, bool(member.mode & 0o100), when)
        if header != expected.tobuf(tarfile.PAX_FORMAT, "utf-8") or member.name <= last:
            raise ValueError(NOT_OURS)
        last = member.name
        num_files = num_files + 1
        if num_files > limits.num_files or tar.num_read + member.size > limits.num_bytes:
            most = (
                f"{limits.num_files:,} files"
                if num_files > limits.num_files
                else format_bytes(limits.num_bytes)
            )
            raise UserError(
                f"'{bundle}' is too large",
                why=f"it holds more than {most}",
                todo="If you know where it comes from, allow more with `--max-gib` and `--max-files`",
            )
        _write(tar, member.size, folder / member.name, 0o755 if expected.mode & 0o100 else 0o644)
    if any(tar.read(-tar.num_read % RECORD or RECORD)):
        raise ValueError(NOT_OURS)
    return tar.end()


def _member(path: str, size: int, executable: bool, when: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size = size
    member.mtime = when
    member.mode = 0o755 if executable else 0o644
    return member


def _long_name(tar: _Unzipped, size: int) -> tuple[str, bytes]:
    """The name in an extended header, and that header's blocks."""
    if not 0 < size < LONGEST_NAME + BLOCK:
        raise ValueError(NOT_OURS)
    blocks = tar.read(size + -size % BLOCK)
    _, keyword, name = blocks[:size].partition(b" path=")
    if not keyword:
        raise ValueError(NOT_OURS)
    return name.removesuffix(b"\n").decode("utf-8"), blocks


def _check(member: tarfile.TarInfo, bundle: Path) -> None:
    """Raises UserError unless it is a regular file with a plain name below the bundle."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        why = f"'{member.name}' in it lies outside of it"
    elif member.type != tarfile.REGTYPE or member.size < 0:
        why = f"'{member.name}' in it is not a file"
    elif str(path) != member.name or any(not character.isprintable() for character in member.name):
        why = f"it has a file of the name {member.name!r}"
    else:
        return
    raise UserError(f"'{bundle}' is not a bundle", why=why)


def _write(tar: _Unzipped, size: int, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        for start in range(0, size, CHUNK):
            file.write(tar.read(min(CHUNK, size - start)))
    target.chmod(mode)
    if any(tar.read(-size % BLOCK)):  # padding to the end of the block must be zero
        raise ValueError(NOT_OURS)


def _with_manifest(folder: Path, bundle: Path) -> Path:
    if why := manifest.unreadable(folder, manifest.NAME):
        raise UserError(
            f"'{bundle}' is not a bundle", why=f"{manifest.NAME} {why}", todo="`longca archive` makes one"
        )
    return folder
