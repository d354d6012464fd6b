"""Output of a process: its end is kept, on disk and in memory not more than the limit."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from longca.core.children.output import MOST_READ, Output

FLOOD = "import os\nfor i in range({count}): os.write(1, b'%07d\\n' % i * 8192)\nprint('last words')"


def printed(output: Output, text: str) -> None:
    subprocess.run([sys.executable, "-c", text], stdout=output.writer, check=True)
    os.close(output.writer)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.long
def test_a_flood_is_cut_at_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGCA_LIMIT_LOG_MIB", "2")
    output = Output(tmp_path / "worker.log")
    tracemalloc.start()
    printed(output, FLOOD.format(count=500))
    tail = output.tail()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    output.close()
    assert len(tail) == MOST_READ and tail.endswith("0000499\nlast words\n") and peak < 8 * MOST_READ
    assert 1 << 20 <= size(tmp_path) <= 2 << 20, "of 31 MiB"
    assert output.tail() == tail, "closed, too"


def test_logs_of_one_folder_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGCA_LIMIT_LOG_MIB", "2")
    for number in range(3):
        output = Output(tmp_path / f"worker{number}.log")
        printed(output, FLOOD.format(count=50))
        output.close()
    assert size(tmp_path) <= (2 + 1 + 1) << 20


def test_a_tail_is_what_follows_the_headline(tmp_path: Path):
    output = Output(tmp_path / "worker.log")
    os.write(output.writer, b"before\n")
    output.begin("a cell")
    os.write(output.writer, b"after\n")
    assert output.tail() == "after\n"
    os.close(output.writer)
    output.close()
    assert (tmp_path / "worker.log").read_text() == "before\n== a cell\nafter\n"


def test_a_process_that_lives_on_does_not_keep_it_open(tmp_path: Path):
    output = Output(tmp_path / "worker.log")
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdout=output.writer
    ) as process:
        os.close(output.writer)
        output.close()
        process.kill()


@pytest.mark.timeout(30)
def test_a_fork_of_this_process_does_not_keep_it_open(tmp_path: Path):
    """A plug-in may fork the runner: the copy has each of its descriptors."""
    output = Output(tmp_path / "worker.log")
    os.close(output.writer)
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    try:
        output.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
