"""Few lines are longer than 110 columns."""

from pathlib import Path

from tests.support import ROOT

COLUMNS = 110
MOST = {"longca": 0.04, "tools": 0.02}  # share of lines; longca's falls to 0.02 once its laboratory complies


def _share(folder: Path) -> float:
    lengths = [
        len(line) for path in folder.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sum(length > COLUMNS for length in lengths) / len(lengths)


def test_few_lines_are_long():
    too_long = {name: share for name, most in MOST.items() if (share := _share(ROOT / name)) > most}
    assert not too_long, f"share of lines beyond {COLUMNS} columns"
