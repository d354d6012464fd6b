"""Links from the study's page to the records of pages that lie beside it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from longca.core import format_length
from longca.lab.report.content import FILTERS as TABLE_FILTERS
from longca.lab.report.content import page_data, unpacked
from longca.lab.store.text import plural, short_device

FILTERS = {entry.name: entry.column for entry in TABLE_FILTERS}
"""of the address of a page's records: name → column"""


@dataclass(frozen=True)
class Link:
    """A link to some records of a page."""

    address: str
    text: str
    """the number of cells, the GPU if there is one, and the study that they belong to"""


@dataclass(frozen=True)
class RunPage:
    """The page of one study's records, which has a table of them with filters."""

    study: str
    address: str
    """as seen from the study's page"""
    cell_ids: tuple[str, ...]
    """of its records, in their order; a cell that was measured twice stands there twice"""
    values: dict[str, tuple[str, ...]]
    """filter → the value of each record"""
    records: str = ""
    """the address of the Parquet file of its records, if it lies beside it"""
    devices: tuple[str, ...] = ()
    """the models of its records' devices; empty for a page that does not say"""
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    """(cell, the short name of its device) → the name of its first record there"""

    @property
    def gpus(self) -> str:
        """The GPU models of its records, as "H100, H200"; "" for CPUs."""
        return ", ".join(short_device(device) for device in self.devices if device.startswith("NVIDIA "))

    def is_of(self, device: str) -> bool:
        """True if it may have records of this model, by its whole or its short name."""
        names = {name for own in self.devices for name in (own, short_device(own))}
        return not device or not names or device in names

    def address_of(self, cell_id: str, device: str) -> str:
        """The address of a cell's record on a device."""
        return f"{self.address}#cell-{self.anchor_of(cell_id, device)}"

    def anchor_of(self, cell_id: str, device: str) -> str:
        return self.anchors.get((cell_id, short_device(device)), cell_id)

    def link(self, wanted: Collection[str]) -> Link | None:
        """The link to its records of these cells, through the narrowest filters that let all of them pass;
        None if it has none."""
        mine = [cell_id in wanted for cell_id in self.cell_ids]
        if not any(mine):
            return None
        passes = [True] * len(mine)
        query = []
        for name, values in self.values.items():
            asked = {value for value, is_mine in zip(values, mine, strict=True) if is_mine}
            if len(asked) < len(set(values)):
                query += [(name, value) for value in dict.fromkeys(values) if value in asked]
                passes = [still and value in asked for still, value in zip(passes, values, strict=True)]
        among = "" if sum(passes) == sum(mine) else f", among {sum(passes):,}"
        address = f"{self.address}#records{'?' if query else ''}{urlencode(query)}"
        gpus = f" of {self.gpus}" if self.gpus else ""
        return Link(address, f"{plural(sum(mine), 'record')}{gpus} in {self.study}{among}")


def run_pages(folder: Path, studies: Iterable[str]) -> list[RunPage]:
    """Pages of these studies beside a folder: STUDY.html or STUDY/report.html in the folder above, or
    STUDY.html in its folders, of which each may have the records of another model of GPU. Of a study and a
    model there is one page."""
    above = folder.resolve().parent
    linked: list[RunPage] = []
    for study in sorted({study for study in studies if study}):
        places = [
            above / f"{study}.html",
            *sorted(above.glob(f"*/{escape(study)}.html")),
            above / study / "report.html",
        ]
        of_study: list[RunPage] = []
        for page in (_page(study, path, folder) for path in places if path.is_file()):
            known = {device for other in of_study for device in other.devices}
            if page and (not of_study or not known.issuperset(page.devices)):
                of_study.append(page)
        linked += of_study
    return linked


def links(pages: Sequence[RunPage], cell_ids: Iterable[str]) -> tuple[Link, ...]:
    """Links to the records of these cells, one for each page that has any."""
    wanted = frozenset(cell_ids)
    return tuple(link for page in pages if (link := page.link(wanted)))


def _page(study: str, path: Path, folder: Path) -> RunPage | None:
    """The page as its own data describe it; None if it is no page of records."""
    packed = page_data(path.read_text(encoding="utf-8", errors="replace"), "data")
    if packed is None:
        return None
    anchors = unpacked(packed["anchor"], 1)
    values = {
        name: tuple(map(_text, unpacked(packed[column], len(anchors)))) for name, column in FILTERS.items()
    }
    file = path.with_name("records.parquet" if path.name == "report.html" else f"{study}.parquet")
    address, records = (Path(os.path.relpath(target, folder.resolve())).as_posix() for target in (path, file))
    cell_ids = tuple(anchor[:16] for anchor in anchors)
    devices = [str(device) for device in unpacked(packed.get("device", {"every": ""}), len(anchors))]
    of_devices: dict[tuple[str, str], str] = {}
    for cell_id, device, anchor in zip(cell_ids, devices, anchors, strict=True):
        of_devices.setdefault((cell_id, short_device(device)), anchor)
    return RunPage(
        study,
        address,
        cell_ids,
        values,
        records if file.is_file() else "",
        tuple(sorted(set(devices) - {""})),
        of_devices,
    )


def _text(value: Any) -> str:
    """A value of a filter; pages of earlier versions have lengths as numbers."""
    return format_length(value) if isinstance(value, int) else str(value)
