"""Starting ranks: one worker process each, on this machine.

What a rank must know of its place is in `Place` alone, so that another launcher can start the same worker.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from longca.bench.channel import Channel, Message

GOODBYE_SECONDS = 5.0
TAIL_CHARS = 4000
STACK_SIGNAL = signal.SIGUSR1
FRAME = re.compile(r'File "(.*?([^/"]+))", line (\d+) in (\S+)')  # of a stack as faulthandler prints it


@dataclass(frozen=True)
class Place:
    """Where a rank stands among the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """which of the machine's devices is its own"""
    rendezvous: str = ""
    """URL at which the ranks meet: file:///… on one machine, tcp://host:port among several; empty for one rank"""


class RankProcess:
    """A worker process, seen from the runner.

    It dies with the thread that started it, and its own children with it.
    """

    def __init__(self, place: Place, device: str, num_threads: int, log: Path) -> None:
        """
        Args:
            device: "auto", "cpu" or "cuda".
            num_threads: CPU threads of this rank.
            log: file that takes all it prints.
        """
        self.place = place
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._mark = self._stack_mark = 0
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self.channel = Channel(reader, writer)
        options = {**asdict(place), "device": device, "threads": num_threads, "reader": child_reader,
                   "writer": child_writer, "parent": os.getpid()}
        command = [sys.executable, "-u", "-m", "longca.bench.worker"]
        command += [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        try:
            with log.open("ab") as output:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                pass_fds=(child_reader, child_writer), start_new_session=True,
                                                env={**os.environ, "OMP_NUM_THREADS": str(num_threads)})
        except BaseException:
            self.channel.close()
            raise
        finally:
            os.close(child_reader)
            os.close(child_writer)

    def fileno(self) -> int:
        return self.channel.fileno()

    def send(self, message: Message) -> None:
        self.channel.send(message)

    def receive(self) -> list[Message]:
        return self.channel.receive()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def begin(self, title: str) -> None:
        """Head the part of the log that `tail` will show. A disk too full for it is the store's to report."""
        with suppress(OSError), self.log.open("ab") as output:
            output.write(f"== {title}\n".encode())
            self._mark = output.tell()

    def tail(self) -> str:
        """The end of what it has printed since `begin`."""
        with self.log.open("rb") as output:
            output.seek(self._mark)
            return output.read().decode(errors="replace")[-TAIL_CHARS:].strip()

    def ask_for_stack(self) -> None:
        """Have it print where it is, which works while it waits inside a library."""
        self._stack_mark = self.log.stat().st_size
        if self.is_alive:
            self.process.send_signal(STACK_SIGNAL)

    def whereabouts(self) -> str:
        """File and line of what it was doing when it was asked; empty where it did not say."""
        with self.log.open("rb") as output:
            output.seek(self._stack_mark)
            frames = FRAME.findall(output.read().decode(errors="replace"))
        own = [frame for frame in frames if "/torch/" not in frame[0]]
        return "{1}:{2} in {3}".format(*(own or frames)[0]) if frames else ""

    def cause_of_death(self) -> str:
        """How the process ended; waits for its end, which must be near."""
        code = self.process.wait()
        if code >= 0:
            return f"it exited with code {code}"
        name = signal.Signals(-code).name
        hint = ", which is also how the system frees memory when it runs out" if name == "SIGKILL" else ""
        return f"it was killed by {name}{hint}"

    def stop(self, *, gently: bool) -> None:
        """End it, in time or by force, with all processes it has started."""
        if gently and self.is_alive:
            with suppress(EOFError, subprocess.TimeoutExpired):
                self.send({"do": "exit"})
                self.process.wait(GOODBYE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()


def threads_per_rank(world: int) -> int:
    """CPU threads of each of `world` ranks of this machine; OMP_NUM_THREADS is heeded."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, len(os.sched_getaffinity(0)) // world)
