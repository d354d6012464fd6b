"""Runs a long check and notes when it last passed: `python -m tools.checks TARGET whole|part -- COMMAND …`.

The command's exit code is passed on. If it is 0, the check's row in docs/results/checks.md is written anew.
It is left as it was where the check ran in part: the Makefile says so, or this machine cannot do what some
test needs.
"""

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from longca.lab.bench import num_cores
from longca.lab.bench.measure.environment import cpu_name
from longca.lab.studies.checkout import git
from tools.pages import ROOT, put

PAGE = ROOT / "docs/results/checks.md"
MAKEFILE = ROOT / "Makefile"
MARK = "checks"
COLUMNS = ("target", "last passed", "commit", "tree", "passed", "skipped", "min", "CPU min", "machine")
NEVER = ("never",) + ("",) * (len(COLUMNS) - 2)
# begins the reason of a test that was skipped for want of something that it needs
CANNOT = "this machine cannot:"
REQUIRED = "TESTS_REQUIRE"  # "images slurm": where they cannot be had, tests that need them fail
Row = tuple[str, ...]


def targets() -> list[str]:
    """The targets of the Makefile that are noted, in its order."""
    text = MAKEFILE.read_text(encoding="utf-8")
    rules = re.findall(r"^([a-z][\w -]*):.*\n((?:\t.*\n)+)", text, re.M)
    return [name for names, recipe in rules if "$(NOTED)" in recipe for name in names.split()]


def rows(page: str) -> dict[str, Row]:
    """The rows of the table by target, without the target; one for each target of the Makefile."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| `make ")
    ]
    known = {cells[0].removeprefix("`make ").removesuffix("`"): tuple(cells[1:]) for cells in lines}
    return {target: known.get(target, NEVER) for target in targets()}


def table(content: Mapping[str, Row]) -> str:
    lines = [
        COLUMNS,
        ("---",) * len(COLUMNS),
        *((f"`make {target}`", *row) for target, row in content.items()),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(changes: Mapping[str, Row], page: Path = PAGE) -> None:
    """Write the table with these rows anew, and with the others as they are."""
    text = page.read_text(encoding="utf-8")
    page.write_text(put(text, MARK, table({**rows(text), **changes})), encoding="utf-8")


def state() -> tuple[str, str]:
    """The commit, and "clean" or "changed"; the page of checks does not count, since each check changes
    it."""
    changes = git(ROOT, "status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return git(ROOT, "rev-parse", "--short=10", "HEAD") or "unknown", "clean" if changes == "" else "changed"


def counts(report: Path) -> Counter[str]:
    """Numbers of tests in a report of pytest: passed, skipped, and "unfit", those skipped since the machine
    cannot do them."""
    counted: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        counted["passed" if skipped is None else "skipped"] += 1
        counted["unfit"] += skipped is not None and CANNOT in skipped.get("message", "")
    return counted


def main(words: Sequence[str], page: Path = PAGE) -> int:
    if not words:
        write({})
        return 0
    target, extent, _, *command = words
    commit, tree = state()
    begun = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        by_pytest = "pytest" in command
        code = subprocess.run(
            [*command, *([f"--junitxml={report}"] if by_pytest else [])], cwd=ROOT, check=False
        ).returncode
        number = counts(report) if by_pytest and code == 0 else Counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    why = (
        "a test could not be run here"
        if number["unfit"]
        else "it ran in part"
        if extent == "part"
        else "the commit has changed meanwhile"
        if state()[0] != commit
        else ""
    )
    if code or why:
        print(f"checks: not noted in {PAGE.relative_to(ROOT)}: {why or f'exit code {code}'}", file=sys.stderr)
        return code
    shown = [str(number[name]) if by_pytest else "" for name in ("passed", "skipped")]
    write(
        {
            target: (
                f"{datetime.now(UTC):%Y-%m-%d}",
                commit,
                tree,
                *shown,
                f"{(time.monotonic() - begun) / 60:.1f}",
                f"{cpu_s / 60:.1f}",
                f"{cpu_name()}, {num_cores()} cores",
            )
        },
        page,
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
