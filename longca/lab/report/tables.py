"""Small tables of the page (errors and budgets, machines, images, software), and sentences on its
samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import GpuModel, Hardware
from longca.lab.ranking.sentences import protocols_text
from longca.lab.store import RecordTable, TensorError, environments_of
from longca.lab.store.text import NONE, format_bytes, plural, short_device
from longca.lab.studies import Environment, Node, Record, Software
from longca.lab.studies.samples import DRIFT_SHARE, FEWEST_FOR_DRIFT

if TYPE_CHECKING:
    import pandas as pd

PRECISE_PERCENT = 0.5
MOST_NAMED = 5  # named cells with the largest drift
TENSORS = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class WorstError:
    """The cell of one method and direction with the largest ratio of error to budget."""

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
    """The cells measured in one image, or outside of any."""

    container: str
    """digest of the image; empty outside of images"""
    lock: str
    num_cells: int


def titled(title: str, devices: Iterable[str], hardware: Hardware) -> str:
    """The title, with the devices if it names a model of GPU that is none of them: a study may be measured on
    another GPU than the one that it was written for."""
    known = {model.name.split()[0] for model in hardware.gpus if any(map(str.isdigit, model.name.split()[0]))}
    named = {name for name in known if re.search(rf"\b{re.escape(name)}s?\b", title)}
    own = sorted({short_device(device) for device in devices if device})
    if not named or not own or any(name in device.split() for name in named for device in own):
        return title
    return f"{title}, measured on {', '.join(own)}"


def worst_errors(
    records: RecordTable | Iterable[Record], cell_ids: Sequence[str] | None = None
) -> list[WorstError]:
    """The cell with the largest ratio of error to budget for each method, direction and tensor.

    Args:
        cell_ids: of the records, in their order, as in `longca.lab.report.rows.with_anchors`.
    """
    from longca.core import format_length

    table = RecordTable.of(records)
    worst: dict[tuple[str, bool, int], tuple[int, TensorError]] = {}
    counts: Counter[tuple[str, bool, int]] = Counter()
    methods = table.values("method")
    directions = table.values("direction")
    for row, errors in enumerate(table.errors()):
        for error in errors:
            tensor = TENSORS.index(error.tensor) if error.tensor in TENSORS else len(TENSORS)
            key = (methods[row], directions[row] == "bwd", tensor)
            counts[key] += 1
            if key not in worst or error.ratio > worst[key][1].ratio:
                worst[key] = row, error
    masks, seqlens = (table.values(name) for name in ("mask", "seqlen"))
    cells = table.values("cell_id") if cell_ids is None else cell_ids
    return [
        WorstError(
            methods[row],
            directions[row],
            error.tensor,
            error.error,
            error.budget,
            error.ratio,
            f"{masks[row]} at {format_length(seqlens[row])}",
            cells[row],
            counts[key],
            error.ratio <= 1,
        )
        for key, (row, error) in sorted(worst.items())
    ]


def machine_facts(node: Node) -> dict[str, str]:
    """The known facts about a machine and its GPU, by name."""
    facts = {
        "host": node.hostname,
        "system": node.os,
        "CPU": f"{node.cpu}, {node.num_cores} cores",
        "memory": format_bytes(node.memory_bytes),
    }
    for key, value in node.gpu.items():
        name = f"GPU {key.removesuffix('_bytes').replace('_', ' ')}"
        facts[name] = (
            str(value) if isinstance(value, str) or not key.endswith("_bytes") else format_bytes(value)
        )
    return facts


def software_facts(used: Software) -> dict[str, str]:
    """Software versions and environment variables of a cell, by name."""
    known = (
        ("CUDA", used.cuda),
        ("cuDNN", used.cudnn),
        ("NCCL", used.nccl),
        ("container", used.container),
        ("lock", used.lock),
    )
    return {
        "python": used.python,
        **used.packages,
        **{name: value for name, value in known if value},
        **used.env,
    }


@dataclass(frozen=True)
class FoldedRow:
    """The values in which one of several alike differs from the others."""

    values: tuple[str, ...]
    num_cells: int


@dataclass(frozen=True)
class Folded:
    """Machines or environments that have most facts in common."""

    shared: dict[str, str]
    differing: tuple[str, ...]
    """names of the other facts"""
    rows: tuple[FoldedRow, ...]
    model: GpuModel | None = None
    """peak rates of the machines' GPU"""

    @property
    def num_cells(self) -> int:
        return sum(row.num_cells for row in self.rows)


