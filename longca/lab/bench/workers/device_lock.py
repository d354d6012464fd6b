"""The lock of a device: one run at a time measures on a GPU or, where CPUs do the work, on a machine; whoever
has started it.

A lock is an `flock` on a file in a folder of the machine, which all its users share. It is held by the
processes that use the device, so it ends with them, in whatever way. All ranks of one run on one machine
share the lock of its CPUs: the first one holds it, and the others know the run by the signature in the file.

The folder is open to everybody, and so nothing in it is trusted: no link is followed, a file with another
name elsewhere is refused, and a signature is short text for a message. Any user can still hold a lock, and
so make others wait.
"""

import errno
import os
import re
import secrets
import shlex
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longca.core import UserError
from longca.lab.bench.workers.channel import out_of_reach
from longca.lab.store.lock import (
    SHOWN_CHARS,
    describe,
    new_signature,
    read_signature,
    try_lock,
    write_signature,
)

VARIABLE = "LONGCA_LOCKS"
FOLDER = Path(
    "/tmp/longca-locks"
)  # not the folder for temporary files of this user or job: all users must meet in it
SIGNING_SECONDS = 0.02  # between taking a lock and signing it


@dataclass(frozen=True)
class Claimant:
    """A run that claims devices, and how it waits for them."""

    announce: Callable[[str], object] = lambda text: print(text, file=sys.stderr, flush=True)
    """is told in one line that and for whom it waits"""
    given_up: Callable[[], bool] = lambda: False
    """polled while it waits; once it returns True, KeyboardInterrupt is raised"""
    patience_s: float | None = None
    """how long it waits for others each time before UserError is raised; None: without limit"""
    signature: dict[str, Any] = field(
        default_factory=lambda: {
            "run": secrets.token_hex(8),
            "command": _command()[:SHOWN_CHARS],
            **new_signature(),
        }
    )
    """written into the files of the locks that it holds; `run` is the same for all its ranks and no
    other's"""

    def say_waiting(self, holders: Sequence[str]) -> None:
        """Tell whom it waits for, and how the wait ends."""
        limit = "" if self.patience_s is None else f"; at most {self.patience_s:g} s (`--wait`)"
        self.announce(f"Waiting for {holders[0]}{limit}")

    def check_patience(self, waited_s: float, holders: Sequence[str]) -> None:
        """Raise UserError if it has waited for as long as it is willing to."""
        if self.patience_s is not None and waited_s >= self.patience_s:
            raise UserError(
                f"No device was free within {self.patience_s:g} s",
                why=holders[0],
                todo="Wait longer with `--wait SECONDS`, or stop that run",
            )


class DeviceLock:
    """The lock of one device, as one process holds it."""

    def __init__(self, device: str) -> None:
        """
        Args:
            device: the UUID of a GPU, or "cpu" for the CPUs of this machine.
        """
        self.name = f"{re.sub(r'[^0-9A-Za-z-]', '-', device)}.lock"
        self.title = "the CPUs of this machine" if device == "cpu" else device
        self._file: int | None = None
        self._is_watched = False

    def claim(self, signature: dict[str, Any]) -> str:
        """Take the lock unless somebody has it. A second call finds out if it is still held, and is quick.

        Returns:
            Empty if this process or another one of the same run has it, else who does.

        Raises:
            UserError: there can be no lock on this machine.
        """
        with _as_user_error():
            while True:
                folder = _opened_folder()
                try:
                    if self._file is None:
                        self._file = out_of_reach(_opened(folder, self.name))
                        self._watch_forks()
                        if not try_lock(self._file):
                            holder = read_signature(self._file)
                            if holder.get("run") != signature["run"]:  # perhaps that of the one before
                                time.sleep(SIGNING_SECONDS)
                                holder = read_signature(self._file)
                            self.release()
                            return "" if holder.get("run") == signature["run"] else describe(holder)
                        write_signature(self._file, signature)
                    if _is_named(folder, self.name, self._file):
                        return ""
                finally:
                    os.close(folder)
                # somebody has removed the file: another process may lock a new one of this name
                self.release()

    def _watch_forks(self) -> None:
        """Keep the lock from copies of this process: one that outlives it would hold the lock for nothing."""
        if not self._is_watched:
            self._is_watched, lock = True, weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: None if (own := lock()) is None else own.release())

    def release(self) -> None:
        """Give the lock back. In a copy of this process (`fork`) it stays with the original."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def lock_folder_of_machine() -> Path:
    """The folder of locks of this machine: LONGCA_LOCKS, or one that all its users share."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def _command() -> str:
    program = Path(sys.argv[0])
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def _opened_folder() -> int:
    path = lock_folder_of_machine()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o1777)  # as /tmp: everybody may make files in it, and remove their own
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _opened(folder: int, name: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:  # without O_CREAT: in a folder such as this Linux refuses it for a file of somebody else
            file = os.open(name, flags, dir_fd=folder)
            break
        except FileNotFoundError:
            with suppress(FileExistsError):
                file = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
                os.fchmod(file, 0o666)  # whatever the umask: other users lock it, too
                break
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        os.close(file)
        raise OSError(errno.EINVAL, f"{name} is no file of its own")
    return file


def _is_named(folder: int, name: str, file: int) -> bool:
    """True if the name still leads to this file."""
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
        own = os.fstat(file)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)


@contextmanager
def _as_user_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = lock_folder_of_machine()
        raise UserError(
            f"Cannot lock the device in '{folder}'",
            why=error.strerror or str(error),
            todo=f"Give a folder that all users of this machine can write, in {VARIABLE}",
        ) from error
