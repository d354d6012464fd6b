"""The worker process and the pipe to it."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from longca.lab.bench.workers import channel
from longca.lab.bench.workers.channel import BrokenChannel, Channel
from longca.lab.bench.workers.launch import RankPlacement, end
from longca.lab.bench.workers.local import RankProcess
from longca.lab.bench.workers.process import threads_per_rank

START_AND_WAIT = """
import pathlib, sys, time
from longca.lab.bench.workers.launch import RankPlacement
from longca.lab.bench.workers.local import RankProcess
worker = RankProcess(RankPlacement(), "cpu", 1, pathlib.Path(sys.argv[1]) / "worker.log")
if sys.argv[2] == "ready":
    worker.receive()
print(worker.process.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    there, here = os.pipe()
    back, forth = os.pipe()
    return Channel(there, forth), Channel(back, here)


def test_messages_arrive_whole_and_in_order(ends):
    messages = [{"n": 0, "text": "line\nbreak ×"}, {"n": 1, "large": "x" * 300_000}, {"n": 2}]
    sender = threading.Thread(
        target=lambda: ([ends[0].send(message) for message in messages], ends[0].close())
    )
    sender.start()
    assert list(ends[1]) == messages
    sender.join()


def test_a_message_may_arrive_in_pieces(ends):
    os.write(ends[0].writer, b'{"n": 1')
    assert ends[1].receive() == []
    os.write(ends[0].writer, b'}\n{"n": 2}\n{')
    assert ends[1].receive() == [{"n": 1}, {"n": 2}]


def test_both_ends_notice_that_the_other_is_gone(ends):
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(EOFError):
        ends[1].send({})


@pytest.mark.parametrize(
    "written",
    [b"no message\n", b"[" * 100_000 + b"\n", b"[1, 2]\n", b"\xff\n", b'{"n": 1, "n": 2}\n', b"y" * 400_000],
    ids=range(6),
)
def test_what_is_no_message_breaks_the_channel(ends, monkeypatch, written):
    monkeypatch.setattr(channel, "MOST_BYTES", 200_000)

    def send() -> None:
        with suppress(BrokenPipeError):
            os.write(ends[0].writer, written)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(BrokenChannel):
        while True:
            ends[1].receive()
    ends[1].close()
    sender.join(30)
    assert not sender.is_alive()


@pytest.mark.parametrize("stage", ["starting", "ready"])
def test_a_worker_dies_with_a_runner_that_is_killed(tmp_path, stage):
    runner = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, str(tmp_path), stage], stdout=subprocess.PIPE, text=True
    )
    worker = int(runner.stdout.readline())
    assert is_running(worker)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    wait_until_gone(worker)


def test_a_worker_answers_and_leaves_when_told_to(tmp_path):
    worker = RankProcess(RankPlacement(), "cpu", 1, tmp_path / "worker.log")
    assert worker.receive() == [{"found": "cpu"}]
    worker.send({"do": "open"})
    assert worker.receive()[0]["ready"]["type"] == "cpu"
    worker.send({"do": "ping"})
    assert worker.receive() == [{"healthy": True}]
    end([worker], patience_s=5.0)
    assert worker.process.returncode == 0 and not worker.is_alive


@pytest.mark.slow  # the pipe of a runner that is killed ends, too
def test_a_worker_ends_with_its_pipe(tmp_path):
    worker = RankProcess(RankPlacement(), "cpu", 1, tmp_path / "worker.log")
    worker.channel.close()
    assert worker.process.wait(60) in (0, 1)  # 1: it had not said that it is ready


def test_what_it_prints_is_in_its_log(tmp_path):
    worker = RankProcess(RankPlacement(), "cpu", 0, tmp_path / "worker.log")  # torch refuses 0 threads
    worker.begin("a cell")
    with pytest.raises(EOFError):
        worker.receive()
    assert worker.cause_of_death() == "it exited with code 1" and "set_num_threads" in worker.tail()
    assert worker.log.read_text().startswith("== a cell\n")
    end([worker], patience_s=5.0)


def test_threads_are_shared_among_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_per_rank(world) for world in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_rank(2) == 3


def test_a_signal_without_a_name_is_no_crash(tmp_path: Path) -> None:
    worker = RankProcess(RankPlacement(), "cpu", 1, tmp_path / "worker.log")
    os.kill(worker.process.pid, signal.SIGRTMIN + 3)
    assert worker.cause_of_death() == f"it was killed by signal {signal.SIGRTMIN + 3}"
    end([worker])


@pytest.mark.long
def test_threads_where_the_system_does_not_say_which_cores_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does on Linux alone."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_rank(1) == os.cpu_count()
