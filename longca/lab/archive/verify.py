"""Verification of a bundle: every hash, its study, every record, and the rebuilt page.

Nothing outside of the bundle is read: a file counts only if the manifest lists it and its path contains no
link.
"""

import filecmp
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from longca.core import UserError, parse
from longca.lab.archive import manifest, provenance
from longca.lab.archive.page import page_files
from longca.lab.archive.project import MEASURED, PLUGINS
from longca.lab.archive.provenance import PageMaker, Provenance
from longca.lab.report.content import is_same_page
from longca.lab.store import LoadedRows, RecordTable, UnusableFile, load_rows
from longca.lab.store.text import plural
from longca.lab.studies import load_study

SHOWN = 5  # of many differences
LARGEST_TEXT = 1 << 26  # bytes of a file that is read whole before its verification
RECORDS = f"{MEASURED}/records.parquet"
HARDWARE = "config/hardware.yaml"
LISTS = "containers/*/contents.json"


@dataclass(frozen=True)
class Check:
    """The check of one part of a bundle."""

    name: str
    passed: bool
    detail: str
    differences: tuple[str, ...] = ()


def verify(folder: Path) -> list[Check]:
    """All checks of an unpacked bundle, made by the installed longca. No code of the bundle is run.

    Raises:
        UserError: its manifest or its provenance cannot be read.
    """
    try:
        listed = manifest.read_manifest(_text(folder, manifest.NAME))
    except ValueError as error:
        raise UserError(f"'{folder / manifest.NAME}' is damaged", why=str(error)) from error
    try:
        facts = parse(Provenance, json.loads(_text(folder, provenance.NAME)), provenance.NAME)
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{folder / provenance.NAME}' is damaged", why="it is not JSON") from error
    obstacle = _obstacle(folder, listed, RECORDS)
    problems = [UnusableFile(folder / RECORDS, obstacle)] if obstacle else []
    loaded = LoadedRows(RecordTable.of(()), problems) if obstacle else load_rows(folder / RECORDS)
    return [
        _files(folder, listed),
        _study(folder, listed, facts, loaded),
        _records(facts, loaded),
        _page(folder, listed, facts, loaded),
    ]


def _obstacle(folder: Path, listed: dict[str, str], path: str) -> str:
    """The reason why this file of the bundle is not read; empty if it is."""
    return manifest.unreadable(folder, path) or ("" if path in listed else "is not in the manifest")


def _text(folder: Path, path: str) -> bytes:
    file = folder / path
    why = manifest.unreadable(folder, path) or ("is too large" if file.stat().st_size > LARGEST_TEXT else "")
    if why:
        raise UserError(f"'{file}' {why}", todo="`longca archive` makes bundles that have it")
    return file.read_bytes()


def _files(folder: Path, listed: dict[str, str]) -> Check:
    problems = tuple(
        f"{difference.path} {difference.what}" for difference in manifest.differences(folder, listed)
    )
    return Check(
        "files",
        not problems,
        f"{plural(len(listed), 'file')}, {_outcome(problems, 'each with its hash')}",
        problems,
    )


def _study(folder: Path, listed: dict[str, str], facts: Provenance, loaded: LoadedRows) -> Check:
    path = f"config/studies/{facts.study}.yaml"
    if obstacle := _obstacle(folder, listed, path):
        return Check("study", False, f"{path} {obstacle}: the requested cells are unknown")
    try:
        study = load_study(str(folder / path))
    except UserError as error:
        return Check("study", False, f"cannot be read: {error}")
    if (study.name, study.title or study.name) != (facts.study, facts.title):
        return Check(
            "study",
            False,
            f"{path} is study '{study.name}', {provenance.NAME} names '{facts.study}', or their "
            f"titles differ",
        )
    try:
        asked = {cell.cell_id for cell in study.cells()}
    except UserError as error:  # its names may belong to plug-ins of the bundle, which are not installed
        has_plugins = any(name.startswith(f"{PLUGINS}/") for name in listed)
        return Check("study", has_plugins, f"of cells that are unknown here ({error})")
    problems = (
        ()
        if len(asked) == facts.num_cells
        else (f"{provenance.NAME} says {plural(facts.num_cells, 'cell')}, it has {len(asked):,}",)
    )
    measured = len(set(loaded.table.take(loaded.own_rows()).values("cell_id")) & asked)
    return Check(
        "study",
        not problems,
        f"{measured:,} of its {plural(len(asked), 'cell')} have a record"
        + (f", {_outcome(problems, '')}" if problems else ""),
        problems,
    )


