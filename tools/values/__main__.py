"""Writes the numbers of the pages, or names those that are wrong. See `tools.values`."""

from __future__ import annotations

import argparse
import sys

from tools.pages import ROOT
from tools.values.check import pages, problems
from tools.values.quantities import names
from tools.values.statements import ValueProblem, load, renewed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.values", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where something is wrong")
    options = parser.parse_args()
    statements = load()
    if not options.check:
        for page in pages():
            if page in statements and statements[page].computed:
                path = ROOT / page
                try:
                    path.write_text(renewed(path.read_text(encoding="utf-8"), statements[page], names()), encoding="utf-8")
                except ValueProblem as error:
                    print(f"{page}: {error}", file=sys.stderr)
    found = problems(statements)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
