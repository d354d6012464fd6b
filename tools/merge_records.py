"""Merges records that came home from other machines into a committed file of records.

    python -m tools.merge_records reports/h100/h100-dense.parquet HOME… [--study NAME] [--dry-run]

HOME are folders of results and files of records; the study is the one that the file is called by. A cell's
record is replaced by one that ran on the same model of GPU and is better: with rests instead of without, else
later. A measurement is not replaced by an error, a timeout or a missing package, which tell of one evening.
Play-offs are replaced case by case, repeats by cell and GPU. Records without a successor stay. Records of
other cells than the study's are named: of those at home they are left out, of those in the file they stay.

Records without rests that records with rests replace go to `rested/STUDY_without_rests.parquet` beside the
file: `tools.repeats` learns from them by how much equal calls and the two protocols differ.

Run `make docs` afterwards: it writes the digests of committed files and the tables that follow from them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from longca.core import Hardware, UserError, load_hardware
from longca.lab.store import RecordTable, View, replace_file
from longca.lab.store.beside.repeats import unit_of
from longca.lab.store.environments import Environments
from longca.lab.store.export import export_files
from longca.lab.store.load import Loaded, load
from longca.lab.store.text import plural
from longca.lab.studies import Record, load_study
from longca.lab.studies.playoff.case import case_id

OF_ONE_EVENING = ("unavailable", "error", "timeout")  # another run may well end otherwise


@dataclass
class Merged:
    """Records after a merge, and what became of each."""

    records: list[Record] = field(default_factory=list)
    """own ones, then those of play-offs, then repeats"""
    counts: Counter[str] = field(default_factory=Counter)
    """what happened → number of records"""
    not_in_study: Counter[str] = field(default_factory=Counter)
    """kernels of records in the file that the study does not ask for any more → number"""
    left_out: Counter[str] = field(default_factory=Counter)
    """kernels of records at home that the study does not ask for → number"""
    without_rests: list[Record] = field(default_factory=list)
    """own ones of the file that records with rests replaced"""


def merge(old: Loaded, new: Loaded, cell_ids: Collection[str]) -> Merged:
    """Both together.

    Args:
        cell_ids: of the study.

    Raises:
        UserError: the new records are of another model of GPU.
    """
    _check_models(old.all_records, new.all_records)
    merged = Merged()
    fresh = [record for record in new.all_records if record.cell_id in cell_ids]
    merged.left_out.update(record.cell.method for record in new.records if record.cell_id not in cell_ids)
    merged.not_in_study.update(record.cell.method for record in old.records if record.cell_id not in cell_ids)
    own = _own(
        old.records, [record for record in fresh if record.playoff is None and not record.repeat], merged
    )
    players = [record for record in fresh if record.playoff is not None and not record.repeat]
    playoffs = _playoffs(old.playoffs, players, merged.counts)
    repeats = _repeats(old.repeats, [record for record in fresh if record.repeat], merged.counts)
    merged.records = [*own, *playoffs, *repeats]
    return merged


def _own(old: Iterable[Record], new: Iterable[Record], merged: Merged) -> list[Record]:
    counts = merged.counts
    records = _by_cell(old, counts)
    for key, record in _by_cell(new, counts).items():
        before = records.get(key)
        if before is None:
            counts["added"] += 1
        elif before == record:
            counts["there already"] += 1
            continue
        elif not _is_better(record, before):
            counts[f"not taken, since what is there is {_why_better(before, record)}"] += 1
            continue
        else:
            counts[f"replaced: {_kind(before)} → {_kind(record)}"] += 1
            if _is_unrested(before) and _is_unrested(record) is False:
                merged.without_rests.append(before)
        records[key] = record
    return list(records.values())


def _by_cell(records: Iterable[Record], counts: Counter[str]) -> dict[tuple[str, str], Record]:
    """The best record of each cell, and of each control on each device: a device is judged by its own."""
    best: dict[tuple[str, str], Record] = {}
    for record in records:
        key = record.cell_id, unit_of(record) if record.work is not None else ""
        before = best.get(key)
        if before is not None and before != record:
            counts["surpassed by another record of the same cell"] += 1
        if before is None or _is_better(record, before):
            best[key] = record
    return best


def _is_better(record: Record, before: Record) -> bool:
    """True if the record takes the other's place."""
    return (_rank(record, before), _start(record)) > (_rank(before, record), _start(before))


def _rank(record: Record, other: Record) -> int:
    """The rank of a record: the higher of two of a cell stays, or the later of equal ones."""
    status = record.outcome.status
    if status in OF_ONE_EVENING:
        return 0 if status == "unavailable" else 1
    return 3 if _is_unrested(record) is False or (record.samples is None and not _is_unrested(other)) else 2


def _is_unrested(record: Record) -> bool | None:
    """True for times without rests on a GPU, whatever replaces them; None without times."""
    return None if record.samples is None else View(record, Hardware()).rests is False


