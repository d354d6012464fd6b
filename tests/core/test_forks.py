"""Work that forks share, and what they leave."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from longca.core.children import forks
from longca.core.children.forks import in_background, in_forks
from tests.helpers.support import ROOT


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_num_cores", lambda: 2)
    others = threading.active_count() - 1  # pytest may have some
    monkeypatch.setattr("threading.active_count", lambda: len(threading.enumerate()) - others)


def test_results_are_in_the_order_of_items_and_made_by_forks():
    def work(item: int) -> tuple[int, bytes, int]:
        time.sleep(0.02 * (item == 0))
        return item, bytes(1 << 20), os.getpid()

    told: list[int] = []
    results = in_forks(work, 7, tell=told.append)
    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert [item for item, *_ in results] == list(range(7))
    assert {content for _, content, _ in results} == {bytes(1 << 20)}, "more than a pipe holds"
    makers = {pid for *_, pid in results}
    assert os.getpid() not in makers and len(makers) == 2


def test_work_in_the_background_is_done_by_a_fork_at_once(tmp_path):
    def work() -> tuple[bytes, int]:
        (tmp_path / "begun").touch()
        return bytes(1 << 20), os.getpid()

    with in_background(work) as result:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        content, maker = result()
    assert len(content) == 1 << 20 and maker != os.getpid()


@pytest.mark.parametrize("fails", ["raises", "is killed", "is not worth it"])
def test_work_in_the_background_that_fails_is_done_here(fails):
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here and fails == "raises":
            raise ValueError
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    with in_background(work, is_worth_it=fails != "is not worth it") as result:
        assert result() == here


def test_work_in_the_background_ends_with_its_context():
    others = set(psutil.Process().children())  # of tests before this one
    with pytest.raises(KeyError), in_background(lambda: time.sleep(600)):
        (child,) = set(psutil.Process().children()) - others
        raise KeyError
    assert not child.is_running()


def test_an_item_that_raises_raises_here():
    class Odd(Exception):
        """No pickle has it."""

    def work(item: int) -> int:
        if item == 3:
            raise Odd(item)
        return item

    with pytest.raises(Odd, match="3"):
        in_forks(work, 5)


def test_what_a_killed_fork_leaves_is_done_here():
    here = os.getpid()

    def work(item: int) -> int:
        if item == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    told: list[int] = []
    makers = in_forks(work, 20, tell=told.append)
    assert told == list(range(1, 21)), "what was made here, too"
    assert makers[1] == here and len(makers) == 20


def test_an_interrupt_ends_all_forks_at_once_and_without_a_word():
    """As by Ctrl-C, which all processes of a terminal's group get."""
    code = """
import os, signal, time
from longca.core.children import forks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background ignores it
forks._num_cores = lambda: 2
def work(item):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
try:
    forks.in_forks(work, 2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    forked = [psutil.Process(int(process.stdout.readline())) for _ in range(2)]
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30) == ("interrupted\n", "") and process.returncode == 0
    assert psutil.wait_procs(forked, timeout=30)[1] == []


def test_a_result_without_a_pickle_is_made_here():
    assert [make() for make in in_forks(lambda item: lambda: item, 3)] == [0, 1, 2]


@pytest.mark.parametrize("why", ["one item", "not worth it", "one core", "a thread", "in a fork", "too many"])
def test_without_forks_all_is_done_here(why: str, monkeypatch: pytest.MonkeyPatch):
    if why == "one core":
        monkeypatch.setattr(forks, "_num_cores", lambda: 1)
    if why == "in a fork":
        monkeypatch.setattr(forks.multiprocessing, "parent_process", lambda: "a process")
    num_items = {"one item": 1, "too many": forks.PIPE_BYTES // forks.ITEM.size + 1}.get(why, 3)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    if why == "a thread":
        thread.start()
    try:
        makers = in_forks(lambda item: os.getpid(), num_items, are_worth_it=why != "not worth it")
    finally:
        ended.set()
    assert makers == [os.getpid()] * num_items
