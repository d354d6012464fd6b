"""Strangers on the port of a job: whatever they send or do not send, its tasks meet, and the runner answers
to signals."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from longca.lab.bench.workers import rendezvous as rendezvous_module
from longca.lab.bench.workers.channel import Channel
from longca.lab.bench.workers.job import Job, JobError
from longca.lab.bench.workers.launch import Task
from longca.lab.bench.workers.rendezvous import FOLDER, join_rendezvous
from longca.lab.code.source import package_digest

NAME = "job"
SECONDS = 5.0  # half of what one silent stranger was once waited for


class Gathering:
    """A runner that waits for one other task."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.job: Future[Job] = self._pool.submit(Job, Task(0, 2, 0, "here", NAME), results, self.stop.is_set)
        path = results / FOLDER / f"{NAME}.json"
        while not path.exists() and not self.job.done():
            time.sleep(0.01)
        self.port = json.loads(path.read_text())["port"]

    def stranger(self, words: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        with suppress(OSError):
            connection.sendall(words)
        return connection

    def join(self, **more: str) -> Channel:
        """The other task comes."""
        return join_rendezvous(self.results, NAME, {"task": 1, "host": "there", "local": 0, **more}, SECONDS)

    def close(self) -> None:
        self.stop.set()
        with suppress(BaseException):
            self.job.result(60).close()
        self._pool.shutdown()


@contextmanager
def closing_all(connections: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


@pytest.fixture
def gathering(tmp_path) -> Iterator[Gathering]:
    actual = Gathering(tmp_path)
    yield actual
    actual.close()


@pytest.mark.parametrize(
    "words",
    [
        b"[" * 100_000 + b"\n",
        b'{"a":' * 3000 + b"\n",
        b'{"nonce": "x"}\n' + b"[" * 100_000 + b"\n",
        b"\xff\xfe\x00\n\n\n",
        b"\n" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"nonce": "x"}\n{"proof": "y", "hello": {}}\n',
        b"[]\n",
        b'{"nonce": 3}\n',
        b"9" * 5000 + b"\n",
        b"ab\n" + b"0" * 64 + b' {"task": 1, "host": "evil", "local": 0}\n',
    ],
    ids=lambda words: repr(words[:12]),
)
def test_no_words_of_a_stranger_end_a_job(gathering: Gathering, words: bytes):
    with closing_all([gathering.stranger(words)]), gathering.join():
        assert [agent.host for agent in gathering.job.result(SECONDS).agents] == ["there"]


def test_silent_strangers_hold_up_nobody(gathering: Gathering):
    with closing_all([gathering.stranger(b"x" * (number % 2)) for number in range(30)]):
        begun = time.monotonic()
        with gathering.join():
            assert gathering.job.result(SECONDS).num_ranks == 2
        assert time.monotonic() - begun < SECONDS


@pytest.mark.parametrize("code", ["0123456789ab", package_digest()])
def test_a_task_that_has_imported_another_package_is_refused(gathering: Gathering, code: str):
    with gathering.join(code=code):
        if code == package_digest():
            assert gathering.job.result(SECONDS).num_ranks == 2
        else:
            with pytest.raises(JobError, match="task 1 on there runs another longca than the runner"):
                gathering.job.result(SECONDS)


def test_a_runner_with_silent_strangers_stops_when_told_to(gathering: Gathering):
    with closing_all([gathering.stranger() for _ in range(3)]):
        time.sleep(0.2)
        begun = time.monotonic()
        gathering.stop.set()
        with pytest.raises(KeyboardInterrupt):
            gathering.job.result(60)
        assert time.monotonic() - begun < 2.0


def is_shut(connection: socket.socket, act: Callable[[socket.socket], object], seconds: float) -> bool:
    """True if the other side ends the connection while this one goes on acting."""
    deadline = time.monotonic() + seconds
    connection.settimeout(0.02)
    while time.monotonic() < deadline:
        try:
            act(connection)
            if connection.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("act", "limit"),
    [
        (lambda stranger: stranger.sendall(b"x" * 100_000), 60.0),
        (lambda stranger: stranger.sendall(b"x"), 0.3),
        (lambda stranger: None, 0.3),
    ],
    ids=["endless", "byte by byte", "silent"],
)
def test_a_handshake_is_bounded_in_length_and_time(gathering: Gathering, monkeypatch, act, limit):
    monkeypatch.setattr(rendezvous_module, "HANDSHAKE_SECONDS", limit)
    with gathering.stranger() as stranger:
        assert is_shut(stranger, act, SECONDS)


def test_more_strangers_than_are_served_at_once(gathering: Gathering, monkeypatch):
    monkeypatch.setattr(rendezvous_module, "MOST_HANDSHAKES", 8, raising=False)
    with closing_all([gathering.stranger() for _ in range(40)]), gathering.join():
        assert gathering.job.result(SECONDS).num_ranks == 2


def test_a_task_trusts_no_stranger_on_the_runners_port(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous_module, "HANDSHAKE_SECONDS", 0.3)
    for words in (b"[" * 100_000 + b"\n", b"x" * 100_000, b'{"nonce": "x", "proof": "y"}\n', b"\n", b""):
        with socket.create_server(("127.0.0.1", 0)) as other:
            path = tmp_path / FOLDER / f"{NAME}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                json.dumps({"addresses": ["127.0.0.1"], "port": other.getsockname()[1], "token": "00"})
            )

            def answer(other: socket.socket = other, words: bytes = words) -> None:
                with suppress(OSError):
                    connection, _ = other.accept()
                    with connection:
                        connection.sendall(words)
                        time.sleep(0.5)

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(TimeoutError, match=r"nobody answers at 127\.0\.0\.1"):
                join_rendezvous(tmp_path, NAME, {}, 0.2)
            thread.join()
