"""The lock of a results folder: one run at a time, or several runs of different parts.

It is an `flock`, which the system releases with its process, so a killed run needs no cleanup. The lock files
are never removed, since otherwise two processes could lock two files of the same name.

Whoever can open a file, if only to read it, can hold an `flock` of it, and so can a reader hold POSIX locks
that stop a writer. So a lock file can be read by those alone who can also write it: with the umask 022 by its
owner, with 002 by its group.
"""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longca.core import UserError
from longca.lab.store.files import make_folder

NAME = ".lock"
RETRY_SECONDS = 0.2
SIGNATURE_BYTES = 4096  # bytes read, since anybody with write access could write more
SHOWN_CHARS = 120  # of each displayed fact


@contextmanager
def lock_folder(
    folder: Path,
    part: str | None = None,
    *,
    wait: bool = False,
    announce: Callable[[str], object] = print,
    given_up: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Lock `folder` during the block.

    Args:
        part: lock only this part: other parts may run concurrently, but not the same part or a run of the
            whole.
        wait: wait for the holder instead of raising.
        announce: receives one line about the wait and the holder.
        given_up: polled while it waits; once it returns True, KeyboardInterrupt is raised.

    Raises:
        UserError: another process holds the lock (and `wait` is not set), or the folder cannot be written.
    """
    files: list[int] = []
    _keep_from_forks(files)
    try:
        files.append(
            _take(
                folder,
                folder / NAME,
                fcntl.LOCK_EX if part is None else fcntl.LOCK_SH,
                wait,
                announce,
                given_up,
            )
        )
        if part is not None:
            files.append(_take(folder, folder / f"{NAME}.{part}", fcntl.LOCK_EX, wait, announce, given_up))
        try:
            write_signature(files[-1], new_signature())
        except OSError as error:
            raise UserError(
                "Cannot write the lock of the results", why=error.strerror or str(error)
            ) from error
        yield
    finally:
        while files:
            os.close(files.pop())


def _keep_from_forks(files: list[int]) -> None:
    """Close these files in copies of this process: one that outlives it would hold the lock for nothing."""

    def close() -> None:
        while files:
            os.close(files.pop())

    os.register_at_fork(after_in_child=close)


def holders(folder: Path) -> list[str]:
    """The holders of the folder or a part of it, as "pid 12 on host, since …"."""
    return [_holder(path) for path in sorted(folder.glob(f"{NAME}*")) if _is_held(path)]


def try_lock(file: int, mode: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting, exclusively or shared (`fcntl.LOCK_SH`). Returns False if it is
    locked. Raises OSError without lock support."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def new_signature() -> dict[str, Any]:
    """The facts about this process in a lock file."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_signature(file: int, signature: dict[str, Any]) -> None:
    """Write the holder to the lock file, for the message to others. A concurrent reader sees the old holder,
    the new one, or neither."""
    content = json.dumps(signature).encode()
    os.pwrite(file, content, 0)
    os.ftruncate(file, len(content))


def read_signature(file: int) -> dict[str, Any]:
    """The signature in a lock file of any content; empty without one."""
    try:
        content = json.loads(os.pread(file, SIGNATURE_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def describe(signature: dict[str, Any]) -> str:
    """The holder in one line of plain characters, for any file content: "pid 12 on host, since …", with its
    command if known."""
    pid, host, since, command = (_plain(signature.get(name)) for name in ("pid", "host", "since", "command"))
    if not pid or not since:
        return "a process that has not signed yet"
    return f"pid {pid} on {host}, since {since}{f' ({command})' if command else ''}"


def _plain(value: object) -> str:
    text = "".join(char if char.isprintable() else "?" for char in str("" if value is None else value))
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def _take(
    folder: Path,
    path: Path,
    mode: int,
    wait: bool,
    announce: Callable[[str], object],
    given_up: Callable[[], bool],
) -> int:
    try:
        make_folder(folder)
        file = _open(path, os.O_RDWR | os.O_CREAT)
        _close_to_readers(file)
    except OSError as error:
        raise UserError(
            f"Cannot write '{folder}'",
            why=error.strerror or str(error),
            todo="Give another folder with `--results`",
        ) from error
    try:
        if not try_lock(file, mode):
            holder = "; ".join(holders(folder)) or "another process"
            if not wait:
                raise UserError(
                    f"Another run is writing '{folder}'",
                    why=holder,
                    todo="Wait for it, stop it, or give another folder with `--results`",
                )
            announce(f"Waiting for another run that is writing '{folder}': {holder}")
            _wait(file, mode, given_up)
    except OSError as error:
        os.close(file)
        raise UserError(
            f"Cannot lock '{path}'",
            why=error.strerror or str(error),
            todo="Put the results on a file system that has locks, with `--results`",
        ) from error
    except BaseException:
        os.close(file)
        raise
    return file


def _wait(file: int, mode: int, given_up: Callable[[], bool]) -> None:
    """Wait by polling, since a blocking call would delay the handling of signals."""
    while not given_up():
        if try_lock(file, mode):
            return
        time.sleep(RETRY_SECONDS)
    raise KeyboardInterrupt


def _open(path: Path, flags: int) -> int:
    """Open a lock file. Raises OSError, also for a link or another non-file, which could redirect the
    write."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o622)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(
                error.errno,
                f"'{path.name}' in it is {'a link' if path.is_symlink() else 'no file'}: remove it",
            ) from error
        raise
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        os.close(file)
        raise OSError(
            errno.EINVAL,
            f"'{path.name}' in it is {'no file' if facts.st_nlink == 1 else 'a hard link'}: remove it",
        )
    return file


def _close_to_readers(file: int) -> None:
    """Let those read the lock file that can write it, and nobody else. Only its owner can; another writer
    leaves it as it is."""
    facts = os.fstat(file)
    mode = stat.S_IMODE(facts.st_mode)
    strict = mode & ~0o444 | (mode & 0o222) << 1
    if mode != strict and facts.st_uid == os.geteuid():
        with suppress(OSError):  # of a file system without permissions
            os.fchmod(file, strict)


def _is_held(path: Path) -> bool:
    try:
        file = _open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not try_lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _holder(path: Path) -> str:
    try:
        file = _open(path, os.O_RDONLY)
        try:
            return describe(read_signature(file))
        finally:
            os.close(file)
    except OSError:
        return describe({})
