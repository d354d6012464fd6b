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


@dataclass(frozen=True)
class Entry:
    """A file of a bundle."""

    content: bytes
    executable: bool = False


def pack(entries: Mapping[str, Entry], folder: str, when: int) -> bytes:
    """A tar of these files below `folder`, sorted, without owners; the same files give the same bytes.

    Args:
        when: time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as compressed, \
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in sorted(entries.items()):
            member = tarfile.TarInfo(f"{folder}/{path}")
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
    with tempfile.TemporaryDirectory() as name:
        try:
            with tarfile.open(bundle, mode="r:gz") as tar:
                for member in tar:
                    _extract(tar, member, Path(name), bundle)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise UserError(f"'{bundle}' cannot be unpacked", why=" ".join(str(error).split()),
                            todo="It is damaged, or no bundle: get it again") from error
        inside = sorted(Path(name).iterdir())
        yield _with_manifest(inside[0] if len(inside) == 1 else Path(name), bundle)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, bundle: Path) -> None:
    """By hand, since tarfile's own filters are not in every Python 3.11."""
    path, content = PurePosixPath(member.name), tar.extractfile(member) if member.isfile() else None
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"'{bundle}' is no bundle", why=f"'{member.name}' in it lies outside of it")
    if content is not None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.read())
        (folder / path).chmod(0o755 if member.mode & 0o100 else 0o644)
    elif not member.isdir():
        raise UserError(f"'{bundle}' is no bundle", why=f"'{member.name}' in it is neither file nor folder")


def _with_manifest(folder: Path, bundle: Path) -> Path:
    if not (folder / manifest.NAME).is_file():
        raise UserError(f"'{bundle}' is no bundle", why=f"it has no {manifest.NAME}", todo="`longca archive` makes one")
    return folder
