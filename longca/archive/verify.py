"""Checking a bundle: every hash, every record, and the page made again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longca.archive import manifest, provenance
from longca.archive.page import page_files
from longca.archive.project import MEASURED, PLUGINS
from longca.archive.provenance import PageMaker, Provenance
from longca.core.errors import UserError
from longca.core.schema import parse, read_yaml
from longca.core.study import load_study
from longca.store.load import Loaded, load
from longca.store.text import plural

SHOWN = 5  # of many differences


@dataclass(frozen=True)
class Check:
    """The check of one part of a bundle."""

    name: str
    passed: bool
    detail: str
    differences: tuple[str, ...] = ()


def verify(folder: Path) -> list[Check]:
    """All checks of an unpacked bundle, made by this longca. Nothing of the bundle is run.

    Raises:
        UserError: its manifest or its provenance cannot be read.
    """
    try:
        listed = manifest.read_manifest((folder / manifest.NAME).read_bytes())
    except ValueError as error:
        raise UserError(f"'{folder / manifest.NAME}' is damaged", why=str(error)) from error
    facts = parse(Provenance, read_yaml(folder / provenance.NAME), provenance.NAME)  # JSON is YAML
    loaded = load(folder / MEASURED / "records.parquet")
    return [_files(folder, listed), _records(folder, facts, loaded), _page(folder, facts, loaded)]


def _files(folder: Path, listed: dict[str, str]) -> Check:
    found = tuple(f"{one.path} {one.what}" for one in manifest.differences(folder, listed))
    return Check("files", not found, f"{plural(len(listed), 'file')}, {_outcome(found, 'each with its hash')}", found)


def _records(folder: Path, facts: Provenance, loaded: Loaded) -> Check:
    found = [str(problem) for problem in loaded.problems]
    if len(loaded.records) != facts.num_records:
        found.append(f"{provenance.NAME} says {plural(facts.num_records, 'record')}, there are {len(loaded.records)}")
    elif loaded.records:
        found += [f"{provenance.NAME} says something else than the records of: {name}"
                  for name, value in provenance.of_records(loaded.records).items() if getattr(facts, name) != value]
    try:
        asked = {cell.cell_id for cell in load_study(facts.study, folder / "config/studies").cells()}
        of_study = f"{sum(record.cell_id in asked for record in loaded.records)} of the study's {plural(len(asked), 'cell')}"
    except UserError as error:  # a study of plug-ins that are not here
        of_study = f"of cells that are not known here ({error})"
    return Check("records", not found, f"{plural(len(loaded.records), 'record')}, {of_study}, {_outcome(found, 'all valid')}", tuple(found))


def _page(folder: Path, facts: Provenance, loaded: Loaded) -> Check:
    """Page, figures and tables again, byte for byte; what made them then and now, where they differ."""
    try:
        made = page_files(loaded.records, facts.title, folder / "config/hardware.yaml")
    except UserError as error:
        return Check("page", False, f"cannot be made again: {error}")
    differing = [path for path, content in sorted(made.items()) if _read(folder / MEASURED / path) != content]
    if not differing:
        return Check("page", True, f"{plural(len(made), 'file')} made again, byte for byte the same")
    causes = list(_causes(facts.page, provenance.page_maker()))
    if (folder / PLUGINS).is_dir():
        causes.append(f"the bundle has plug-ins: set LONGCA_PLUGINS to its folder {PLUGINS} if you trust them")
    return Check("page", False, f"{len(differing)} of {plural(len(made), 'file')} differ: {', '.join(differing[:SHOWN])}",
                 tuple(causes or ["with the same code and packages: the records or the files were changed"]))


def _causes(then: PageMaker, now: PageMaker) -> Iterator[str]:
    if then.code != now.code:
        yield f"drawn by other code of longca ({then.longca}, {then.code}; here {now.longca}, {now.code}): verify with the bundle's own"
    pairs = {"Python": (then.python, now.python)} | {name: (version, now.packages.get(name)) for name, version in then.packages.items()}
    for name, (before, here) in pairs.items():
        if before != here:
            yield f"{name} {before} then, {here} here"


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _outcome(found: list[str] | tuple[str, ...], otherwise: str) -> str:
    return plural(len(found), "difference") if found else otherwise