def machines(records: RecordTable | Iterable[Record], hardware: Hardware) -> list[Folded]:
    """The machines of each GPU model."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment, count in _environments(records):
        for node in {node.model_dump_json(): node for node in environment.nodes}.values():
            counts[tuple(machine_facts(node).items())] += count
    models: dict[str, list[tuple[dict[str, str], int]]] = {}
    for facts, count in sorted(counts.items()):
        models.setdefault(dict(facts).get("GPU name", ""), []).append((dict(facts), count))
    return [_folded(alike, hardware.find(name)) for name, alike in models.items()]


def software(records: RecordTable | Iterable[Record]) -> Folded | None:
    """The versions and variables of all environments, most cells first; None without any."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for environment, count in _environments(records):
        source = environment.source
        dirty = ", with uncommitted changes" if source.git_dirty else ""
        commit = f"{source.git_sha[:12]}{dirty}" if source.git_sha else "unknown"
        facts = {"longca": source.version, "commit": commit, **software_facts(environment.software)}
        counts[tuple(facts.items())] += count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _folded([(dict(facts), count) for facts, count in ordered]) if ordered else None


def _folded(alike: Sequence[tuple[dict[str, str], int]], model: GpuModel | None = None) -> Folded:
    names = list(dict.fromkeys(name for facts, _ in alike for name in facts))
    differing = tuple(name for name in names if len({facts.get(name) for facts, _ in alike}) > 1)
    shared = {name: alike[0][0][name] for name in names if name not in differing}
    rows = [FoldedRow(tuple(facts.get(name, NONE) for name in differing), count) for facts, count in alike]
    return Folded(shared, differing, tuple(rows), model)


