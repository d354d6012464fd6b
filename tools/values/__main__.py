"""Writes the numbers of the pages, and names those that are wrong. See `tools.values`."""

from __future__ import annotations

import argparse
import sys

from tools.pages import ROOT
from tools.values.check import REMEDY, of_code, of_pages, pages
from tools.values.quantities import names
from tools.values.statements import ValueProblem, load, renewed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.values", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where something is wrong"
    )
    options = parser.parse_args()
    statements = load()
    for page in pages() if not options.check else ():
        path = ROOT / page
        if page in statements and statements[page].computed:
            try:
                path.write_text(
                    renewed(path.read_text(encoding="utf-8"), statements[page], names()), encoding="utf-8"
                )
            except ValueProblem:
                continue  # told below
    lines = [*of_pages(statements), *of_code(statements)]
    if lines:
        print("\n".join([*lines, REMEDY]), file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
