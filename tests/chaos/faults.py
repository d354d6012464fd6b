"""Failing system calls and a loss of power, by strace: no file system can be shut down here, so the order of
calls is checked.

    python -m tests.chaos.faults [--tries 3]

writes the number of tries and of those that held, one line a kind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from longca.lab.store.cells import CellStore
from longca.lab.store.decode import Decoder, encode
from longca.lab.studies.cell import Cell
from tests.helpers.records import record
from tests.helpers.support import ROOT

NUM_RECORDS = 6
WRITER = """
import sys
from longca.core.errors import UserError
from longca.lab.store.cells import CellStore
from longca.lab.store.decode import Decoder
store = CellStore(sys.argv[1])
try:
    with store.lock():
        for line in sys.stdin.buffer.read().splitlines():
            record = Decoder().decode(line)
            store.write(record)
            try:
                sys.stdout.write(f"kept {record.cell_id}\\n")
                sys.stdout.flush()
            except OSError:
                pass
except UserError as error:
    sys.exit(f"longca: {error}")
"""
STUDY = """
title: killed
grids: [{kernel: naive, mask: causal, seqlen: [64, 128], heads: '2:1', head_dim: 16, dtype: fp32, direction: fwd}]
"""  # noqa: E501
COMMANDS = ("export", "report", "archive")
"""that write beside records; all others only read"""
FAULTS = [
    (call, error)
    for call in ("openat", "write", "fsync", "rename", "mkdir", "flock")
    for error in ("ENOSPC", "EIO", "EACCES", "EINTR")
    if not (call == "flock" and error in ("ENOSPC", "EACCES"))
]
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")


def can_trace() -> bool:
    """True if processes can be traced here."""
    return (
        shutil.which("strace") is not None
        and not subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode
    )


def texts() -> bytes:
    """Some records, one a line."""
    cells = [Cell(kind="kernel", kernel="naive", mask="causal", seqlen=64 * number, num_q_heads=2, num_kv_heads=1, head_dim=16,  # noqa: E501
                  dtype="fp32", direction="fwd") for number in range(1, NUM_RECORDS + 1)]  # fmt: skip
    return b"".join(encode(record(cell)) for cell in cells)


def traced(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """(the writer's end, the trace of its calls)."""
    trace = folder / "trace"
    command = [
        "strace",
        "-f",
        "-qq",
        "-y",
        "-s",
        "64",
        "-o",
        str(trace),
        *options,
        sys.executable,
        "-c",
        WRITER,
        str(folder / "results"),
    ]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, input=texts(), capture_output=True, env=environ, check=False, timeout=600)
    return done, trace.read_text(errors="replace")


def kept(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("kept ")]


@dataclass
class Disk:
    """A disk's certain content after a part of a trace: a name is safe once its folder was synced after it
    was made, and a file's content once it was synced after the last write."""

    folder: str
    unsafe_names: set[str] = field(default_factory=set)
    unsynced: set[str] = field(default_factory=set)

    def take(self, line: str) -> None:
        match = _CALL.match(line)
        if match is None or int(match[3]) < 0:
            return
        call = match[1]
        text = match[2]
        paths = [path for path in re.findall(r'[<"](/[^>"]*)[>"]', text) if path.startswith(self.folder)]
        if not paths:
            return
        if call in ("mkdir", "mkdirat") or (call == "openat" and "O_CREAT" in text):
            self.unsafe_names.add(paths[-1])
        elif call in ("write", "pwrite64", "ftruncate"):
            self.unsynced.add(paths[0])
        elif call in ("rename", "renameat", "renameat2"):
            old, new = paths
            self.unsafe_names.discard(old)
            self.unsafe_names.add(new)
            if old in self.unsynced:
                self.unsynced = self.unsynced - {old} | {new}
        elif call in ("fsync", "fdatasync"):
            self.unsynced.discard(paths[0])
            self.unsafe_names = {path for path in self.unsafe_names if str(Path(path).parent) != paths[0]}

    def loses(self, path: str) -> str:
        """The part of this file that a loss of power now would destroy; empty if none."""
        parents = [path, *map(str, Path(path).parents)]
        names = [name for name in parents if name in self.unsafe_names]
        return f"the name {names[0]}" if names else "its content" if path in self.unsynced else ""


