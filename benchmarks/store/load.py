"""Times and memory of the commands that read a whole study, with a study of 100,000 records.

    python -m benchmarks.store.load [--records 100000] [--folder FOLDER] [--save]

The study is made of the committed records (`benchmarks.store.generate`), in some minutes, in a folder that is
removed afterwards, unless one is named: there it is made once. `--save` writes docs/results/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.store.generate import fill, is_filled, write_study
from longca.core import PACKAGE_ROOT
from longca.lab.bench import num_cores
from longca.lab.bench.measure.environment import cpu_name
from tools.reliability import load, save

STUDY = "load"
TIMER = """
import os, subprocess, sys, time
begun = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""  # noqa: E501
"""in a process of its own: a child's peak of memory is never below what its parent had when it was started"""


class Asked(NamedTuple):
    """A command and its limits."""

    command: str
    what: str
    limit_s: float | None
    limit_gib: float | None = None


GIB = 1.0  # of memory, for each command
COMMANDS = (
    Asked("status", "after a copy: all is read", None, GIB),
    Asked("status", "", 1.0, GIB),
    Asked("run", "with nothing to do, which is found out", None, GIB),
    Asked("run", "with nothing to do, as before", 3.0, GIB),
    Asked("export", "after a copy: all is read", None, GIB),
    Asked("export", "", 15.0, GIB),
    Asked("report", "", 30.0, GIB),
    Asked("archive", "", 40.0, GIB),
    Asked("verify", "", 40.0, GIB),
    Asked("advise", "on these records, after a copy", None, GIB),
    Asked("advise", "on these records", 15.0, GIB),
)
OF_OTHER_ARGUMENTS = {
    "verify": ("results/load.tar.gz",),
    "advise": ("-m", "causal", "-s", "128K", "-w", "8", "--records", "results/load"),
}


def main() -> None:
    options = _options()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="longca-load-"))
    try:
        measurement = measured(folder, options.records)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    if options.save:
        save("load", measurement)
    print(load(measurement))


def measured(folder: Path, count: int) -> dict[str, Any]:
    """The numbers of all commands, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results" / STUDY
    made = write_study(folder / f"{STUDY}.yaml", count)
    if not is_filled(made, results):
        shutil.rmtree(results, ignore_errors=True)
        fill(made, results)
    busy = os.getloadavg()[0]
    for name in (results / "cells").glob(".*"):
        name.unlink()
    commands = [{**asked._asdict(), **_timed(asked.command, folder)} for asked in COMMANDS]
    cells = [path.stat().st_size for path in results.glob("cells/*/*.json")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{cpu_name()}, {num_cores()} cores",
        "load": round(busy, 1),
        "num_records": len(cells),
        "bytes": sum(cells),
        "page_bytes": (results / "report.html").stat().st_size,
        "commands": commands,
    }


def _timed(command: str, folder: Path) -> dict[str, float]:
    """Seconds, CPU seconds of all its processes, and the most memory of one of them in MiB."""
    usual = (f"{STUDY}.yaml", "--results", "results")
    words = [sys.executable, "-m", "longca", command, *OF_OTHER_ARGUMENTS.get(command, usual)]
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT.parent), "CI": "1", "LONGCA_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TIMER, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, cpu_s, kib = map(float, done.stdout.splitlines()[-1].split())
    if code not in (0, 1):  # 1 is a verdict: the committed records have failures
        raise RuntimeError(f"`{' '.join(words)}` ended with {code:.0f}: {done.stderr}")
    return {"seconds": round(seconds, 2), "cpu_s": round(cpu_s, 2), "mib": round(kib / 1024)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the study lies, or is made")
    parser.add_argument(
        "--save", action="store_true", help="write what came of it into docs/results/reliability.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
