"""The lock of a device: one run at a time measures on it, whoever has started it, and nothing in the folder
of locks is trusted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.bench.run import ending
from longca.lab.bench.workers import group as group_module
from longca.lab.bench.workers.channel import Channel
from longca.lab.bench.workers.device_lock import Claimant, DeviceLock, lock_folder_of_machine
from longca.lab.bench.workers.group import Group
from longca.lab.bench.workers.launch import RankPlacement
from longca.lab.store.cells import CellStore
from tests.helpers.bench.own_files import write
from tests.lab.bench.test_runner import STUDY, workers_of
from tests.lab.bench.test_worker import is_running, wait_until_gone

pytestmark = pytest.mark.long

HOLD = """
import sys, time
from longca.lab.bench.workers.device_lock import Claimant, DeviceLock
print(repr(DeviceLock("cpu").claim(Claimant().signature)), flush=True)
time.sleep(600)
"""
RUN = """
import json, pathlib, sys
from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import run_cells
from longca.lab.studies.config import Config
from tests.helpers.bench.misbehaving import kernel_cell
from tests.helpers.bench.own_files import write
from tests.lab.bench.test_runner import STUDY
cells = [kernel_cell("slow", seqlen) for seqlen in json.loads(sys.argv[3])]
run_cells(STUDY, cells, Config(results=pathlib.Path(sys.argv[1]), device="cpu", progress="plain", disturbed="keep"), part=sys.argv[2])
"""  # noqa: E501
WORKFLOW = """
import os, subprocess, sys
from longca.lab.bench.run.ending import VARIABLE, this_process
os.environ[VARIABLE] = this_process()
subprocess.run(["bash", "-c", 'set -e; "$@"; true', "bash", *sys.argv[1:]])
"""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen]]:
    """started(program, *arguments) → a process that ends with the test."""
    processes: list[subprocess.Popen] = []

    def start(program: str, *arguments: object) -> subprocess.Popen:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", program, *map(str, arguments)],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def part(store: CellStore, shard: str, seqlens: list[int]) -> tuple[object, ...]:
    return store.folder.parent, shard, json.dumps(seqlens)


def measured(store: CellStore) -> set[int]:
    return {record.cell.seqlen for record in store.read_all()[0]}


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_after_a_kill_of_snakemake_only_one_run_measures(plugins, tmp_path, started):
    """The run that is left ends itself at its next cell; the next one waits for it, says so, and measures
    nothing meanwhile."""
    store = CellStore(tmp_path / STUDY.name)
    workflow = started(WORKFLOW, sys.executable, "-c", RUN, *part(store, "a", list(range(8, 90))))
    wait_for(lambda: len(measured(store)) >= 2)
    (left,) = workers_of(workers_of(workflow.pid)[0])
    second = started(RUN, *part(store, "b", [91]))
    line = second.stderr.readline()
    assert (
        line.startswith(f"Waiting for the CPUs of this machine: pid {left} on ")
        and " since " in line
        and is_running(left)
    )
    before = len(measured(store))
    os.kill(workflow.pid, signal.SIGKILL)
    wait_until_gone(left, 15.0)
    assert "since the workflow that started this run is gone: run again to go on" in workflow.stderr.read()
    assert 2 <= len(measured(store)) <= before + 10
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0 and 91 in measured(store) and not store.read_all()[1], errors
    ended = {
        record.cell.seqlen: datetime.fromisoformat(record.started_at).timestamp() + record.seconds
        for record in store.read_all()[0]
    }
    assert ended.pop(91) > max(ended.values())


def test_a_workflow_that_is_gone_is_told_from_one_that_is_there_or_elsewhere():
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from longca.lab.bench.run.ending import this_process; print(this_process()); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    there = {ending.VARIABLE: process.stdout.readline().strip()}
    assert not ending.workflow_is_gone(there)
    process.kill()
    wait_until_gone(process.pid)
    assert ending.workflow_is_gone(there), "as a zombie, whose parent has not noticed"
    process.communicate()
    assert ending.workflow_is_gone(there)
    place, pid, ticks = ending.this_process().split()
    assert not ending.workflow_is_gone({ending.VARIABLE: f"{place} {pid} {ticks}"})
    assert ending.workflow_is_gone({ending.VARIABLE: f"{place} {pid} {int(ticks) - 1}"}), (
        "the number belongs to another process now"
    )
    for text in ("", f"elsewhere {process.pid} 5", place, f"{place} x y", "\0"):
        assert not ending.workflow_is_gone({ending.VARIABLE: text})


def test_the_lock_ends_with_its_process(started):
    holder = started(HOLD)
    assert holder.stdout.readline() == "''\n"
    lock = DeviceLock("cpu")
    signature = Claimant().signature
    assert lock.claim(signature).startswith(f"pid {holder.pid} on ")
    assert DeviceLock("GPU-123").claim(signature) == "", "another device"
    holder.kill()
    holder.wait()
    assert lock.claim(signature) == lock.claim(signature) == ""
    assert (lock_folder_of_machine() / "cpu.lock").stat().st_mode & 0o777 == 0o666
    assert lock_folder_of_machine().stat().st_mode & 0o7777 == 0o1777


def test_processes_of_one_run_share_the_lock_and_one_takes_over():
    first, second, stranger = (DeviceLock("cpu") for _ in range(3))
    signature = Claimant().signature
    assert first.claim(signature) == second.claim(signature) == "" != stranger.claim(Claimant().signature)
    first.release()
    assert second.claim(signature) == "" != stranger.claim(Claimant().signature)
    second.release()
    assert stranger.claim(Claimant().signature) == "" != first.claim(signature)


def test_a_file_that_is_removed_is_locked_anew():
    first = DeviceLock("cpu")
    second = DeviceLock("cpu")
    mine = Claimant().signature
    other = Claimant().signature
    assert first.claim(mine) == ""
    (lock_folder_of_machine() / "cpu.lock").unlink()
    assert second.claim(other) == "" != first.claim(mine), "else both would hold a file of this name"


@pytest.mark.parametrize(
    "make",
    [
        lambda place, target: place.symlink_to(target),
        lambda place, target: place.hardlink_to(target),
        lambda place, target: os.mkfifo(place),
        lambda place, target: place.mkdir(),
        lambda place, target: (place.parent.rmdir(), place.parent.symlink_to(target.parent)),
        lambda place, target: (place.parent.rmdir(), place.parent.write_text("")),
    ],
    ids=["link", "hard link", "fifo", "folder", "linked", "file"],
)
def test_no_link_is_followed_and_nothing_of_others_is_written(tmp_path, make):
    target = tmp_path / "mine" / "precious.txt"
    target.parent.mkdir()
    target.write_text("precious")
    place = lock_folder_of_machine() / "cpu.lock"
    place.parent.mkdir(parents=True)
    make(place, target)
    with pytest.raises(UserError, match="Cannot lock the device in ") as caught:
        DeviceLock("cpu").claim(Claimant().signature)
    assert (
        "\n" not in str(caught.value)
        and target.read_text() == "precious"
        and list(target.parent.iterdir()) == [target]
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 4000,
        "[]",
        "9" * 4000,
        "\0",
        '{"pid": "\\u001b[2J\\n", "since": "x", "command": "' + "y" * 2000 + '"}',
    ],
)
def test_whatever_a_holder_signs_is_told_in_one_plain_line(content):
    holder = DeviceLock("cpu")
    lock = DeviceLock("cpu")
    assert holder.claim(Claimant().signature) == ""
    (lock_folder_of_machine() / "cpu.lock").write_text(content)
    claimed = lock.claim(Claimant().signature)
    assert claimed and claimed.isprintable() and len(claimed) < 600


class Ranks:
    """A launcher of two ranks, which the test answers for."""

    num_ranks = None
    lost = ""

    def __init__(self, attempts: int = 4) -> None:
        self.attempts = attempts

    def start(self, world: int, device: str, log: Path) -> list["FakeRank"]:
        return [FakeRank(rank, self.attempts) for rank in range(world)]


class FakeRank:
    host = ""
    log = Path()
    is_alive = True

    def __init__(self, rank: int, attempts: int) -> None:
        self.attempts = attempts
        self.placement = RankPlacement(rank, 2)
        self.asked = []
        there, self._writer = os.pipe()
        reader, here = os.pipe()
        self.channel = Channel(reader, self._writer)
        self.far = Channel(there, here)
        self.receive = self.channel.receive
        self.fileno = self.channel.fileno
        self.far.send({"found": "cuda"})

    def ask_to_stop(self, *, gently: bool) -> None:
        """Nothing to end."""

    def stop(self, deadline: float) -> None:
        """Nothing to end."""

    def send(self, message: dict) -> None:
        self.asked.append(message["do"])
        attempt = self.asked.count("claim")
        answers = {
            "claim": {
                "device": "GPU-1",
                "holder": "pid 7" if self.placement.rank and attempt < self.attempts else "",
            },
            "release": {},
            "open": {"ready": {"uuid": str(self.placement.rank)}},
        }
        self.far.send(answers[message["do"]])


def test_a_group_takes_all_its_devices_or_none():
    messages: list[str] = []
    group = Group(Ranks(), 2, "cuda", Path(), lambda: False, Claimant(messages.append))
    group.ready()
    assert [rank.asked for rank in group.ranks] == [["claim", "release"] * 3 + ["claim", "open"]] * 2
    assert messages == ["Waiting for GPU-1: pid 7 is measuring on it"]


@pytest.mark.parametrize(("stopped", "given_up"), [(True, False), (False, True)])
def test_waiting_ends_when_told_to(monkeypatch, stopped, given_up):
    monkeypatch.setattr(group_module, "TOLD_AFTER", 1)
    messages: list[str] = []
    group = Group(
        Ranks(),
        2,
        "cuda",
        Path(),
        lambda: stopped and bool(messages),
        Claimant(messages.append, lambda: given_up),
    )
    with pytest.raises(KeyboardInterrupt):
        group.ready()
    assert len(messages) == 1 and not group.is_alive


@pytest.mark.parametrize("patience_s", [0.0, 0.5])
def test_a_wait_ends_with_a_line_that_says_for_whom(patience_s):
    messages: list[str] = []
    claimant = Claimant(messages.append, patience_s=patience_s)
    group = Group(Ranks(attempts=999), 2, "cuda", Path(), lambda: False, claimant)
    begun = time.monotonic()
    said = f"No device was free within {patience_s:g} s: GPU-1: pid 7 is measuring on it. Wait longer with"
    with pytest.raises(UserError, match=said):
        group.ready()
    assert patience_s <= time.monotonic() - begun < patience_s + 5 and not group.is_alive
    assert messages in (
        [],
        [f"Waiting for GPU-1: pid 7 is measuring on it; at most {patience_s:g} s (`--wait`)"],
    )


@pytest.mark.parametrize(
    ("command", "limit"), [("bench", "; at most 600 s (`--wait`)\n"), ("run", "\n")], ids=["bench", "run"]
)
def test_commands_wait_no_longer_than_they_are_told_and_ctrl_c_ends_the_wait(
    started, tiny, tmp_path, command, limit
):
    """A user at a terminal waits for ten minutes, unless told; a run, which may be one of several, for all
    that are before it."""
    holder = started(HOLD)
    assert holder.stdout.readline() == "''\n"
    study = [str(tiny), "--results", str(tmp_path / "results"), "--device", "cpu", "--progress", "plain"]
    words = {"run": study, "bench": [str(write(tmp_path)), "--device", "cpu", "--rivals", "none"]}[command]
    call = "from longca.lab.cli.entry import main; main()"
    ended = started(call, command, *words, "--wait", "1")
    _, errors = ended.communicate(timeout=120)
    assert ended.returncode == 2 and f"pid {holder.pid} on " in errors and "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("longca: No device was free within 1 s: ") and "`--wait SECONDS`" in last
    waiting = started(call, command, *words)
    line = waiting.stderr.readline()
    assert line.startswith("Waiting for the CPUs of this machine: ") and line.endswith(limit)
    assert "at most" in line or command == "run"
    waiting.send_signal(signal.SIGINT)
    begun = time.monotonic()
    assert waiting.wait(60) == 130 and time.monotonic() - begun < 20
