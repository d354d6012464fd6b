"""Children that a template forks are like those that this process starts itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from longca.core.children.processes import MARK, kill_all, marked
from longca.core.children.template import ForkedChild, Template

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
MODULE = "tests.core.forked"
ENVIRON = {**os.environ, "SIZE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
ENV_MARK = "f" * 16


@pytest.fixture
def template(tmp_path: Path) -> Iterator[Template]:
    template = Template([MODULE], ENVIRON, tmp_path / "logs/template.log")
    yield template
    template.close()


def fork(
    template: Template, output: Path, *words: str, files: tuple[int, ...] = (), **variables: str
) -> ForkedChild | None:
    with output.open("wb") as file:
        environ = {**ENVIRON, MARK: ENV_MARK, **variables}
        return template.fork([MODULE, *words], environ, frozenset({"SIZE"}), file.fileno(), files)


def test_a_child_has_its_own_command_environment_files_and_session(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader, writer = os.pipe()
    output = tmp_path / "out.txt"
    child = fork(template, output, "facts", str(writer), files=(writer,), SIZE="22")
    assert child is not None
    os.close(writer)
    with os.fdopen(reader) as pipe:
        facts = dict(line.split("=", 1) for line in pipe.read().splitlines())
    assert child.wait(30) == child.poll() == 3
    assert output.read_text() == "to its output\n"
    assert facts == {
        "parent": str(os.getpid()),
        "session": str(child.pid),
        "size": "22",
        "folder": str(tmp_path),
        "files": str(writer),
        "words": f"facts {writer}",
        "command": f"-m {MODULE} facts {writer}",
        "marked": ENV_MARK,
        "imported": "once",
    }


def test_children_differ_in_what_they_draw(template: Template, tmp_path: Path) -> None:
    children = [fork(template, tmp_path / f"{number}.txt", "draw") for number in range(2)]
    assert [child and child.wait(30) for child in children] == [0, 0]
    assert (tmp_path / "0.txt").read_text() != (tmp_path / "1.txt").read_text()


def test_a_child_is_found_by_its_mark_and_killed_with_its_own(template: Template, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    child = fork(template, output, "sleep")
    assert child is not None and child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert child.pid in marked(ENV_MARK)
    while not output.read_text().strip():
        time.sleep(0.01)
    grandchild = int(output.read_text())
    kill_all(child.pid, ENV_MARK)
    assert child.wait(30) == -signal.SIGKILL
    with suppress(ProcessLookupError):
        for _ in range(1000):
            os.kill(grandchild, 0)
            time.sleep(0.01)
            if Path(f"/proc/{grandchild}/stat").read_text().split()[2] == "Z":
                break
        else:
            pytest.fail("what it has started lives on")


def test_children_outlive_their_template_and_end_with_their_parent(
    template: Template, tmp_path: Path
) -> None:
    child = fork(template, tmp_path / "out.txt", "sleep")
    assert child is not None
    template.close()
    assert child.poll() is None
    assert fork(template, tmp_path / "other.txt", "sleep") is None, "a closed template makes none"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == -signal.SIGTERM


def test_no_child_where_the_environment_differs_otherwise(template: Template, tmp_path: Path) -> None:
    assert fork(template, tmp_path / "out.txt", "facts", OTHER="1") is None
    environ = {name: value for name, value in ENVIRON.items() if name != "SIZE"}
    assert template.fork([MODULE], {**environ, MARK: ENV_MARK}, frozenset({"SIZE"}), 1, []) is None


@pytest.mark.parametrize(
    "modules", [["tests.core.no_such_module"], ["tests.core.forked", "tests.core.forked_threads"]]
)
def test_no_child_of_a_template_that_died_or_has_threads(modules: list[str], tmp_path: Path) -> None:
    template = Template(modules, ENVIRON, tmp_path / "template.log")
    assert fork(template, tmp_path / "out.txt", "facts") is None
    template.close()


def test_waiting_for_imports_ends_when_the_run_stops(tmp_path: Path) -> None:
    template = Template([MODULE], ENVIRON, tmp_path / "template.log", stopped=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        fork(template, tmp_path / "out.txt", "facts")
    template.close()
