"""The origin of a bundle's records: code, images, locks, machines, and the code that made its page."""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Literal

from longca.core import VERSION, Frozen
from longca.lab.archive.packing import BundleFile
from longca.lab.code import source_digest
from longca.lab.store import RecordTable, environments_of
from longca.lab.studies import Source, Study
from longca.lab.studies.checkout import source

NAME = "provenance.json"
BUNDLE_VERSION = 1
PAGE_PACKAGES = ("jinja2", "matplotlib", "numpy", "pandas", "pyarrow")
DRAWN_BY = "longca.lab.report.build"  # the module that draws the page


class Count(Frozen):
    """A value, and the number of records with it."""

    what: Any
    num_records: int


class PageMaker(Frozen):
    """Code and packages that affect the bytes of the page, of its figures and tables, in addition to the
    records."""

    longca: str
    code: str
    """digest of the rendering code"""
    python: str
    packages: dict[str, str]


class Provenance(Frozen):
    """A summary of the bundle; its records contain the same facts individually."""

    bundle_version: Literal[1] = BUNDLE_VERSION
    study: str
    title: str
    num_cells: int
    """number of cells of the study"""
    num_records: int
    statuses: dict[str, int]
    first: str
    last: str
    """start of the last cell, UTC"""
    source: Source
    """the code in this bundle"""
    locks: dict[str, str]
    """SHA-256 of the lock files in this bundle"""
    measured_by: tuple[Count, ...]
    """versions of the code that measured"""
    images: tuple[Count, ...]
    """digests of the measuring containers"""
    measured_locks: tuple[Count, ...]
    """digests of the locks of the measuring environments"""
    jobs: tuple[Count, ...]
    """Slurm jobs that measured"""
    software: tuple[Count, ...]
    environments: tuple[Count, ...] = ()
    """digests of the installed software; the listings are in records.parquet. Empty in bundles of older
    versions"""
    nodes: tuple[Count, ...]
    page: PageMaker


def provenance(study: Study, table: RecordTable, files: Mapping[str, BundleFile]) -> Provenance:
    """The provenance of at least one record, and of the project's files."""
    return Provenance(
        study=study.name,
        title=study.title or study.name,
        num_cells=len(study.cells()),
        source=source(),
        locks={path: entry.sha256 for path, entry in sorted(files.items()) if path.endswith(".lock")},
        page=page_maker(),
        **of_records(table),
    )


def of_records(table: RecordTable) -> dict[str, Any]:
    """The fields that follow only from the records, at least one."""
    taken = [(environment, count) for environment, count in environments_of(table) if environment is not None]
    starts = sorted(table.values("started_at"))
    return {
        "num_records": len(table),
        "statuses": dict(sorted(Counter(table.values("status")).items())),
        "first": starts[0],
        "last": starts[-1],
        "measured_by": _counted((each.source.model_dump(), count) for each, count in taken),
        "images": _counted(
            (each.software.container, count) for each, count in taken if each.software.container
        ),
        "measured_locks": _counted(
            (each.software.lock, count) for each, count in taken if each.software.lock
        ),
        "jobs": _counted((each.slurm_job, count) for each, count in taken if each.slurm_job),
        "software": _counted((each.software.model_dump(), count) for each, count in taken),
        "environments": _counted(
            (digest, count)
            for each, count in taken
            for digest in sorted({rank.installed for rank in each.ranks})
        ),
        "nodes": _counted(
            (node.model_dump(), count)
            for each, count in taken
            for node in {node.model_dump_json(): node for node in each.nodes}.values()
        ),
    }


def page_maker() -> PageMaker:
    """The present code and packages for the page."""
    return PageMaker(
        longca=VERSION,
        code=source_digest(DRAWN_BY),
        python=platform.python_version(),
        packages={name: metadata.version(name) for name in PAGE_PACKAGES},
    )


def _counted(things: Iterable[tuple[Any, int]]) -> tuple[Count, ...]:
    """Each thing once, with the number of all its records."""
    counts = Counter[str]()
    for thing, count in things:
        counts[json.dumps(thing, sort_keys=True)] += count
    return tuple(Count(what=json.loads(text), num_records=count) for text, count in sorted(counts.items()))
