"""The lock of a results folder: one run of it at a time, or several runs of different parts.

It is an `flock`, which the system drops with the process that holds it: a killed run leaves nothing to clean up. The
files themselves stay, since removing one would let two processes lock two files of one name.
"""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from longca.core.errors import UserError

NAME = ".lock"
RETRY_SECONDS = 0.2
LONGEST_SIGNATURE = 4096  # bytes; anybody who may write to the folder could write more


@contextmanager
def lock_folder(folder: Path, part: str | None = None, *, wait: bool = False, announce: Callable[[str], object] = print,
                given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold `folder` while the block runs.

    Args:
        part: lock this part alone: other parts may run beside it, but the same part and a run of the whole may not.
        wait: wait for the holder to end instead of being refused.
        announce: is told in one line that and for whom it waits.
        given_up: polled while it waits; once it returns True, KeyboardInterrupt is raised.

    Raises:
        UserError: somebody else holds it (and `wait` is not set), or the folder cannot be written.
    """
    files = []
    try:
        files.append(_take(folder, folder / NAME, fcntl.LOCK_EX if part is None else fcntl.LOCK_SH, wait, announce, given_up))
        if part is not None:
            files.append(_take(folder, folder / f"{NAME}.{part}", fcntl.LOCK_EX, wait, announce, given_up))
        _sign(files[-1])
        yield
    finally:
        for file in reversed(files):
            os.close(file)


def holders(folder: Path) -> list[str]:
    """The processes that hold the folder or a part of it, as "pid 12 on host, since …"."""
    return [_signature(path) for path in sorted(folder.glob(f"{NAME}*")) if _is_held(path)]


def _take(folder: Path, path: Path, mode: int, wait: bool, announce: Callable[[str], object],
          given_up: Callable[[], bool]) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _open(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"Cannot write '{folder}'", why=error.strerror or str(error),
                        todo="Give another folder with `--results`") from error
    try:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = "; ".join(holders(folder)) or "another process"
            if not wait:
                raise UserError(f"Another run is writing '{folder}'", why=holder,
                                todo="Wait for it, stop it, or give another folder with `--results`") from None
            announce(f"Waiting for another run that is writing '{folder}': {holder}")
            _wait(file, mode, given_up)
    except OSError as error:
        os.close(file)
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise UserError(f"Cannot lock '{path}'", why=error.strerror or str(error),
                            todo="Put the results on a file system that has locks, with `--results`") from error
        raise
    except BaseException:
        os.close(file)
        raise
    return file


def _wait(file: int, mode: int, given_up: Callable[[], bool]) -> None:
    """Not by a call that blocks: signals would have no answer until it returns."""
    while not given_up():
        try:
            return fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(RETRY_SECONDS)
    raise KeyboardInterrupt


def _open(path: Path, flags: int) -> int:
    """Open a lock's file. Raises OSError, also for a link or anything else that is no file: it could make us write somewhere else."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(error.errno, f"'{path.name}' in it is {'a link' if path.is_symlink() else 'no file'}: remove it") from error
        raise
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise OSError(errno.EINVAL, f"'{path.name}' in it is {'no file' if found.st_nlink == 1 else 'a hard link'}: remove it")
    return file


def _sign(file: int) -> None:
    """Write down who holds the lock, for the message that refuses others."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode(), 0)
    except OSError as error:
        raise UserError("Cannot write the lock of the results", why=error.strerror or str(error)) from error


def _is_held(path: Path) -> bool:
    try:
        file = _open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _signature(path: Path) -> str:
    try:
        with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
            holder = json.loads(file.read(LONGEST_SIGNATURE))
        return f"pid {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has not signed yet"
