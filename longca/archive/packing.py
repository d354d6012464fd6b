"""Bundles as files: one compressed tar whose bytes follow from its content alone, and the way back."""

import gzip
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from longca.archive import manifest
from longca.core.errors import UserError

SUFFIX = ".tar.gz"
HEAD = bytes.fromhex("1f8b08000000000002ff")  # of what `gzip.GzipFile` writes: deflate, no name, no time, its best, on any system


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    content: bytes
    executable: bool = False


def pack(entries: Mapping[str, BundleFile], folder: str, when: int) -> bytes:
    """A tar of these files below `folder`, sorted, without owners; the same files give the same bytes.

    Args:
        when: time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as compressed:
        compressed.write(_tar({f"{folder}/{path}": entry for path, entry in entries.items()}, when))
    return packed.getvalue()


def _tar(files: Mapping[str, BundleFile], when: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(entry.content), when, 0o755 if entry.executable else 0o644
            tar.addfile(member, io.BytesIO(entry.content))
    return packed.getvalue()


@contextmanager
def opened(bundle: Path) -> Iterator[Path]:
    """The folder of an unpacked bundle, or of a packed one while the block runs.

    Raises:
        UserError: there is no bundle, or it cannot be unpacked.
    """
    if bundle.is_dir():
        yield _with_manifest(bundle, bundle)
        return
    if not bundle.is_file():
        raise UserError(f"There is no bundle '{bundle}'", todo="`longca archive` makes one")
    try:
        files = _files_of(bundle.read_bytes(), bundle)
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"'{bundle}' cannot be unpacked", why=" ".join(str(error).split()),
                        todo="It is damaged, or no bundle: get it again") from error
    with tempfile.TemporaryDirectory() as name:
        for path, entry in files.items():
            place = Path(name) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(entry.content)
            place.chmod(0o755 if entry.executable else 0o644)
        inside = sorted(Path(name).iterdir())
        yield _with_manifest(inside[0] if len(inside) == 1 else Path(name), bundle)


def _files_of(packed: bytes, bundle: Path) -> dict[str, BundleFile]:
    """The files of a packed bundle, by hand, since tarfile's own filters are not in every Python 3.11.

    Packed again they must give the same tar: hashes of files say nothing of the bytes between them. Of the compression, its own checksum
    and its head must be right: how well zlib compresses depends on its version.
    """
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    content = stream.decompress(packed)
    if not stream.eof:
        raise EOFError("it is cut off")
    files, when = {}, 0
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise UserError(f"'{bundle}' is no bundle", why=f"'{member.name}' in it lies outside of it")
            inner = tar.extractfile(member) if member.isfile() else None
            if inner is None:
                raise UserError(f"'{bundle}' is no bundle", why=f"'{member.name}' in it is no file")
            files[member.name], when = BundleFile(inner.read(), executable=bool(member.mode & 0o100)), int(member.mtime)
    if stream.unused_data or not packed.startswith(HEAD) or _tar(files, when) != content:
        raise ValueError("it is not as `longca archive` packs it")
    return files


def _with_manifest(folder: Path, bundle: Path) -> Path:
    if not (folder / manifest.NAME).is_file():
        raise UserError(f"'{bundle}' is no bundle", why=f"it has no {manifest.NAME}", todo="`longca archive` makes one")
    return folder
