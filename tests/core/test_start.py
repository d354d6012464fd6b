"""A worker imports exactly the package that the process which starts it has imported, wherever Python would
look for one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longca.core.children import start
from longca.core.plugin import PACKAGE_ROOT

STUB = """
import random, sys
import longca
def main():
    print(longca.__file__, random.__file__, *sys.argv[1:3])
if __name__ == "__main__":
    main()
"""
START = """
import random, sys
from pathlib import Path
import longca
from longca.lab.bench.workers.process import WorkerProcess
Path("random.py").write_text("raise SystemExit('a file of the user')")
worker, log = WorkerProcess({"world": 2}, 1, Path(sys.argv[1]), []), Path(sys.argv[1])
worker.wait(60)
worker.close_log()  # a thread writes it
Path("random.py").unlink()
print(longca.__file__, random.__file__, "--world 2")
print(log.read_text(), end="")
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`checkout`, `other` and `lib/site-packages`, each with a package that can only start workers, and
    `user` with another `longca`."""
    folder = tmp_path_factory.mktemp("folders")
    for place in ("checkout", "other", "lib/site-packages"):
        shutil.copytree(
            PACKAGE_ROOT,
            folder / place / "longca",
            ignore=shutil.ignore_patterns("__pycache__", "*.csv", "static"),
        )
        (folder / place / "longca/lab/bench/workers/worker.py").write_text(STUB)
        (folder / place / "longca/starter.py").write_text(START)
    (folder / "bin").mkdir()
    (folder / "bin/starter").write_text("import longca.starter")
    (folder / "bin/notebook").write_text("import sys; sys.path.insert(0, '../other'); import longca.starter")
    (folder / "user/longca").mkdir(parents=True)
    (folder / "user/longca/__init__.py").write_text("raise SystemExit('a folder of the user')")
    return folder


@pytest.mark.parametrize(
    ("working", "pythonpath", "command", "used"),
    [
        ("checkout", None, "-m longca.starter", "checkout"),
        ("checkout", "", "-m longca.starter", "checkout"),
        ("checkout", ":", "-m longca.starter", "checkout"),
        ("checkout", ":../other", "-m longca.starter", "checkout"),
        ("checkout", "../lib/site-packages:", "-m longca.starter", "checkout"),
        ("checkout", "../lib/site-packages", "../bin/starter", "lib/site-packages"),
        ("user", "../lib/site-packages:../checkout", "../bin/starter", "lib/site-packages"),
        ("user", "../checkout", "../bin/starter", "checkout"),
        ("user", "../checkout:", "../bin/starter", "checkout"),
        ("user", "../checkout", "../bin/notebook", "other"),
        ("user", None, "../bin/notebook", "other"),
    ],
)
def test_a_worker_imports_the_package_of_its_runner(folders, tmp_path, working, pythonpath, command, used):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    done = subprocess.run(
        [sys.executable, *command.split(), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        cwd=folders / working,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    runner, *worker = done.stdout.splitlines()
    assert Path(runner.split()[0]).resolve() == folders / used / "longca/__init__.py"
    assert len(worker) == 1 and worker[0].split()[1:] == runner.split()[1:], done.stdout
    assert Path(worker[0].split()[0]) == folders / used / "longca/__init__.py"


def test_what_a_user_has_named_stays_in_the_path():
    kept = start.environment({"PYTHONPATH": ":/mine::lib:", "HOME": "/"})
    assert kept == {"PYTHONPATH": "/mine:lib", "HOME": "/"}
    assert start.environment({"PYTHONPATH": ":"}) == {}
