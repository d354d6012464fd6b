"""Times of the commands: CPU seconds and wall-clock seconds of each, the best of some calls, and whether it keeps its limit.

    python -m benchmarks.cli.times [--calls 3]

Commands that measure, render or start torch have no limit. The commands run in a folder of their own, on the committed records.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from longca.bench.measure.environment import cpu_name, num_cores
from longca.core.plugin import PACKAGE_ROOT

ROOT = PACKAGE_ROOT.parent
RECORDS = ROOT / "reports/h200/power.parquet"
LIMIT_S = 1.0  # CPU seconds
COMMANDS: dict[str, float | None] = {  # command line → limit in CPU seconds, of all cores; "RECORDS" stands for a file of records
    "--version": LIMIT_S, "-h": LIMIT_S, "config show": LIMIT_S, "list": LIMIT_S, "list kernels": LIMIT_S, "list masks": LIMIT_S,
    "status quick": LIMIT_S, "plan quick": LIMIT_S, "plan h200-dense --gpu 'H200 SXM'": LIMIT_S, "plan paper --gpu 'H100 SXM'": 10.0,
    "explain quick -k sdpa -m causal -d fwd -s 512 -c '!*'": LIMIT_S, "data list": LIMIT_S, "data show pile": LIMIT_S,
    "clean quick --json": LIMIT_S,
    "claims RECORDS": None, "report RECORDS --out page.html": None, "doctor": None}


class Timed(NamedTuple):
    """One command, timed."""

    command: str
    cpu_s: float
    """of the process and all that it has started"""
    wall_s: float
    exit_code: int
    limit_s: float | None


def timed(command: str, limit_s: float | None, calls: int, folder: Path) -> Timed:
    """The call of the least CPU time."""
    best: Timed | None = None
    for _ in range(calls):
        before, start_s = os.times(), time.perf_counter()
        done = subprocess.run(f"{sys.executable} -m longca {command.replace('RECORDS', str(RECORDS))}", shell=True, cwd=folder, check=False,
                              capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"})
        after = os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        if best is None or cpu_s < best.cpu_s:
            best = Timed(command, cpu_s, time.perf_counter() - start_s, done.returncode, limit_s)
    assert best is not None
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=3, help="calls of each command")
    calls = parser.parse_args().calls
    print(f"{cpu_name()}, {num_cores()} cores, load {os.getloadavg()[0]:.1f}\n\n| command | CPU s | wall s | limit | exit code |\n"
          "|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for command, limit_s in COMMANDS.items():
            found = timed(command, limit_s, calls, Path(name))
            limit = "" if limit_s is None else f"{limit_s:g} s, {'kept' if found.cpu_s <= limit_s else 'missed'}"
            print(f"| `longca {command}` | {found.cpu_s:.2f} | {found.wall_s:.2f} | {limit} | {found.exit_code} |", flush=True)


if __name__ == "__main__":
    main()
