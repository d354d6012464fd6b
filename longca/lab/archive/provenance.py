"""The origin of a bundle's records: code, images, locks, machines, and the code that made its page."""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Literal

from longca.core import VERSION, Frozen
from longca.lab.archive.manifest import sha256
from longca.lab.archive.packing import BundleFile
from longca.lab.code import source_digest
from longca.lab.studies import Record, Source, Study
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


def provenance(study: Study, records: Iterable[Record], files: Mapping[str, BundleFile]) -> Provenance:
    """The provenance of at least one record, and of the project's files."""
    return Provenance(
        study=study.name,
        title=study.title or study.name,
        num_cells=len(study.cells()),
        source=source(),
        locks={
            path: sha256(entry.content) for path, entry in sorted(files.items()) if path.endswith(".lock")
        },
        page=page_maker(),
        **of_records(records),
    )


def of_records(records: Iterable[Record]) -> dict[str, Any]:
    """The fields that follow only from the records, at least one."""
    records = list(records)
    taken = [record.environment for record in records if record.environment]
    starts = sorted(record.started_at for record in records)
    return {
        "num_records": len(records),
        "statuses": dict(sorted(Counter(record.outcome.status for record in records).items())),
        "first": starts[0],
        "last": starts[-1],
        "measured_by": _counted(environment.source.model_dump() for environment in taken),
        "images": _counted(
            environment.software.container for environment in taken if environment.software.container
        ),
        "measured_locks": _counted(
            environment.software.lock for environment in taken if environment.software.lock
        ),
        "jobs": _counted(environment.slurm_job for environment in taken if environment.slurm_job),
        "software": _counted(environment.software.model_dump() for environment in taken),
        "environments": _counted(
            digest
            for environment in taken
            for digest in sorted({rank.installed for rank in environment.ranks})
        ),
        "nodes": _counted(
            node.model_dump()
            for environment in taken
            for node in {node.model_dump_json(): node for node in environment.nodes}.values()
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


def _counted(things: Iterable[Any]) -> tuple[Count, ...]:
    counts = Counter(json.dumps(thing, sort_keys=True) for thing in things)
    return tuple(Count(what=json.loads(text), num_records=count) for text, count in sorted(counts.items()))
