"""Writes the numbers of the pages, and names those that are wrong. See `tools.values`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from tools.pages import ROOT
from tools.values.check import REMEDY, of_code, of_pages, pages
from tools.values.quantities import names
from tools.values.statements import Statements, ValueProblem, load, renewed
from tools.values.suggest import suggestions


def write(statements: Mapping[str, Statements]) -> None:
    """Renews the numbers of all pages; leaves a page alone whose statements do not fit it."""
    for page in pages():
        path = ROOT / page
        if page in statements and statements[page].computed:
            try:
                content = renewed(path.read_text(encoding="utf-8"), statements[page], names())
            except ValueProblem:
                continue  # `of_pages` tells
            path.write_text(content, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.values", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where something is wrong"
    )
    parser.add_argument(
        "--suggest", action="store_true", help="print entries for docs/values.yaml, without reasons"
    )
    options = parser.parse_args()
    statements = load()
    if options.suggest:
        print(suggestions(statements))
        return 0
    if not options.check:
        write(statements)
    lines = [*of_pages(statements), *of_code(statements)]
    if lines:
        print("\n".join([*lines, REMEDY]), file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
