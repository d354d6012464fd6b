"""Few lines are longer than 110 columns."""

from pathlib import Path

from tests.helpers.support import ROOT

COLUMNS = 110
# share of lines: some kernels, tables and texts are longer
MOST = {"longca": 0.002, "tests": 0.003, "tools": 0.004}


def _share(folder: Path) -> float:
    lengths = [
        len(line) for path in folder.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sum(length > COLUMNS for length in lengths) / len(lengths)


def test_few_lines_are_long():
    too_long = {name: share for name, most in MOST.items() if (share := _share(ROOT / name)) > most}
    assert not too_long, f"share of lines beyond {COLUMNS} columns"