def lost_to_power(folder: Path) -> list[str]:
    """The written records that a loss of power at the worst moment destroys."""
    done, trace = traced(
        folder,
        "-e",
        "trace=openat,mkdir,mkdirat,write,pwrite64,ftruncate,rename,renameat,renameat2,fsync,fdatasync",
    )
    assert done.returncode == 0, done.stderr
    disk = Disk(str(folder))
    store = CellStore(folder / "results")
    losses = []
    count = 0
    for line in trace.splitlines():
        if match := re.search(r'write\(1<[^>]*>, "kept (\w+)', line):
            count += 1
            if why := disk.loses(str(store.path(match[1]))):
                losses.append(f"{match[1]}: {why}")
        disk.take(line)
    assert count == NUM_RECORDS, trace[-2000:]
    return losses


def fault_harms(folder: Path, call: str, error: str, when: int) -> list[str]:
    """The faults after the calls of this kind on the results have failed from the `when`-th on."""
    results = folder / "results"
    CellStore(results).cells.mkdir(parents=True)
    options = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
    if call == "openat":  # else Python's own files could not be opened
        for path in (
            results / "cells",
            results / ".lock",
            *(CellStore(results).path(name).parent for name in _names()),
        ):
            options += ["-P", str(path)]
    done, trace = traced(folder, *options)
    if "(INJECTED)" not in trace:
        return [f"no {call} failed"]
    harms = []
    if (
        done.returncode not in (0, 1)
        or b"Traceback" in done.stderr
        or (done.returncode and len(done.stderr.splitlines()) != 1)
    ):
        harms.append(f"ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    records, problems = CellStore(results).read_all()
    harms += [f"lost: {name}" for name in sorted({*kept(done)} - {each.cell_id for each in records})]
    harms += [f"damaged: {problem}" for problem in problems]
    again, _ = traced(folder, "-e", "trace=none")
    if again.returncode or len(kept(again)) != NUM_RECORDS:
        harms.append(f"the next run ended with {again.returncode}")
    harms += [f"left behind: {path}" for path in results.rglob("*.tmp")]
    return harms


def command_harms(folder: Path, command: str, call: str, when: int) -> list[str]:
    """The faults after a command was killed at the `when`-th call of this kind on the results."""
    study = folder / "killed.yaml"
    results = folder / "killed"
    study.write_text(STUDY)
    store = CellStore(results)
    for line in texts().splitlines():
        store.write(Decoder().decode(line))
    before = {path: path.read_bytes() for path in results.rglob("*.json")}
    words = [sys.executable, "-m", "longca", command, str(study), "--results", str(folder)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "LONGCA_DEVICE": "cpu", "CI": "1"}
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"]
    killed = ["strace", "-f", "-qq", "-o", os.devnull, *inject, *words]
    end = subprocess.run(killed, env=environ, capture_output=True, check=False, timeout=600).returncode
    if end not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return [f"{command} was not killed: it ended with {end}"]
    harms = [
        f"changed: {path}"
        for path, content in before.items()
        if not path.exists() or path.read_bytes() != content
    ]
    again = subprocess.run(words, env=environ, capture_output=True, check=False, timeout=600)
    if again.returncode not in (0, 1) or again.stderr.startswith(b"longca: "):
        harms.append(f"the next {command} ended with {again.returncode}: {again.stderr.decode()[-300:]}")
    return harms + [f"left behind: {path}" for path in folder.rglob("*.tmp")]


def _names() -> list[str]:
    return [json.loads(line)["cell_id"] for line in texts().splitlines()]


def _fault(call: str, error: str, folder: Path, when: int) -> list[str]:
    return fault_harms(folder, call, error, when)


def _killed(command: str, folder: Path, when: int) -> list[str]:
    return command_harms(folder, command, "rename", 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--tries",
        type=int,
        default=3,
        help="of each call and error: the first, the second … of the calls fails",
    )
    options = parser.parse_args(arguments)
    if not can_trace():
        print("no process can be traced here: install strace")
        return 3
    bad: list[str] = []
    kinds: dict[str, Callable[[Path, int], list[str]]] = {
        "loss of power": lambda folder, when: lost_to_power(folder)
    }
    for call, error in FAULTS:
        kinds[f"{call} fails with {error}"] = partial(_fault, call, error)
    for command in COMMANDS:
        kinds[f"{command} is killed"] = partial(_killed, command)
    for kind, harms_of in kinds.items():
        held = 0
        tries = 1 if kind == "loss of power" else options.tries
        for when in range(1, tries + 1):
            with tempfile.TemporaryDirectory() as name:
                harms = harms_of(Path(name), when)
            held += not harms
            bad += [f"{kind}, {when}: {harm}" for harm in harms]
        print(f"| {kind} | {tries} | {held} |", flush=True)
    print("\n".join(bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
