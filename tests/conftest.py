"""Fixtures for every test: the command line, a tiny study, and the choice of cases of the default run."""

import compileall
import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch. Threads that wait for each other take more time than these sizes need. So do, for the few
# kernels that are compiled here, a pool of processes, trial programs for each vector instruction set of this
# machine, and headers that are compiled beforehand.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["LONGCA_TRIALS"] = "none"  # a trial import costs 0.3 s each: tests of these have them
# what is measured again must not depend on what else this machine does
os.environ["LONGCA_DISTURBED"] = "keep"
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

from longca.lab.bench.measure.warm_math import warm_math
from tests.helpers.collection import is_left_out
from tests.helpers.command import called
from tests.helpers.support import ROOT, TINY, in_interpreter

# Images often tell Python to write no byte code. Each of some hundred processes would then compile the
# package, and each run all tests. So the package is compiled here, and tests are when they are collected.
# Nothing is kept of files that tests write.
WITHOUT_BYTE_CODE = sys.dont_write_bytecode
if WITHOUT_BYTE_CODE:
    compileall.compile_dir(ROOT / "longca", quiet=2)
    sys.dont_write_bytecode = False

settings.register_profile("few", max_examples=15)  # `make test-all` takes all: --hypothesis-profile=default
settings.load_profile("few")
# until all tests are collected: what they import stays, and to scan it again and again takes a fifth of that
# time
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import all modules takes half a minute, and most have no long test."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return is_left_out(collection_path.read_text(encoding="utf-8"), config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each `step`-th case of a function with @pytest.mark.sample(step, start=0) is in the default run. All
    others are slow."""
    counts: dict[object, int] = {}
    for item in items:
        if (mark := item.get_closest_marker("sample")) is not None:
            key = item.path, getattr(item, "originalname", item.name)
            number = counts[key] = counts.get(key, -1) + 1
            step, start = (*mark.args, 0)[:2]
            if number % step != start:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = WITHOUT_BYTE_CODE
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _math_is_warm() -> None:
    """Tests compute in this process, where no measuring session has seen to it: cells measured here free
    their memory as sessions do."""
    warm_math()


@pytest.fixture(scope="module", autouse=True)
def _little_to_scan(_math_is_warm: None) -> None:
    """A measured cell collects garbage three times. What all modules before have imported and cached would
    be scanned each time, for seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_locks(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Tests that measure side by side do not wait for each other: each has its own folder of device locks,
    made at the first lock."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("LONGCA_LOCKS", str(tmp_path_factory.getbasetemp() / "locks" / name))


@pytest.fixture(scope="session", autouse=True)
def _locks_of_long_lived_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes that fixtures start for many tests keep their locks."""
    os.environ["LONGCA_LOCKS"] = str(tmp_path_factory.getbasetemp() / "locks" / "shared")


@pytest.fixture(scope="session", autouse=True)
def _fork_server_ends() -> Iterator[None]:
    """With the tests, so that the time of its processes is part of that of the tests; it would end with this
    process anyway."""
    yield
    forkserver._forkserver._stop()


@pytest.fixture(scope="session")
def interpreted(request: pytest.FixtureRequest) -> str:
    """The output of a process in Triton's interpreter: few cases of each `part` that a chosen test asks for,
    since its start takes seconds."""
    asking = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and "interpreted" in item.fixturenames
    ]
    done = in_interpreter("few", *dict.fromkeys(item.callspec.params["part"] for item in asking))
    return done.stdout + done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def longca(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """longca(*arguments) → the finished command; results go below tmp_path.

    Each start of a process costs a second, so commands that only read are called in this one, and with `here`
    any command.
    """

    def run(*arguments: object, here: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "LONGCA_RESULTS": str(tmp_path / "results"),
            "LONGCA_DEVICE": "cpu",
            "CI": "1",
            "COLUMNS": "200",
            **env,
        }
        command = list(map(str, arguments))
        if here or command[0] in HERE:
            return called(command, environ)
        return subprocess.run(
            [sys.executable, "-m", "longca", *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | environ,
            check=False,
        )

    return run


HERE = (
    "--version",
    "-h",
    "config",
    "clean",
    "plan",
    "explain",
    "list",
    "choose",
    "new",
    "bench",
    "status",
    "export",
    "report",
    "claims",
    "compare",
    "environment",
    "records",
    "archive",
    "verify",
    "data",
)


@pytest.fixture(scope="session")
def with_apptainer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which dry runs find an Apptainer, on machines without one, too: Snakemake asks for its
    version alone."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    (folder / "apptainer").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