def images(records: RecordTable | Iterable[Record]) -> list[ImageUse]:
    """The images of cells, most cells first. None if no cell names an image."""
    counts: Counter[tuple[str, str]] = Counter()
    for environment, count in _environments(records):
        used = environment.software
        counts[(used.container, used.lock or "") if used.container else ("", "")] += count
    uses = [
        ImageUse(*key, count) for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return uses if any(use.container for use in uses) else []


def finding_of_images(used: Sequence[ImageUse]) -> str:
    """A sentence on the number of images and its consequence for comparisons. Empty without an image."""
    inside = [use for use in used if use.container]
    outside = sum(use.num_cells for use in used if not use.container)
    if not inside:
        return ""
    num_images = len({use.container for use in inside})
    num_inside = sum(use.num_cells for use in inside)
    sentence = (
        f"{plural(num_inside, 'cell')} {'was' if num_inside == 1 else 'were'} measured in "
        f"{plural(num_images, 'image')}"
    )
    if outside:
        sentence += f", {outside:,} outside of any"
    return f"{sentence}: their software differs, and so can their numbers" if len(used) > 1 else sentence


def _environments(records: RecordTable | Iterable[Record]) -> list[tuple[Environment, int]]:
    """Each environment and the number of its records."""
    return [(taken, count) for taken, count in environments_of(records) if taken is not None]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    study: str
    run_id: str
    first: str
    last: str
    num_cells: int
    jobs: tuple[str, ...]
    """of Slurm"""
    minutes: float


def runs(table: pd.DataFrame) -> list[StudyRun]:
    """The runs of all records."""
    return [
        StudyRun(study, run_id, cells.started_at.min(), cells.started_at.max(), len(cells),
            tuple(sorted(set(cells.slurm_job) - {""})), cells.seconds.sum() / 60)
        for (study, run_id), cells in table.groupby(["study", "run_id"])
    ]  # fmt: skip


@dataclass(frozen=True)
class MethodVersion:
    """A method, and the hash of the definition of its measurements."""

    method: str
    version: str
    num_cells: int


def methods(table: pd.DataFrame) -> list[MethodVersion]:
    """The versions of all methods."""
    return [
        MethodVersion(method, version, len(cells))
        for (method, version), cells in table.groupby(["method", "method_version"])
    ]


@dataclass(frozen=True)
class Drifting:
    """A cell whose samples drift."""

    cell_id: str
    text: str
    """"+4.2 %" """


@dataclass(frozen=True)
class SampleFacts:
    """Sentences about the samples of a page, and the cells with the largest drift."""

    sentences: tuple[str, ...]
    drifting: tuple[Drifting, ...]


def steadiness(table: pd.DataFrame) -> SampleFacts:
    """The steadiness of all results of a page.

    Args:
        table: the derived table, one row for each record.
    """
    timed = table[table.status == "ok"]
    drifting = timed[timed.drift.isin(("rising", "falling"))]
    order = (
        drifting.drift_percent.astype(float)
        .abs()
        .sort_values(ascending=False, kind="stable")
        .index[:MOST_NAMED]
    )
    named = tuple(
        Drifting(row.cell_id, f"{row.drift_percent:+.1f} %") for row in drifting.loc[order].itertuples()
    )
    sentences = _of_drift(timed, drifting), _of_precision(timed), _of_rests(timed), _of_clocks(timed)
    return SampleFacts(tuple(filter(None, sentences)), named)


def _of_drift(timed: pd.DataFrame, drifting: pd.DataFrame) -> str:
    known = int((timed.drift != "unknown").sum())
    unknown = len(timed) - known
    rest = (
        f" Drift is unknown for {unknown:,} more, with fewer than {FEWEST_FOR_DRIFT} samples."
        if unknown and known
        else ""
    )
    if not known:
        return (
            f"The drift of all results is unknown: each has fewer than {FEWEST_FOR_DRIFT}." if unknown else ""
        )
    verb = "drifts" if len(drifting) == 1 else "drift"
    stand = " Their numbers are included." if len(drifting) else ""
    return (
        f"{len(drifting):,} of {plural(known, 'result')} {verb}: samples get slower or faster in the order "
        f"of measurement, by more than {100 * DRIFT_SHARE:g} % from the first third to the last "
        f"(Mann-Kendall test, 1 %).{stand}{rest}"
    )


def _of_precision(timed: pd.DataFrame) -> str:
    known = timed.precision_percent.dropna().astype(float)
    if not len(known):
        return ""
    return (
        f"The 95 % interval of the median lies within {PRECISE_PERCENT:g} % of it in "
        f"{int((known <= PRECISE_PERCENT).sum()):,} of "
        f"{plural(len(known), 'result')} with six samples or more."
    )


def _of_rests(timed: pd.DataFrame) -> str:
    on_gpu = timed[(timed.device_type == "cuda") & ~timed.sustained.astype(bool)]
    rested = on_gpu[on_gpu.duty.notna()]
    if not len(on_gpu):
        return ""
    if not len(rested):
        return (
            "Calls followed each other without rests. Under long ones a power controller lowers the clock "
            "(3 to 9 % on an H100): their times are not comparable with those of calls that rest."
        )
    shares = "/".join(f"{100 * share:g}" for share in sorted(set(rested.duty.astype(float))))
    mixed = len(on_gpu) - len(rested)
    protocols = protocols_text(len(rested), len(on_gpu), "cell")
    rest = (
        f" {protocols}: {'the other one is' if mixed == 1 else 'the others are'} never ranked against them."
        if mixed
        else ""
    )
    return f"GPUs rested after each call, busy for at most {shares} % of the time.{rest}"


def _of_clocks(timed: pd.DataFrame) -> str:
    tested = timed.steady.dropna().astype(bool)
    unsteady = int((~tested).sum())
    return (
        f"In {unsteady:,} of {plural(len(tested), 'result')} times or clock were not steady yet when samples "
        f"began."
        if unsteady
        else ""
    )
