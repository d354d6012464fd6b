"""Notes on the tables and pages of a study: digests of all records that they were made of, and of the files.

The times of files do not say it. A clock is set back, files are touched or copied, and an earlier page is
restored from a backup.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from longca.core import UserError
from longca.core.reading import JsonError, read_json
from longca.lab.store.beside.playoffs import PlayoffStore
from longca.lab.store.beside.repeats import RepeatStore
from longca.lab.store.cells import CellStore
from longca.lab.store.files import EXPORTED, file_sha256, replace_file
from longca.lab.store.index import cell_facts

PAGE = "report.html"
PAPER = "paper/index.html"
MADE = {"tables": EXPORTED, "page": (PAGE, "figures"), "paper": (PAPER,)}
"""name → files and folders in a study's folder of results"""


def records_digest(folder: Path, digests: Mapping[str, str] | None = None) -> str:
    """The digest of all valid records in a study's folder of results: cells, play-offs and repeats.

    Args:
        digests: cell_id → digest of its record, where they are known already. Else the cells may be read.
    """
    if digests is None:
        digests = {cell_id: facts.digest for cell_id, facts in cell_facts(CellStore(folder))[0].items()}
    content = hashlib.sha256()
    for cell_id in sorted(digests):
        content.update(f"{cell_id} {digests[cell_id]}\n".encode())
    content.update(PlayoffStore(folder).digest() + RepeatStore(folder).digest())
    return content.hexdigest()


def note_made(folder: Path, name: str, records: str) -> None:
    """Note what was just made. Without write access nothing is noted, and it is made again.

    Args:
        folder: of the study's results.
        name: one of `MADE`.
        records: `records_digest` of the records that it was made of.
    """
    note = {"records": records, "files": _digests(folder, MADE[name])}
    with suppress(UserError):
        replace_file(_note(folder, name), json.dumps(note, indent=1).encode())


def is_made_of(folder: Path, name: str, records: str) -> bool:
    """True if these files are there as they were made, from records with this digest."""
    try:
        note = read_json(_note(folder, name).read_bytes())
        if note["records"] != records:  # then no file need be read
            return False
    except (OSError, JsonError, KeyError, TypeError):
        return False
    return note == {"records": records, "files": _digests(folder, MADE[name])}


def _note(folder: Path, name: str) -> Path:
    return folder / f".made-{name}.json"


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Path in the folder → SHA-256 of each file. Hidden files are Snakemake's."""
    paths = [
        path
        for name in names
        for path in ([folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*")))
        if path.is_file() and not path.name.startswith(".")
    ]
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
