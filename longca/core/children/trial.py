"""Trial imports: external files are first imported in a separate process, which may exit, crash or hang.

One process tries many files in sequence and reports for each whether it is a plug-in. Its answers are cached
in an environment variable, which child processes inherit.
"""

import hashlib
import json
import os
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals

from longca.core.children.processes import MARK, PROCESSES, kill_all, marked
from longca.core.children.start import environment, python
from longca.core.host import boot_id
from longca.core.reading import CHUNK_BYTES, PLUGIN

Refusal = tuple[str, str, str]
"""what, why and todo of a UserError"""

VARIABLE = "LONGCA_TRIALS"
NONE = "none"
"""its value in a process without trials, since it may crash: a worker"""
MOST_KEPT = 60_000  # characters of that variable: the system allows 131,072
MOST_PRINTED = 10 << 20  # bytes
LAST_PRINTED = 400  # bytes searched for the last line
SLOWEST_READING = 1 << 20  # bytes per second from files; a slower process may hang
LONGEST_READING = 300.0  # seconds: a large library on a cold network disk
TICK_SECONDS = 0.02
GOODBYE_SECONDS = 1.0
MEND = "Mend or remove the file"


def refusals(kind: str, files: Sequence[Path]) -> dict[Path, Refusal]:
    """The files that are not valid plug-ins of this kind, with reasons."""
    if os.environ.get(VARIABLE) == NONE:
        return {}
    keys = {file: _key(kind, file) for file in files}
    known = _known()
    untried = [file for file in files if keys[file] not in known]
    if untried:
        known |= {keys[file]: refusal for file, refusal in _tried(kind, untried).items()}
        text = json.dumps(known)
        if len(text) <= MOST_KEPT:
            os.environ[VARIABLE] = text
    return {file: refusal for file in files if (refusal := known[keys[file]]) is not None}


def _known() -> dict[str, Refusal | None]:
    try:
        verdicts = json.loads(os.environ.get(VARIABLE, "{}"))
        return {
            key: None if parts is None else (parts[0], parts[1], parts[2]) for key, parts in verdicts.items()
        }
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}


def _key(kind: str, file: Path) -> str:
    """A digest of the known inputs of the file's import."""
    try:
        content = file.read_bytes()
    except OSError as error:
        content = str(error).encode()
    where = (
        kind,
        str(file),
        sys.executable,
        sys.version,
        str(Path(__file__)),
        boot_id(),
        os.environ.get("LONGCA_CONTAINER", ""),
    )
    return hashlib.sha256(json.dumps(where).encode() + content).hexdigest()[:24]


def _tried(kind: str, files: Sequence[Path]) -> dict[Path, Refusal | None]:
    verdicts: dict[Path, Refusal | None] = {}
    while left := [file for file in files if file not in verdicts]:
        trial = _Trial(kind, left)
        if trial.strays and len(left) > 1:  # find the file that leaves processes behind
            for file in left:
                verdicts |= _tried(kind, [file])
            break
        verdicts |= trial.verdicts
        if trial.strays:
            verdicts[left[0]] = (
                f"Plug-in '{left[0]}' cannot be imported",
                "its import starts a process that outlives the one that imports it",
                MEND,
            )
        elif len(trial.verdicts) < len(left):
            file = left[len(trial.verdicts)]
            verdicts[file] = (f"Plug-in '{file}' cannot be imported", trial.ending, MEND)
    return verdicts


