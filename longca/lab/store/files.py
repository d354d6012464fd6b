"""Atomic writing of files."""

import contextlib
import errno
import fcntl
import filecmp
import glob
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from longca.core import UserError

EXPORTED = ("records.parquet", "records.csv", "records.json")
"""tables of all records, beside a page"""
TEMPORARY = ".tmp"  # ends the name of a file that is being written
# of folders, on some network file systems
CANNOT_SYNC = errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES


def file_sha256(path: Path) -> str:
    """The digest of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(
    path: Path, content: bytes | Iterable[bytes], mode: int = 0o666, *, unless_equal: bool = False
) -> None:
    """Write to a temporary file and rename it, so that readers see the old file or the new one even if the
    writer dies. Raises OSError.

    When it returns, the new file is on the disk under its name: a loss of power cannot take it back. A folder
    that is made for it must be made by `make_folder`.

    Args:
        content: the whole content, or its chunks.
        mode: permissions of a new file, restricted by the process's umask.
        unless_equal: leave a file with this content untouched.
    """
    temporary, file = _temporary(path, mode)
    try:
        with file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            if unless_equal and path.is_file() and filecmp.cmp(temporary, path, shallow=False):
                temporary.unlink()
            else:
                os.fsync(file.fileno())
                temporary.replace(path)
                sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    remove_leftovers(path.parent.glob(f".{glob.escape(path.stem)}.*{TEMPORARY}"))


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents so that a loss of power cannot take them back. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def require_folder(folder: Path) -> None:
    """Make a folder, and check that files can be written to it, before the work whose results it gets.

    Raises:
        UserError: it is a file, or cannot be made or written to.
    """
    if folder.is_file():
        raise UserError(f"Cannot write to '{folder}'", why="it is a file", todo="Give a folder")
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"Cannot write to '{folder}'", why=error.strerror or str(error), todo="Give another folder"
        ) from error


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk: without it, a loss of power can take back a rename that has
    returned. File systems that cannot do so are left as they are.

    Raises OSError if the disk is full or broken.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(file)


def keep(path: Path, content: bytes, *, safe: str) -> Path:
    """Replace the content of a file atomically, and create a missing folder.

    Args:
        safe: subject of the message's assurance that a failure loses nothing: "Finished cells are".

    Raises:
        UserError: the disk is full, the folder is read-only, or the like; the old file is kept.
    """
    try:
        make_folder(path.parent)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(
            f"Cannot write '{path}'",
            why=error.strerror or str(error),
            todo=f"{safe} safe: make room or give another folder, and run again",
        ) from error
    return path


def _temporary(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new temporary file next to `path`, locked while it is open: an unlocked one has no writer any
    more."""
    while True:
        temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{TEMPORARY}")
        file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
        # of a file system without locks, where no file counts as left over
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        if temporary.exists():  # otherwise another process removed it as left over before it was locked
            return temporary, file
        file.close()


def remove_leftovers(temporary: Iterable[Path]) -> None:
    """Remove temporary files of ended writers, as far as they can be found and removed."""
    with contextlib.suppress(OSError):  # a folder cannot be searched
        for path in temporary:
            with contextlib.suppress(
                OSError
            ):  # already removed, still being written, or not removable: ignored
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(file)


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> Path:
    """Write `content`, or all of its chunks, atomically; a file with this content is not touched."""
    try:
        if isinstance(content, bytes) and path.exists() and path.read_bytes() == content:
            return path
        make_folder(path.parent)
        write_atomically(path, content, unless_equal=not isinstance(content, bytes))
    except OSError as error:
        raise UserError(
            f"Cannot write '{path}'",
            why=error.strerror or str(error),
            todo="Make room, or give another folder",
        ) from error
    return path
