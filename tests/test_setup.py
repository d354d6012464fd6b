"""`make setup` on machines that lack something, packages installed by hash, and what is told of them."""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.helpers.support import ROOT
from tools import setup

SETUP = ROOT / "tools/setup.py"
NOWHERE = "http://127.0.0.1:1/simple"


def old_pythons() -> list[str]:
    """Interpreters from 3.6 to 3.10 on this machine."""
    folders = [path / "bin/python3" for path in sorted(Path.home().glob(".pyenv/versions/3.*"))]
    names = [shutil.which(f"python3.{minor}") for minor in range(6, 11)]
    texts = [
        str(path)
        for path in (*folders, *filter(None, names))
        if re.search(r"3\.([6-9]|10)(\.\d+/|$)", str(path))
    ]
    return [path for path in texts if "/shims/" not in path]  # those of pyenv are scripts


def one_line(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Exit code 2, and one line of our own."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert done.returncode == 2 and len(lines) == 1 and not done.stdout, done.stdout + done.stderr
    for part in expected:
        assert part in lines[0]


def only(folder: Path, *programs: str) -> dict[str, str]:
    """An environment of a machine that has no other programs, above all no `which`, no Git and no
    compiler."""
    folder.mkdir()
    for name in programs:
        if texts := shutil.which(name):
            (folder / name).symlink_to(texts)
    return {"PATH": str(folder), "HOME": str(folder)}


@pytest.mark.parametrize("minor", range(6, 11))
def test_an_old_python_can_read_it(minor):
    tree = ast.parse(SETUP.read_text(encoding="utf-8"), feature_version=(3, minor))
    assert not [
        node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ], "3.6 knows no annotations"


@pytest.mark.skipif(not old_pythons(), reason="no Python from 3.6 to 3.10 is here")
def test_an_old_python_says_in_one_line_what_to_install(tmp_path):
    env = only(tmp_path / "bin")
    for python in old_pythons():
        done = subprocess.run([python, SETUP], capture_output=True, text=True, env=env, check=False)
        one_line(done, "is too old: longca needs 3.11 or newer. Install one", "apt-get install")
    (tmp_path / "bin/python3.12").symlink_to(sys.executable)
    done = subprocess.run([old_pythons()[0], SETUP], capture_output=True, text=True, env=env, check=False)
    one_line(done, "Run `make PYTHON=python3.12 …`")


def test_without_a_python_one_line_says_so(tmp_path):
    done = subprocess.run(
        ["make", "-C", ROOT, "setup", "PYTHON=python3.11-is-not-here"],
        env=only(tmp_path / "bin", "sh") | {"MAKEFLAGS": "--no-print-directory"},
        capture_output=True,
        text=True,
        check=False,
        executable=shutil.which("make"),
    )
    one_line(done, "there is no python3.11-is-not-here. Install Python 3.11 or newer")


def test_without_venv_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match="2"):
        setup.check_machine()
    assert "has no venv. Install it: `apt-get install python3-venv`" in capsys.readouterr().err


@pytest.mark.parametrize("program", setup.PROGRAMS)
def test_a_program_that_the_workflow_needs_is_named(monkeypatch, capsys, program):
    """Snakemake's plug-in for Slurm calls `which` while it is imported, and containers of Fedora have
    none."""
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name == program else real(name, *rest))
    with pytest.raises(SystemExit, match="2"):
        setup.check_machine()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"There is no {program} here, which the workflow needs. Install the package" in line