def _records(facts: Provenance, loaded: LoadedRows) -> Check:
    problems = [str(problem) for problem in loaded.problems]
    if len(loaded.table) != facts.num_records:
        problems.append(
            f"{provenance.NAME} says {plural(facts.num_records, 'record')}, there are {len(loaded.table)}"
        )
    elif len(loaded.table):
        problems += [
            f"{provenance.NAME} disagrees with the records on: {name}"
            for name, value in provenance.of_records(loaded.table).items()
            if getattr(facts, name) != value
        ]
    return Check(
        "records",
        not problems,
        f"{plural(len(loaded.table), 'record')}, {_outcome(problems, 'all valid')}",
        tuple(problems),
    )


def _page(folder: Path, listed: dict[str, str], facts: Provenance, loaded: LoadedRows) -> Check:
    """Rebuild page, figures and tables and compare bytes, of compressed data what they hold; if they differ,
    name the versions that differ."""
    if obstacle := _obstacle(folder, listed, HARDWARE):
        return Check("page", False, f"cannot be rebuilt: {HARDWARE} {obstacle}")
    lists = [
        folder / path
        for path in sorted(listed)
        if fnmatch(path, LISTS) and not _obstacle(folder, listed, path)
    ]
    with TemporaryDirectory() as name:
        try:
            made = page_files(loaded, facts.title, folder / HARDWARE, lists, Path(name))
        except UserError as error:
            return Check("page", False, f"cannot be rebuilt: {error}")
        differing = [
            path
            for path, file in sorted(made.items())
            if not _holds(folder, listed, f"{MEASURED}/{path}", file)
        ]
    if not differing:
        return Check("page", True, f"{plural(len(made), 'file')} rebuilt, byte for byte the same")
    causes = list(_causes(facts.page, provenance.page_maker()))
    if any(name.startswith(f"{PLUGINS}/") for name in listed):
        causes.append(
            f"the bundle has plug-ins: set LONGCA_PLUGINS to its folder {PLUGINS} if you trust them"
        )
    return Check(
        "page",
        False,
        f"{len(differing)} of {plural(len(made), 'file')} differ: {', '.join(differing[:SHOWN])}",
        tuple(causes or ["with the same code and packages: the records or the files were changed"]),
    )


def _holds(folder: Path, listed: dict[str, str], path: str, made: Path) -> bool:
    file = folder / path
    if _obstacle(folder, listed, path):
        return False
    if file.suffix == ".html":  # much larger, it is another page, however its data are compressed
        is_small = file.stat().st_size <= 2 * made.stat().st_size
        return is_small and is_same_page(file.read_bytes(), made.read_bytes())
    return filecmp.cmp(file, made, shallow=False)


def _causes(then: PageMaker, now: PageMaker) -> Iterator[str]:
    if then.code != now.code:
        yield (
            f"drawn by other code of longca ({then.longca}, {then.code}; here {now.longca}, {now.code}): "
            f"verify with the bundle's own"
        )
    pairs = {"Python": (then.python, now.python)} | {
        name: (version, now.packages.get(name)) for name, version in then.packages.items()
    }
    for name, (before, here) in pairs.items():
        if before != here:
            yield f"{name} {before} then, {here} here"


def _outcome(problems: list[str] | tuple[str, ...], otherwise: str) -> str:
    return plural(len(problems), "difference") if problems else otherwise
