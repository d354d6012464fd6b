"""Small tables of the page: errors against budgets, controls, machines, images and software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.core.record import Environment, Node, Record, Software
from longca.store.hardware import GpuModel, Hardware
from longca.store.text import format_bytes, plural

if TYPE_CHECKING:
    import pandas as pd

TENSORS = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class WorstError:
    """The cell of one method and direction whose tensor came nearest to its budget."""

    method: str
    direction: str
    tensor: str
    error: float
    budget: float
    ratio: float
    where: str
    cell_id: str
    num_cells: int
    right: bool


@dataclass(frozen=True)
class ImageUse:
    """The cells that were measured in one image, or outside of any."""

    container: str
    """digest of the image; empty outside of any"""
    lock: str
    num_cells: int


def worst_errors(records: Iterable[Record]) -> list[WorstError]:
    """For each method, direction and tensor the cell nearest to its budget, or furthest beyond."""
    from longca.core.units import format_length
    from longca.store.hardware import Hardware
    from longca.store.view import View

    worst: dict[tuple[str, bool, int], WorstError] = {}
    counts: Counter[tuple[str, bool, int]] = Counter()
    for record in records:
        view = View(record, Hardware())
        if record.accuracy is None or view.is_control:
            continue
        for tensor, budget in record.accuracy.budget.items():
            key = (record.cell.method, record.cell.direction == "bwd",
                   TENSORS.index(tensor) if tensor in TENSORS else len(TENSORS))
            counts[key] += 1
            ratio, error = view.budget_ratio(tensor), view.error(tensor)
            assert ratio is not None and error is not None
            if key not in worst or ratio > worst[key].ratio:
                where = f"{record.cell.mask} at {format_length(record.cell.seqlen)}"
                worst[key] = WorstError(record.cell.method, record.cell.direction, tensor, error, budget, ratio, where,
                                        record.cell_id, 0, ratio <= 1)
    return [WorstError(**{**vars(worst[key]), "num_cells": counts[key]}) for key in sorted(worst)]


def waits(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The calls of known length: the time that was measured, and its error."""
    return table[table.nominal_ms.notna()].sort_values(["device", "nominal_ms"], kind="stable").to_dict("records")


def ceilings(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The calls of known work: the highest rates of the device."""
    found = table[table.is_control.astype(bool) & table.nominal_ms.isna()]
    return found.sort_values(["method", "device", "seqlen"], ascending=[False, True, True], kind="stable").to_dict("records")


def machine_facts(node: Node) -> dict[str, str]:
    """The known facts about a machine and its GPU, each under its name."""
    facts = {"host": node.hostname, "system": node.os, "CPU": f"{node.cpu}, {node.num_cores} cores",
             "memory": format_bytes(node.memory_bytes)}
    for key, value in node.gpu.items():
        name = f"GPU {key.removesuffix('_bytes').replace('_', ' ')}"
        facts[name] = format_bytes(value) if key.endswith("_bytes") else str(value)
    return facts


def software_facts(used: Software) -> dict[str, str]:
    """Versions of all that a cell ran on, and variables, each under its name."""
    known = (("CUDA", used.cuda), ("cuDNN", used.cudnn), ("NCCL", used.nccl), ("container", used.container), ("lock", used.lock))
    return {"python": used.python, **used.packages, **{name: value for name, value in known if value}, **used.env}


def machines(records: Iterable[Record], hardware: Hardware) -> list[tuple[dict[str, str], int, GpuModel | None]]:
    """(facts, number of cells, the GPU's peak rates) of each machine and GPU that took part."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment, count in _environments(records):
        for node in {node.model_dump_json(): node for node in environment.nodes}.values():
            counts[tuple(machine_facts(node).items())] += count
    return [(dict(facts), count, hardware.find(dict(facts).get("GPU name", ""))) for facts, count in sorted(counts.items())]


def software(records: Iterable[Record]) -> list[tuple[dict[str, str], int]]:
    """(versions and variables, number of cells) of each environment."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment, count in _environments(records):
        source = environment.source
        dirty = ", with uncommitted changes" if source.git_dirty else ""
        commit = f"{source.git_sha[:12]}{dirty}" if source.git_sha else "unknown"
        counts[tuple({"longca": source.version, "commit": commit, **software_facts(environment.software)}.items())] += count
    return [(dict(facts), count) for facts, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def images(records: Iterable[Record]) -> list[ImageUse]:
    """The images that cells were measured in, those of most cells first. None if no cell names one."""
    counts: Counter[tuple[str, str]] = Counter()
    for environment, count in _environments(records):
        used = environment.software
        counts[(used.container, used.lock or "") if used.container else ("", "")] += count
    found = [ImageUse(*key, count) for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return found if any(use.container for use in found) else []


def finding_of_images(used: Sequence[ImageUse]) -> str:
    """A sentence: in how many images the cells were measured, and what that means for comparisons. Empty without an image."""
    inside, outside = [use for use in used if use.container], sum(use.num_cells for use in used if not use.container)
    if not inside:
        return ""
    num_images, num_inside = len({use.container for use in inside}), sum(use.num_cells for use in inside)
    told = f"{plural(num_inside, 'cell')} {'was' if num_inside == 1 else 'were'} measured in {plural(num_images, 'image')}"
    if outside:
        told += f", {outside:,} outside of any"
    return f"{told}: their software differs, and so can their numbers" if len(used) > 1 else told


def _environments(records: Iterable[Record]) -> list[tuple[Environment, int]]:
    """Each environment and the number of its records; those that were read together share it."""
    found = [record.environment for record in records if record.environment]
    counts = Counter(map(id, found))
    return [(environment, counts[key]) for key, environment in {id(environment): environment for environment in found}.items()]


def runs(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Each run: its study, time, number of cells, and Slurm jobs."""
    found = []
    for (study, run_id), cells in table.groupby(["study", "run_id"]):
        found.append({"study": study, "run_id": run_id, "first": cells.started_at.min(), "last": cells.started_at.max(),
                      "num_cells": len(cells), "jobs": sorted(set(cells.slurm_job) - {""}),
                      "minutes": cells.seconds.sum() / 60})
    return found


def methods(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Each method version: the hash of all that defines how its numbers were made."""
    found = []
    for (method, version), cells in table.groupby(["method", "method_version"]):
        found.append({"method": method, "version": version, "num_cells": len(cells)})
    return found
