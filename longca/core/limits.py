"""Limits on what a file from outside may cost, each checked before memory is taken. Variables `LONGCA_LIMIT_*` change them.

They are read from the environment alone: the files of settings are read under them, too.
"""

import os
from dataclasses import dataclass

from longca.core.errors import UserError, unknown

PREFIX = "LONGCA_LIMIT_"
LARGEST = 1 << 40


@dataclass(frozen=True)
class Limit:
    """One limit: `default` holds unless its variable is set."""

    name: str
    default: int
    unit: str
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def value(self) -> int:
        """The limit in force, in its unit. Raises UserError where its variable is no whole number of at least 1."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST)) and 1 <= int(text) <= LARGEST):
            raise UserError(f"{self.variable} = '{text}' is no limit", todo=f"Give a whole number of {self.unit} from 1 to {LARGEST}")
        return int(text)

    def num_bytes(self) -> int:
        """The same in bytes, of a limit in MiB."""
        assert self.unit == "MiB"
        return self.value() << 20

    @property
    def todo(self) -> str:
        """The way to a larger limit, to end a message."""
        return f"{self.variable} sets the limit"


YAML = Limit("yaml_mib", 2, "MiB", "A file of YAML: a study, settings, or facts of hardware")
YAML_VALUES = Limit("yaml_values", 200_000, "values", "Values of a file of YAML, each counted as often as aliases repeat it")
CELLS = Limit("cells", 200_000, "cells", "Cells of a study, counted before equal ones become one")
CELL_FILE = Limit("cell_file_mib", 8, "MiB", "The file of one measured cell, and one row of a table of records")
RECORDS = Limit("records_mib", 1024, "MiB", "A file of records, `records.parquet` (unpacked) or `records.json`")
ROWS = Limit("rows", 1_000_000, "rows", "Records of one file")
CORPUS = Limit("corpus_mib", 4, "MiB", "The JSON file of a corpus")
DOCUMENTS = Limit("documents", 10_000_000, "documents", "Documents that are drawn for one sequence")
DOCUMENT = Limit("document_mib", 32, "MiB", "One document of the files that `longca data build` reads")
UNPACKED = Limit("unpacked_ratio", 200, "times", "How often larger than its packed file a corpus archive may be, from 16 MiB on")
LIMITS = (YAML, YAML_VALUES, CELLS, CELL_FILE, RECORDS, ROWS, CORPUS, DOCUMENTS, DOCUMENT, UNPACKED)


def check_variables() -> None:
    """Raises UserError for a variable `LONGCA_LIMIT_*` that is no limit, or whose value cannot be."""
    known = {limit.variable: limit for limit in LIMITS}
    for name in os.environ:
        if name.startswith(PREFIX):
            if name not in known:
                raise unknown("environment variable", name, known)
            known[name].value()
