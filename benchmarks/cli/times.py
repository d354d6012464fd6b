"""Times of the commands: CPU seconds and wall-clock seconds of each, the best of some calls, and whether it
keeps its limit.

    python -m benchmarks.cli.times [--calls 3] [--write docs/results/commands.md]

Commands that measure, render or start torch have no limit. The commands run in a folder of their own, on the
committed records. Python keeps their byte code there, whatever this process is told, so that all calls but
the first find it, as a user's do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from longca.core import PACKAGE_ROOT
from longca.lab.bench import num_cores
from longca.lab.bench.measure.environment import cpu_name
from tools.table import Table, add_options

ROOT = PACKAGE_ROOT.parent
RECORDS = ROOT / "reports/h200/power.parquet"
LIMIT_S = 1.0  # CPU seconds
PLAN_LIMIT_S = 5.0
COMMANDS: dict[
    str, float | None
] = {  # command line → limit in CPU seconds, of all cores; "RECORDS" stands for a file of records
    "--version": LIMIT_S,
    "-h": LIMIT_S,
    "config show": LIMIT_S,
    "list": LIMIT_S,
    "list kernels": LIMIT_S,
    "list masks": LIMIT_S,
    "list matrix": LIMIT_S,
    "status quick": LIMIT_S,
    "plan quick": LIMIT_S,
    "plan h200-dense --gpu 'H200 SXM'": LIMIT_S,
    "plan h200-cp": LIMIT_S,
    "plan paper": PLAN_LIMIT_S,
    "plan paper --gpu 'H100 SXM'": PLAN_LIMIT_S,
    "explain quick -k sdpa -m causal -d fwd -s 512 -c '!*'": LIMIT_S,
    "explain paper -k fa3 -m causal": LIMIT_S,
    "choose causal -s 32K": LIMIT_S,
    "choose causal_document -s 32K -d both": LIMIT_S,
    "advise -m causal -s 1M -w 64": LIMIT_S,
    "claims 3": LIMIT_S,
    "data list": LIMIT_S,
    "data show pile": LIMIT_S,
    "clean quick --json": LIMIT_S,
    "claims RECORDS": None,
    "report RECORDS --out page.html": None,
    "doctor": None,
}
COLUMNS = ("command", "CPU s", "wall s", "limit, CPU s", "kept")


class Timed(NamedTuple):
    """One command, timed."""

    command: str
    cpu_s: float
    """of the process and all that it has started"""
    wall_s: float
    exit_code: int
    limit_s: float | None

    @property
    def is_late(self) -> bool:
        return self.limit_s is not None and self.cpu_s > self.limit_s


def timed(command: str, limit_s: float | None, calls: int, folder: Path) -> Timed:
    """The call of the least CPU time."""
    best: Timed | None = None
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "COLUMNS": "80"}
    for _ in range(calls):
        before = os.times()
        start_s = time.perf_counter()
        done = subprocess.run(
            f"{sys.executable} -m longca {command.replace('RECORDS', str(RECORDS))}",
            shell=True,
            cwd=folder,
            check=False,
            capture_output=True,
            env=environ,
        )
        after = os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        if best is None or cpu_s < best.cpu_s:
            best = Timed(command, cpu_s, time.perf_counter() - start_s, done.returncode, limit_s)
    assert best is not None
    return best


def table(timed: Sequence[Timed], where: str) -> Table:
    limited = [entry for entry in timed if entry.limit_s is not None]
    kept = (
        f"{sum(not command.is_late for command in limited)} of {len(limited)} commands keep their limit. "
        f"{where}; CPU seconds of all cores, best of some calls."
    )
    rows = [
        (
            f"`longca {entry.command}`",
            f"{entry.cpu_s:.2f}",
            f"{entry.wall_s:.2f}",
            *(
                ("–", "–")
                if entry.limit_s is None
                else (f"{entry.limit_s:g}", "no" if entry.is_late else "yes")
            ),
        )
        for entry in timed
    ]
    return Table(
        "command_times",
        kept,
        COLUMNS,
        tuple(rows),
        tuple(entry._asdict() for entry in timed),
        (COLUMNS[0], COLUMNS[-1]),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cli.times", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=3, help="calls of each command (3)")
    add_options(parser)
    options = parser.parse_args(arguments)
    where = f"{cpu_name()}, {num_cores()} cores, load {os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as name:
        records = [
            timed(command, limit_s, options.calls, Path(name)) for command, limit_s in COMMANDS.items()
        ]
    table(records, where).publish(options)
    failed = [record for record in records if record.exit_code not in (0, 1)]
    for entry in failed:
        print(f"longca {entry.command} ended with exit code {entry.exit_code}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
