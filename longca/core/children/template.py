"""A process that has imported modules, and forks children from itself: each starts in milliseconds where the
imports take seconds.

Its children become children of the process that asked for them, in a session of their own, as if that
process had started them: they can be waited for, and `ps` and `processes.marked` show the command line and
the mark of each. Linux only. Whatever a template cannot do, its caller does by `subprocess`.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from longca.core.children import start
from longca.core.children.processes import MARK, die_with

# from <linux/prctl.h>
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
ROOM = 2000  # bytes for the command line of a child
MOST_BYTES = 100_000  # of a request
MOST_FILES = 64
FORK_SECONDS = 30.0
TICK_SECONDS = 0.25
# what a template says when it is ready, and when it cannot fork: one thread alone survives a fork
READY, THREADS = b"ready", b"threads"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
COMMAND, ENVIRONMENT = 48, 50  # fields of /proc/self/stat, counted from 1: where its memory begins and ends


class ForkedChild:
    """A child that a template forked; the part of `subprocess.Popen` that its callers need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None and timeout is not None:
            handle = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                if not poll.poll(max(timeout, 0.0) * 1000):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
            finally:
                os.close(handle)
        code = self._wait(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Template:
    """The process, as its owner sees it. It starts at once, and imports meanwhile."""

    def __init__(
        self,
        modules: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            modules: to import. They must start no thread.
            environ: its environment; those of its children differ little from it.
            log: file for what the imports print.
            stopped: polled while a fork waits for the imports; once it returns True, KeyboardInterrupt is
                raised.

        Raises:
            OSError: the log cannot be written, or the process not started.
        """
        self.environ = {**environ, MARK: "0" * 16}
        self._is_ready = False
        self._stopped = stopped
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        command = [*start.python("-u"), "-m", __name__, "--socket", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--room", " " * ROOM, *modules]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with theirs, log.open("ab") as file:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=self.environ,
                )
        except BaseException:
            ours.close()
            raise

    def fork(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        changing: frozenset[str],
        output: int,
        descriptors: Sequence[int],
    ) -> ForkedChild | None:
        """A child that runs `-m module argument …`; None if the template cannot make it.

        Args:
            environ: its whole environment.
            changing: variables that may differ from the template's, since nothing reads them at an import.
            output: open file for its output.
            descriptors: open files that it has under the same numbers.
        """
        different = {name for name, value in environ.items() if self.environ.get(name) != value}
        if different - changing - {MARK} or self.environ.keys() - environ.keys():
            return None
        request = {
            "words": list(words),
            "environ": {name: environ[name] for name in different},
            "folder": str(Path.cwd()),
            "descriptors": list(descriptors),
        }
        message = json.dumps(request).encode()
        if len(message) > MOST_BYTES or len(descriptors) >= MOST_FILES or not self._waits():
            return None
        try:
            with _adopted_orphans():
                socket.send_fds(self._socket, [message], [output, *descriptors])
                answer = self._receive(FORK_SECONDS)
        except OSError:
            self.close()
            return None
        if answer is None:  # it hangs or has died: what it may have forked ends with it
            self.close()
            return None
        pid = int(answer)
        return ForkedChild(pid) if pid else None

    def close(self) -> None:
        """Ends the template, and none of its children."""
        self._is_ready = False
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _waits(self) -> bool:
        """True once it has imported all; False if it cannot fork. Raises KeyboardInterrupt."""
        while not self._is_ready and self._socket.fileno() >= 0:
            if self._stopped():
                raise KeyboardInterrupt
            if select.select([self._socket], [], [], TICK_SECONDS)[0]:
                self._is_ready = self._receive(FORK_SECONDS) == READY
                if not self._is_ready:
                    self.close()
        return self._is_ready

    def _receive(self, timeout_s: float) -> bytes | None:
        """Its next message; None at its end, or after the time."""
        self._socket.settimeout(timeout_s)
        with suppress(OSError):
            return self._socket.recv(MOST_BYTES) or None
        return None


@contextmanager
def _adopted_orphans() -> Iterator[None]:
    """A context in which orphans among this process' descendants become its children."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value)


def main() -> None:
    """Imports, forks children as it is asked to, and in a child runs what was asked for."""
    parser = argparse.ArgumentParser()
    for name in ("socket", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--room")
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    die_with(options.parent)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # its parent decides
    _show_command([Path(sys.executable).name, "-m", __name__, *options.modules])
    gc.disable()  # no import leaves garbage: looking for it is a seventh of the import's time
    for module in options.modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    control = socket.socket(fileno=options.socket)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        control.send(THREADS)
        return
    control.send(READY)
    words = _serve(control, options.parent)
    if words:
        sys.argv[:] = words
        importlib.import_module(words[0]).main()


def _serve(control: socket.socket, parent: int) -> list[str]:
    """Forks until the parent closes the socket. Returns in each child, with its module and arguments, and
    empty in the template. A child answers the request itself, once it is what was asked for."""
    while True:
        message, files, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_FILES)
        if not message:
            return []
        request = json.loads(message)
        listed = list(Path("/proc/self/fd").iterdir())
        own = {int(entry.name) for entry in listed if entry.exists()}  # not that of the listing
        if (own - {*files, control.fileno()}) & set(request["descriptors"]):  # of a library
            control.send(b"0")
        elif _is_adopted_fork(parent):
            return _become(request, files, control)
        for file in files:
            os.close(file)


def _is_adopted_fork(parent: int) -> bool:
    """Forks a fork that ends, so that the parent adopts its fork: True in that one, False in the template."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return False
    if os.fork():
        os._exit(0)
    end = time.monotonic() + FORK_SECONDS
    while os.getppid() != parent:
        if time.monotonic() > end:
            os._exit(1)
        time.sleep(0.001)
    return True


def _become(request: Mapping[str, Any], files: Sequence[int], control: socket.socket) -> list[str]:
    """Takes over the files, environment, working folder and command line of a child, and says so. Returns
    its module and arguments."""
    os.setsid()
    wanted = request["descriptors"]
    above = max([*files, *wanted, control.fileno(), 2]) + 1
    answer, output, *others = [
        fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in (control.fileno(), *files)
    ]
    control.close()
    for file in files:
        os.close(file)
    for file, number in ((output, 1), (output, 2), *zip(others, wanted, strict=True)):
        os.dup2(file, number)
    for file in (output, *others):
        os.close(file)
    os.chdir(request["folder"])
    mark = os.environ[MARK]
    os.environ.update(request["environ"])
    _overwrite(ENVIRONMENT, f"{MARK}={mark}".encode(), f"{MARK}={os.environ[MARK]}".encode())
    sys.orig_argv[:] = [*start.python("-u"), "-m", *request["words"]]
    _show_command(sys.orig_argv)
    for number in ENDING:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    with socket.socket(fileno=answer) as runner:
        runner.send(str(os.getpid()).encode())
    return request["words"]


def _show_command(words: Sequence[str]) -> None:
    """Writes this process' command line, as /proc shows it, anew."""
    begin, end = _memory(COMMAND)
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1] + b"\0"
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _overwrite(field: int, old: bytes, new: bytes) -> None:
    """Replaces text by as long a one in the memory that /proc shows."""
    begin, end = _memory(field)
    offset = ctypes.string_at(begin, end - begin).index(old)
    assert len(old) == len(new)
    ctypes.memmove(begin + offset, new, len(new))


def _memory(field: int) -> tuple[int, int]:
    """(begin, end) of the memory that a field of /proc/self/stat and the next one name."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[field - 3]), int(fields[field - 2])
