"""Provenance of the numbers on the study's page: GPUs, software, and the studies that were run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import GpuModel, Hardware
from longca.lab.paper.links import RunPage
from longca.lab.report.tables import StudyRun, machine_facts, runs, software_facts
from longca.lab.store.environments import Environments, EnvironmentSummary, image_lists, own_lists, summary_of
from longca.lab.store.text import short_device

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.studies import Record

GPU = {
    "GPU name": "GPU",
    "GPU memory": "memory",
    "GPU driver": "driver",
    "GPU power limit w": "power limit",
    "GPU max sm clock mhz": "SM clock",
}
UNITS = {"power limit": "{:g} W", "SM clock": "{:g} MHz"}


@dataclass(frozen=True)
class Machines:
    """GPUs of one model with one driver and one power limit."""

    facts: dict[str, str]
    hosts: tuple[str, ...]
    """CPUs of their machines, with the numbers of cores"""
    num_gpus: int
    num_cells: int
    model: GpuModel | None
    """what such a GPU can do, where a source says so"""


@dataclass(frozen=True)
class Package:
    """A package, a library or a variable."""

    name: str
    versions: tuple[tuple[str, int], ...]
    """(version, number of cells), the most frequent first"""


@dataclass(frozen=True)
class StudyRecords:
    """The records of one study on one model of device."""

    study: str
    gpu: str
    """short name of the model; "" if it is not known"""
    page: RunPage | None
    num_cells: int
    num_timed: int
    num_runs: int
    first: str
    last: str
    """days"""
    minutes: float
    """of GPUs' machines, from the start to the end of each cell"""
    commits: tuple[str, ...]
    """the code that measured, most cells first; "+" marks uncommitted changes"""


@dataclass(frozen=True)
class StudyProvenance:
    """All that the page says of it."""

    machines: list[Machines]
    software: list[Package]
    studies: list[StudyRecords]
    runs: Sequence[StudyRun]
    """as `longca.lab.report.tables.runs` gives them"""
    environments: EnvironmentSummary


def provenance(
    records: Sequence[Record],
    table: pd.DataFrame,
    hardware: Hardware,
    pages: Iterable[RunPage],
    environments: Environments | None = None,
) -> StudyProvenance:
    """The provenance of records; the same records give the same.

    Args:
        table: `longca.lab.store.table.derived` of the records.
        pages: of studies, which lie beside the page.
        environments: listings of the software that measured.
    """
    known = list(pages)
    studies = [
        _study(str(study), device, rows, known)
        for study, of_study in table.groupby("study", sort=True)
        for device, rows in _by_device(of_study)
    ]
    return StudyProvenance(
        _machines(records, hardware),
        _software(records),
        studies,
        runs(table),
        summary_of(records, environments or Environments(), image_lists(own_lists())),
    )


def _machines(records: Iterable[Record], hardware: Hardware) -> list[Machines]:
    gpus = defaultdict(set)
    hosts = defaultdict(set)
    cells = defaultdict(set)
    for number, record in enumerate(records):
        for node in record.environment.nodes if record.environment else ():
            facts = machine_facts(node)
            key = tuple(
                (short, _with_unit(short, facts[name])) for name, short in GPU.items() if name in facts
            )
            gpus[key].add(facts.get("GPU uuid", facts["host"]))
            hosts[key].add((node.cpu, node.num_cores))
            cells[key].add(number)
    machines = []
    for key in sorted(cells, key=lambda key: (-len(cells[key]), key)):
        facts = dict(key)
        cores = {
            cpu: sorted(cores for model, cores in hosts[key] if model == cpu) for cpu, _ in sorted(hosts[key])
        }
        cpus = tuple(f"{cpu} ({', '.join(map(str, counts))} cores)" for cpu, counts in cores.items())
        machines.append(
            Machines(
                facts,
                cpus,
                len(gpus[key]) if key else 0,
                len(cells[key]),
                hardware.find(facts.get("GPU", "")),
            )
        )
    return machines


def _with_unit(name: str, value: str) -> str:
    return UNITS[name].format(float(value)) if name in UNITS else value


def _software(records: Iterable[Record]) -> list[Package]:
    counts: dict[str, dict[str, int]] = {}
    for record in records:
        if record.environment:
            facts = {
                "longca": record.environment.source.version,
                **software_facts(record.environment.software),
            }
            for name, version in facts.items():
                of_name = counts.setdefault(name, {})
                of_name[version] = of_name.get(version, 0) + 1
    return [
        Package(name, tuple(sorted(versions.items(), key=lambda item: (-item[1], item[0]))))
        for name, versions in counts.items()
    ]


def _by_device(cells: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The records of each model of device. Cells that no process measured are added to these records if
    there is only one model."""
    names = sorted({str(device) for device in cells.device} - {""})
    if len(names) < 2:
        return [(names[0] if names else "", cells)]
    return [(str(device), rows) for device, rows in cells.groupby("device", sort=True)]


def _study(study: str, device: str, cells: pd.DataFrame, pages: Iterable[RunPage]) -> StudyRecords:
    code = cells.loc[cells.git_sha != ""]
    dirty = code.git_dirty.fillna(False).astype(bool).map({True: "+", False: ""})
    commits = (code.git_sha.str[:10] + dirty).value_counts()
    order = sorted(commits.index, key=lambda commit: (-commits[commit], commit))
    days = cells.started_at.str[:10]
    return StudyRecords(
        study,
        short_device(device),
        next((page for page in pages if page.study == study and page.is_of(device)), None),
        len(cells),
        int((cells.status == "ok").sum()),
        cells.run_id.nunique(),
        days.min(),
        days.max(),
        cells.seconds.sum() / 60,
        tuple(order),
    )