def _why_better(kept: Record, record: Record) -> str:
    return "later" if _rank(kept, record) == _rank(record, kept) else _kind(kept)


def _kind(record: Record) -> str:
    rests = None if record.samples is None else View(record, Hardware()).rests
    return record.outcome.status + {True: " with rests", False: " without rests", None: ""}[rests]


def _playoffs(old: Sequence[Record], new: Iterable[Record], counts: Counter[str]) -> list[Record]:
    """The last play-off of each case, with all its players."""
    games: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    known = {record.playoff for record in old}
    for record in (*old, *(record for record in new if record.playoff not in known)):
        games[case_id(record.cell, View(record, Hardware()).device or "")][record.playoff or ""].append(
            record
        )
    kept = []
    for of_case in games.values():
        last = max(of_case, key=lambda name: max(map(_start, of_case[name])))
        kept += of_case[last]
        if last not in known:
            counts["play-offs added" if len(of_case) == 1 else "play-offs replaced"] += 1
    return kept


def _repeats(old: Iterable[Record], new: Iterable[Record], counts: Counter[str]) -> list[Record]:
    """The last repeat of each cell, GPU and protocol."""
    repeats: dict[tuple[str, str, bool | None], Record] = {}
    for is_new, records in ((False, old), (True, new)):
        for record in records:
            key = record.cell_id, unit_of(record), View(record, Hardware()).rests
            before = repeats.get(key)
            if before is None or _start(record) > _start(before):
                repeats[key] = record
                if is_new:
                    counts["repeats added" if before is None else "repeats replaced"] += 1
    return list(repeats.values())


def _start(record: Record) -> str:
    return datetime.fromisoformat(record.started_at).astimezone(UTC).isoformat(timespec="microseconds")


def _check_models(old: Sequence[Record], new: Sequence[Record]) -> None:
    models = [
        {device for record in records if (device := View(record, Hardware()).device)}
        for records in (old, new)
    ]
    if not old or not models[0]:
        models[0] = set(sorted(models[1])[:1])
    if strange := models[1] - models[0]:
        raise UserError(
            f"Records are of {', '.join(sorted(strange))}",
            why=f"the file's are of {', '.join(sorted(models[0]))}",
            todo="Merge each model of GPU into its own file",
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.merge_records", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("file", type=Path, help="the committed records.parquet; it is written anew")
    parser.add_argument("home", type=Path, nargs="+", help="folders of results, or files of records")
    parser.add_argument("--study", help="whose cells go into the file (the file's name)")
    parser.add_argument("--dry-run", action="store_true", help="say what would change, and write nothing")
    options = parser.parse_args(arguments)
    try:
        print(_merged_file(options.file, options.home, options.study or options.file.stem, options.dry_run))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _merged_file(file: Path, home: Sequence[Path], study: str, dry_run: bool) -> str:
    cells = load_study(study).cells()
    old = _committed(file)
    new = load(*home)
    if not new.all_records:
        raise UserError("There are no records at home", why=f"none is in {', '.join(map(str, home))}")
    merged = merge(old, new, {cell.cell_id for cell in cells})
    environments = new.environments
    environments.merge(old.environments)
    lines = [f"{number:6,}  {what}" for what, number in sorted(merged.counts.items())]
    lines += [f"skipped {problem}" for problem in new.problems]
    for what, counts in (
        ("no longer in the study, and kept", merged.not_in_study),
        ("at home, not in the study, and left out", merged.left_out),
    ):
        lines += [f"{number:6,}  of {method}: {what}" for method, number in sorted(counts.items())]
    if not dry_run:
        if merged.without_rests:  # first: what the file loses must be somewhere
            earlier = file.parent / "rested" / f"{file.stem}_without_rests.parquet"
            kept = _committed(earlier)
            environments.merge(kept.environments)
            earlier.parent.mkdir(exist_ok=True)
            _write(earlier, [*kept.all_records, *merged.without_rests], environments)
            lines.append(f"{len(merged.without_rests):6,}  without rests are kept in {earlier}")
        _write(file, merged.records, environments)
    return "\n".join(
        [*lines, f"{len(merged.records):6,}  records {'would be' if dry_run else 'are'} in {file}"]
    )


def _committed(file: Path) -> Loaded:
    """The records of a file that is written anew; none if it is not there. Raises UserError."""
    records = load(file) if file.exists() else Loaded([], [])
    if records.problems:  # would be lost
        raise UserError(
            f"'{file}' has {plural(len(records.problems), 'record')} that cannot be used",
            why=str(records.problems[0]),
        )
    return records


def _write(file: Path, records: Sequence[Record], environments: Environments) -> None:
    table = RecordTable.of(records).in_order()
    replace_file(
        file, export_files(table, table.with_related(load_hardware()), environments)["records.parquet"]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