def test_a_checkout_of_somebody_else_is_told_in_one_line(tmp_path):
    (tmp_path / "longca/tools").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", "tools/setup.py"):
        shutil.copy(ROOT / name, tmp_path / "longca" / name)
    (tmp_path / "longca").chmod(0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    paths = (
        f"/usr/bin/python3.{minor}" for minor in range(11, 20)
    )  # others may lie in a folder that is closed to other users
    python = next((path for path in paths if Path(path).exists()), sys.executable)
    done = subprocess.run(
        [python, tmp_path / "longca/tools/setup.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **other,
    )
    one_line(done, "is not writable for you: copy it")


def test_nor_does_it_help_that_all_is_installed_there(monkeypatch, capsys, tmp_path):
    """Snakemake would end in a traceback."""
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup, "VENV", tmp_path)
    (tmp_path / "stamp").write_text(setup.wanted())
    setup.main()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(ROOT) and real(path, mode))
    with pytest.raises(SystemExit, match="2"):
        setup.main()
    assert "is not writable for you" in capsys.readouterr().err


def failure(monkeypatch, capsys, *arguments: str) -> str:
    """The line with which `setup` ends when this Python's pip fails."""
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    with pytest.raises(SystemExit, match="2"):
        setup.pip(*arguments)
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_without_a_network_one_line_says_what_is_needed(monkeypatch, capsys, tmp_path):
    line = failure(
        monkeypatch,
        capsys,
        "download",
        "--isolated",
        "--retries",
        "0",
        "--no-deps",
        "-d",
        str(tmp_path),
        "--index-url",
        NOWHERE,
        "numpy==2",
    )
    assert (
        "No package index gives what is needed" in line
        and "PIP_INDEX_URL" in line
        and "PIP_FIND_LINKS" in line
    )


def test_a_file_of_another_hash_is_refused(monkeypatch, capsys, tmp_path):
    wheel = small_wheel(tmp_path, "2.13.0")
    (tmp_path / "lock").write_text(f"torch @ {wheel.as_uri()} --hash=sha256:{'0' * 64}\n")
    line = failure(
        monkeypatch,
        capsys,
        "install",
        "--isolated",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--require-hashes",
        "-r",
        str(tmp_path / "lock"),
    )
    assert "A file is not the one that the lock names (torch" in line


def test_a_newer_package_than_the_lock_names_changes_nothing(monkeypatch, tmp_path):
    pinned = [
        small_wheel(tmp_path, "1", "plugin", "Requires-Dist: base[extra]>=1\n"),
        small_wheel(tmp_path, "1", "base"),
    ]
    small_wheel(tmp_path, "2", "base")
    lock = "".join(
        f"{wheel.name.split('-')[0]}==1 --hash=sha256:{setup.file_digest(wheel)}\n" for wheel in pinned
    )
    (tmp_path / "lock").write_text(lock)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup, "VENV", tmp_path)
    actual = setup.install(
        "two packages",
        "nothing",
        "--isolated",
        "--dry-run",
        "--no-index",
        "--find-links",
        str(tmp_path),
        "-r",
        str(tmp_path / "lock"),
    )
    assert actual == {wheel.name.split("-")[0]: setup.file_digest(wheel) for wheel in pinned}