class _Trial:
    """One process that imports the files, and its result. The constructor waits for its end."""

    def __init__(self, kind: str, files: Sequence[Path]) -> None:
        self.verdicts: dict[Path, Refusal | None] = {}
        """of the first files, up to the file that ended the process"""
        self.ending = ""
        """the reason of that end"""
        self.strays = False
        """the process left running processes behind"""
        self._files = files
        self._nonce = secrets.token_hex(16)
        self._answers = b""
        self._num_printed = 0
        self._printed = b""
        mark = secrets.token_hex(8)
        reader, writer = os.pipe()
        child = None
        try:
            child = subprocess.Popen(
                [*python(), "-m", "longca.core.children.trial_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                start_new_session=True,
                env={**environment(os.environ), MARK: mark},
            )
            os.close(writer)
            self._send(
                child,
                {
                    "path": sys.path,
                    "kind": kind,
                    "files": [str(file) for file in files],
                    "writer": writer,
                    "nonce": self._nonce,
                    "parent": os.getpid(),
                },
            )
            self.ending = self._watched(child, reader)
            self.strays = not self.ending and _leaves_behind(child, mark)
        finally:
            if child is not None:
                kill_all(child.pid, mark)
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
            else:
                os.close(writer)
            os.close(reader)

    @staticmethod
    def _send(child: subprocess.Popen[bytes], request: dict[str, object]) -> None:
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(json.dumps(request).encode() + b"\n")

    def _watched(self, child: subprocess.Popen[bytes], reader: int) -> str:
        """The reason why the process did not reach the last file; empty if it did."""
        assert child.stdout is not None
        seconds = PLUGIN.value()
        begun = time.monotonic()
        since = begun  # time of the last answer or progress in reading
        num_read = 0  # bytes read by then
        poll = select.poll()
        for file in (reader, child.stdout.fileno()):
            poll.register(file, select.POLLIN)
        while len(self.verdicts) < len(self._files):
            ended = child.poll() is not None  # queried before the last answers are read
            for file, _ in poll.poll(0.0 if ended else 1e3 * TICK_SECONDS):
                content = os.read(file, CHUNK_BYTES)
                if not content:
                    poll.unregister(file)
                elif file == reader:
                    since = self._heard(content, since)
                else:
                    self._num_printed += len(content)
                    self._printed = (self._printed + content)[-LAST_PRINTED:]
            if ended and len(self.verdicts) < len(self._files):
                return self._death(child.returncode)
            if self._num_printed > MOST_PRINTED:
                return f"its import prints more than {MOST_PRINTED >> 20} MiB"
            now = time.monotonic()
            read = _bytes_read(child.pid)
            if (
                read - num_read > SLOWEST_READING * (now - since)
                and now - since > 1.0
                and now - begun < LONGEST_READING
            ):
                since = now
                num_read = read
            if now - since > seconds + min(_seconds_queued(child.pid), LONGEST_READING):
                return f"its import is not done after {seconds} s; {PLUGIN.todo}"
        return ""

    def _heard(self, content: bytes, since: float) -> float:
        """Collects the answers and ignores other output. Returns the time of the last answer."""
        self._answers += content
        for line in re.findall(self._nonce.encode() + rb"(.*)\n", self._answers)[len(self.verdicts) :]:
            parts = json.loads(line)
            self.verdicts[self._files[len(self.verdicts)]] = (
                None if parts is None else (parts[0], parts[1], parts[2])
            )
            since = time.monotonic()
        return since

    def _death(self, code: int) -> str:
        known = {number.value: number.name for number in Signals}
        how = (
            f"exits with code {code}" if code >= 0 else f"is killed by {known.get(-code, f'signal {-code}')}"
        )
        lines = self._printed.decode(errors="replace").strip().splitlines()
        return f"the process that imports it {how}" + (f", last words: {lines[-1]}" if lines else "")


def _leaves_behind(child: subprocess.Popen[bytes], mark: str) -> bool:
    """True if processes with this mark are still running after the end of the child."""
    deadline = time.monotonic() + GOODBYE_SECONDS
    while child.poll() is None or marked(mark):
        if time.monotonic() > deadline:
            return True
        time.sleep(TICK_SECONDS)
    return False


def _seconds_queued(pid: int) -> float:
    """Seconds that the process waited for a core, which do not count against it; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int((PROCESSES / str(pid) / "schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _bytes_read(pid: int) -> int:
    """Bytes that the process has read from files, including mapped ones; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        faults = int((PROCESSES / str(pid) / "stat").read_text().rpartition(") ")[2].split()[9])
        counts = dict(line.split(": ") for line in (PROCESSES / str(pid) / "io").read_text().splitlines())
        return int(counts["rchar"]) + faults * os.sysconf("SC_PAGESIZE")
    return 0
