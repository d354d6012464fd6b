"""Nobody but a run holds the lock of its results: neither a user who may only read them, nor a copy of the
run that outlives it."""

import errno
import fcntl
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.store.lock import NAME, lock_folder

NOBODY = 65534


def refused_to_nobody(path: Path) -> int:
    """The errno with which another user fails to hold a lock of the file; 0 if it holds one."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 255
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        code = 0
    except OSError as error:
        code = error.errno
    finally:
        os._exit(code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
@pytest.mark.parametrize("before", [None, 0o644], ids=["new", "of an earlier version"])
def test_another_user_cannot_stop_a_run(before: int | None):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        lock = folder / NAME
        if before:
            lock.touch()
            lock.chmod(before)
        with lock_folder(folder):
            pass
        assert refused_to_nobody(lock) == errno.EACCES
        (folder / "readable").touch(0o644)
        assert refused_to_nobody(folder / "readable") == 0, "as it was with the lock"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o600), (0o002, 0o660), (0o077, 0o600), (0o000, 0o666)])
def test_those_who_may_write_can_lock_it(tmp_path: Path, umask: int, mode: int):
    """A folder of a group stays one: with the umask 002, all of the group can run in it, one at a time."""
    old = os.umask(umask)
    try:
        with lock_folder(tmp_path / "s", "part"):
            for path in (tmp_path / "s").iterdir():
                assert path.stat().st_mode & 0o777 == mode, path
    finally:
        os.umask(old)


def test_a_lock_is_a_lock(tmp_path: Path):
    with (
        lock_folder(tmp_path),
        pytest.raises(UserError, match="Another run is writing"),
        lock_folder(tmp_path),
    ):
        pass
    file = os.open(tmp_path / NAME, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)


def test_a_fork_that_lives_on_does_not_hold_the_lock(tmp_path: Path):
    ready, writer = os.pipe()
    with lock_folder(tmp_path):
        child = os.fork()
        if not child:
            os.write(writer, b".")
            time.sleep(600)
            os._exit(0)
        assert os.read(ready, 1) == b"."
        with pytest.raises(UserError, match="Another run is writing"), lock_folder(tmp_path):
            pass
    try:
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