def small_wheel(folder: Path, version: str, name: str = "torch", needs: str = "") -> Path:
    """A wheel that holds nothing."""
    import zipfile

    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        info = f"{name}-{version}.dist-info"
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def installed(monkeypatch, tmp_path) -> list[list[str]]:
    """The commands that would have been given to pip; only the look into link folders is real."""
    commands: list[list[str]] = []
    real = setup.run_pip

    def run(arguments):
        if "--dry-run" in arguments:
            return real(
                [
                    "--isolated",
                    *arguments,
                    *(["--find-links", links] if (links := os.environ.get("LINKS")) else []),
                ]
            )
        commands.append(arguments)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    for name in ("STAMP", "RECORDED_LOCK", "RECORDED_TORCH"):
        monkeypatch.setattr(setup, name, tmp_path / name)
    monkeypatch.setattr(setup, "run_pip", run)
    monkeypatch.setattr(setup, "torch_in", lambda _: None)
    monkeypatch.setattr(
        setup, "make_environment", lambda: (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    )
    for name in ("TORCH_INDEX", "TORCH_LOCK", "LINKS"):
        monkeypatch.delenv(name, raising=False)
    return commands


@pytest.mark.parametrize(
    ("index", "lock"), [(None, "torch.lock"), ("https://download.pytorch.org/whl/cpu", "torch-cpu.lock")]
)
def test_all_is_installed_by_hash(installed, monkeypatch, index, lock):
    if index:
        monkeypatch.setenv("TORCH_INDEX", index)
    monkeypatch.setattr(setup, "torch_of_links", lambda: None)
    setup.make()
    *packages, own = installed
    assert own[-3:] == ["--no-build-isolation", "-e", str(ROOT)] and "--no-deps" in own
    assert [command[-1] for command in packages] == [str(ROOT / "requirements.lock"), str(ROOT / lock)]
    assert all("--require-hashes" in command and command[-2] == "-r" for command in packages)


def test_packages_are_installed_before_those_of_the_machines_torch_are_seen(monkeypatch, tmp_path):
    """Else pip finds some of them there and leaves them out, and their programs are not in .venv/bin."""
    other = tmp_path / "lib/python3.11/site-packages/torch_of_the_machine.pth"
    seen = []
    other.parent.mkdir(parents=True)
    other.write_text("of a setup before")
    monkeypatch.setattr(setup, "VENV", tmp_path)
    for name in ("STAMP", "RECORDED_LOCK"):
        monkeypatch.setattr(setup, name, tmp_path / name)
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(setup, "run_pip", lambda _: (seen.append(other.exists()), done)[1])
    monkeypatch.setattr(setup, "torch_in", lambda _: tmp_path / "site")
    monkeypatch.setattr(setup, "make_environment", lambda: None)
    setup.make()
    assert seen == [False, True] and other.read_text() == f"{tmp_path / 'site'}\n"


def test_its_size_is_told_while_pip_removes_folders(monkeypatch, tmp_path):
    """It was "cannot be written" when an older package's folder went between two looks at it."""
    monkeypatch.setattr(setup, "VENV", tmp_path)
    (tmp_path / "kept").write_bytes(bytes(2_000_000))
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            for number in range(40):
                (tmp_path / f"package{number}" / "part").mkdir(parents=True)
            for number in range(40):
                shutil.rmtree(tmp_path / f"package{number}")

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        assert {setup.megabytes() for _ in range(300)} == {2}
    finally:
        done.set()
        thread.join()


def test_it_says_what_pip_does_while_it_unpacks(monkeypatch, tmp_path, capsys):
    """A minute may pass between two sizes. Two of three packages are unpacked; the third one is named."""
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "LOG_SECONDS", 0.3)
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "old-1.dist-info").mkdir(parents=True)
    program = (
        "import pathlib, time; print('Collecting a==1 (from -r lock)', flush=True); time.sleep(1)\n"
        "print('Collecting b==1\\nInstalling collected packages: a, b, c', flush=True); time.sleep(1)\n"
        f"[(pathlib.Path({str(site)!r}) / f'{{name}}-1.dist-info').mkdir() for name in 'ab']; time.sleep(1)"
    )
    command = [sys.executable, "-c", program]
    done = setup.waited_for(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
    said = capsys.readouterr().err
    assert done.returncode == 0 and done.stdout.startswith("Collecting a")
    steps = [
        said.find(part) for part in ("fetching package 1,", "unpacking 1 of 3 (a),", "unpacking 3 of 3 (c),")
    ]
    assert -1 not in steps and steps == sorted(steps), said
    assert " MB on disk after " in said and setup.doing("", 0) == ""


def test_the_torch_of_another_index_needs_a_lock(installed, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TORCH_INDEX", "https://download.pytorch.org/whl/rocm7")
    with pytest.raises(SystemExit, match="2"):
        setup.install_torch()
    assert "Give one of your own with TORCH_LOCK=FILE" in capsys.readouterr().err and not installed
    monkeypatch.setenv("TORCH_LOCK", str(tmp_path / "mine.lock"))
    with pytest.raises(SystemExit, match="2"):
        setup.install_torch()
    (tmp_path / "mine.lock").write_text("torch==2.13.0+rocm7 --hash=sha256:00\n")
    setup.install_torch()
    assert "--require-hashes" in installed[-1] and installed[-1][-1] == str(tmp_path / "mine.lock")


def test_a_wheel_of_ones_own_is_named_by_its_hash(installed, monkeypatch, capsys, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    wheel = small_wheel(links, "2.12.0+mine")
    monkeypatch.setenv("LINKS", str(links))
    setup.install_torch()
    digest = setup.file_digest(wheel)
    assert (
        f"from your own link folder and no lock of longca names it: {wheel} sha256:{digest}"
        in capsys.readouterr().out
    )
    assert (tmp_path / "RECORDED_TORCH").read_text() == f"sha256:{digest}\n"
    assert len(installed) == 2 and all("--require-hashes" in command for command in installed)


def test_a_wheel_that_the_lock_names_is_taken_from_the_link_folder(installed, monkeypatch, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    wheel = small_wheel(links, "2.13.0+cpu")
    (tmp_path / "cpu.lock").write_text(f"torch==2.13.0+cpu --hash=sha256:{setup.file_digest(wheel)}\n")
    monkeypatch.setattr(setup, "CPU_LOCK", tmp_path / "cpu.lock")
    monkeypatch.setenv("LINKS", str(links))
    setup.install_torch()
    assert [command[-1] for command in installed] == [str(tmp_path / "cpu.lock")]
    assert (tmp_path / "RECORDED_TORCH").exists()


def test_records_name_the_file_that_torch_came_from(monkeypatch, tmp_path):
    from longca.lab.bench.measure import environment

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert environment.TORCH_WHEEL not in environment._packages.__wrapped__()
    (tmp_path / setup.RECORDED_TORCH.name).write_text("sha256:ab\n")
    assert environment._packages.__wrapped__()[environment.TORCH_WHEEL] == "sha256:ab"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    "name", ["`touch ran`", "$(touch ran)", "$(shell touch ran)", 'x"; touch ran; "', "quick", "a 'b'.yaml"]
)
def test_make_runs_nothing_of_a_studys_name(tmp_path: Path, name: str):
    """On the command line and in the environment; the workflow gets it as it is."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    snakemake = tmp_path / ".venv/bin/snakemake"
    snakemake.parent.mkdir(parents=True)
    snakemake.write_text('#!/bin/sh\nprintf "study is %s\\n" "$LONGCA_STUDY"\n')
    snakemake.chmod(0o755)
    for words, environ in ([f"STUDY={name}"], {}), ([], {"STUDY": name}):
        done = subprocess.run(
            ["make", "-s", "report", "PYTHON=true", *words],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and f"study is {name}\n" in done.stdout, done.stdout + done.stderr
        assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_report_shows_the_runs_own_progress_and_ends_with_what_failed(tmp_path: Path):
    """Most of Snakemake's own lines are left out; its log is named before, and after a failure."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".snakemake/log").mkdir(parents=True)
    (tmp_path / ".snakemake/log/1.log").touch()
    snakemake = tmp_path / ".venv/bin/snakemake"
    snakemake.parent.mkdir(parents=True)
    snakemake.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    snakemake.chmod(0o755)
    command = ["make", "-s", "-o", "setup", "report", "STUDY=quick"]
    of_make = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS"}
    environ = {name: value for name, value in os.environ.items() if name not in of_make}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environ, check=False
    )  # in a make of its own, not in that of `make test`
    first, asked = done.stdout.splitlines()[:2]
    assert first.startswith("report: measures quick,") and ".snakemake/log" in first
    assert "--quiet rules host progress --show-failed-logs" in asked and done.returncode == 2
    failed = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert failed[-1] == "report: failed; all that Snakemake did is in .snakemake/log/1.log"
