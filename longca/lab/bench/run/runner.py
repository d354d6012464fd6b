"""The runner: it measures the cells that need it, one after another, and stores each record at once. It never
imports torch."""

import functools
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from longca.core import Registry, Scalar
from longca.lab.bench.measure.environment import slurm_job
from longca.lab.bench.measure.result import Result, check_mask, read_digests
from longca.lab.bench.plan.order import shuffled
from longca.lab.bench.run.controls import DeviceControls, device_key
from longca.lab.bench.run.ending import Stop, by_workflow, stopped_by_signals
from longca.lab.bench.run.method_version import MethodVersions
from longca.lab.bench.run.playoffs import PlayoffRun
from longca.lab.bench.run.progress import Progress, make_progress
from longca.lab.bench.run.repeats import RepeatCounts, RepeatRun
from longca.lab.bench.run.scores import Score
from longca.lab.bench.run.summary import Summary
from longca.lab.bench.workers.device_lock import Claimant
from longca.lab.bench.workers.job import Job, JobError
from longca.lab.bench.workers.launch import Launcher, Task
from longca.lab.bench.workers.local import Local
from longca.lab.bench.workers.pool import Pool, TooFewLeft
from longca.lab.store import CellStore, Known, PlayoffStore, UnusableFile
from longca.lab.store.index import CellFacts, cell_facts
from longca.lab.store.text import plural
from longca.lab.studies import STATUSES, Cell, Config, Environment, Measure, Record, Source, Study
from longca.lab.studies.checkout import source

Playing = Literal["none", "after", "only"]


def run_cells(
    study: Study,
    cells: Sequence[Cell],
    config: Config,
    *,
    retry: AbstractSet[str] = frozenset(),
    force: bool = False,
    part: str | None = None,
    log: Path | None = None,
    progress: Progress | None = None,
    task: Task | None = None,
    playoffs: Playing = "none",
    repeats: bool = False,
    elsewhere: Known | None = None,
    wait_s: float | None = None,
) -> Summary:
    """Measure those of the cells that have no record of today's method, in random order. Then, if asked to,
    some a second time, and play off their cases.

    With them go the study's controls that are not known for this device; they are in no count.

    Args:
        retry: statuses whose cells are measured again; "disturbed" for those that were measured while others
            used the device,
            "drifting" for those whose samples drift, "noisy" for those whose samples differ much.
        force: measure all cells again.
        part: name of the shard to which the cells belong. Runs of different parts may share the folder of
            results.
        log: a file that gets one line for each cell.
        progress: the display; by default the one of `config.progress`.
        task: this process if it is task 0 of a job; without it all ranks are on this machine.
        playoffs: "after" the cells: of all cases that have some of them; of a `part`, of those cases that are
            in it with all methods.
            "only": no cell is measured.
        repeats: measure some of the cells a second time, as the study says.
        elsewhere: further cells, of which files have records. They take part in play-offs.
        wait_s: how long to wait for another run on the device; without limit if not given.

    Raises:
        UserError: another run uses the folder, or the device for longer than `wait_s`; the folder cannot be
            written, or the device does not exist here.
        JobError: machines were lost, and cells are left that need them. All others are stored.
        KeyboardInterrupt: on a signal that ends it, after all workers are stopped, and before the next cell
        if the workflow that started
            this run is gone. Finished cells are stored.
    """
    store = CellStore(config.results / study.name)
    begun = time.monotonic()
    started = datetime.now(UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    logs = store.folder / "logs" / run_id
    first_world = min((cell.world for cell in cells), default=1)
    known = functools.cache(lambda: cell_facts(store))
    controls = DeviceControls(study)
    versions_of = MethodVersions(study)
    versions_on = functools.cache(lambda: versions_of.of([*cells, *controls.cells]))
    with (
        stopped_by_signals() as stop,
        closing(progress or make_progress(config.progress, log)) as show,
        _launcher(task, store.folder, stop.now) as launcher,
        store.lock(part, wait=by_workflow(), announce=show.note, given_up=stop.soon),
        Pool(
            config.device,
            logs,
            stop.now,
            launcher,
            Claimant(show.note, stop.soon, wait_s),
            meanwhile=lambda: (known(), versions_on()),
            first_world=first_world,
        ) as pool,
    ):
        versions = versions_on()(pool.device.name)
        kept, in_a_row = ({}, {}) if force else _kept(known(), cells, versions, retry, config.disturbed, show)
        counts = Counter(score.status for score in kept.values())
        own = [] if playoffs == "only" else [cell for cell in cells if cell.cell_id not in kept]
        beside = controls.due(own, store, pool.device.uuid, versions, retry)
        todo = shuffled([*own, *beside], study.seed, pool.device.type)
        run = _Run(
            study,
            run_id,
            store,
            pool,
            versions,
            versions_of,
            read_digests(store.folder / "masks.json"),
            source(),
            in_a_row,
        )
        show.start(cells, list(kept.values()), logs)
        if beside:
            show.note(
                f"Measured beside: {plural(len(beside), 'control')} of the study, not known for this device"
            )
        not_counted = {cell.cell_id for cell in beside}
        missed = ""
        try:
            for cell in todo:
                if stop.soon():
                    raise KeyboardInterrupt
                is_counted = cell.cell_id not in not_counted
                if is_counted:
                    show.begin(cell)
                try:
                    record = run.measure(cell)
                except TooFewLeft as reason:
                    missed = str(reason) if is_counted else missed
                    continue
                if cell in controls:
                    store.write_control(record, device_key(pool.device.uuid))
                if is_counted:
                    store.write(record)
                    counts[record.outcome.status] += 1
                    show.end(record)
                elif record.outcome.status != "ok":
                    show.note(f"The control {cell.title} ended as {record.outcome.status} on this device")
        except KeyboardInterrupt:
            why = "" if stop.now() else ", since the workflow that started this run is gone"
            show.note(f"Stopped with {show.num_left} cells to do{why}: run again to go on")
            raise
        latest = functools.cache(lambda: cell_facts(store)[0] if todo else known()[0])
        repeated = run.repeat(cells, show, stop, latest, force=force) if repeats else None
        playing = (
            run.playoffs(cells, whole=part is not None, twins=repeats, known=elsewhere)
            if playoffs != "none"
            else None
        )
        if playing is not None:
            playing.play(latest(), show, stop, retry=retry, force=force)
        if missed:
            raise JobError(
                f"{plural(show.num_left, 'cell')} not measured",
                why=missed,
                todo="All others are stored: run again to go on",
            )
    return Summary(
        run_id=run_id,
        counts={status: counts[status] for status in STATUSES},
        num_measured=len(own),
        num_kept=len(kept),
        seconds=round(time.monotonic() - begun, 3),
        board=show.board,
        names=show.names,
        headline=show.headline,
        num_controls=len(beside),
        logs=logs,
        playoffs=None if playing is None else playing.counts,
        repeats=repeated,
    )


def asked(measure: Measure) -> dict[str, Scalar | None]:
    """The settings of a measurement by name, as a record has them."""
    settings = measure.model_dump(mode="json")
    return {
        name: value if isinstance(value, bool | int | float | str) or value is None else json.dumps(value)
        for name, value in settings.items()
    }


@dataclass(frozen=True)
class _Run:
    """Facts that all records of a run share."""

    study: Study
    run_id: str
    store: CellStore
    pool: Pool
    versions: dict[str, str]  # cell_id → method version
    versions_of: MethodVersions  # of further cells, and of parts in play-offs
    digests: dict[str, str]  # mask → digest
    source: Source
    in_a_row: dict[str, int]  # cell measured again → its records in a row that drifted or were disturbed

    def measure(self, cell: Cell, method_version: str | None = None, **more: Any) -> Record:
        """The record of a cell that is measured now; its method version is the run's own if not given."""
        begun = time.monotonic()
        started = datetime.now(UTC)
        result = self.pool.measure(cell, self.study.measure_of(cell))
        return self.record(
            cell,
            result,
            started,
            time.monotonic() - begun,
            method_version=method_version or self.versions[cell.cell_id],
            **more,
        )

    def record(self, cell: Cell, result: Result, started: datetime, seconds: float, **more: Any) -> Record:
        """The record of a result, with what only the runner knows.

        Args:
            more: further fields of the record.
        """
        result = check_mask(cell, result, self.digests)
        self.store.write_listings(result.listings)
        environment = (
            Environment(
                nodes=result.nodes,
                software=result.software,
                source=self.source,
                slurm_job=slurm_job(),
                ranks=result.ranks,
            )
            if result.nodes and result.software
            else None
        )
        measured = {
            name: getattr(result, name) for name in Result.model_fields if name in Record.model_fields
        }
        for name in () if more.keys() & {"playoff", "repeat"} else ("others", "samples"):
            if measured[name] is not None:
                measured[name] = measured[name].model_copy(
                    update={"again": self.in_a_row.get(cell.cell_id, 0)}
                )
        return Record(
            cell_id=cell.cell_id,
            cell=cell,
            study=self.study.name,
            run_id=self.run_id,
            work=Registry("kernel").load(cell.kernel).work(cell.call_spec, cell.seqlen),
            measure=asked(self.study.measure_of(cell)),
            environment=environment,
            **measured,
            **more,
            started_at=started.isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
        )

    def repeat(
        self,
        cells: Sequence[Cell],
        show: Progress,
        stop: Stop,
        facts: Callable[[], dict[str, CellFacts]],
        *,
        force: bool,
    ) -> RepeatCounts | None:
        """Measure some of these cells a second time; None where the study has no repeats."""
        if self.study.repeats is None:
            return None
        repeating = RepeatRun(
            self.study, self.study.repeats, cells, self.store, self.pool, self.measure, self.versions_of
        )
        repeating.measure(facts(), show, stop, force=force)
        return repeating.counts

    def playoffs(
        self, cells: Sequence[Cell], *, whole: bool, twins: bool, known: Known | None
    ) -> PlayoffRun | None:
        """The play-offs of these cells' cases, in some of them a player twice; None where the study has
        none."""
        if self.study.playoff is None:
            return None
        return PlayoffRun(
            self.study,
            self.study.playoff,
            cells,
            PlayoffStore(self.store.folder),
            self.pool,
            self.run_id,
            self.record,
            self.versions_of,
            whole=whole,
            repeats=self.study.repeats if twins else None,
            known=known,
        )


def _kept(
    known: tuple[dict[str, CellFacts], list[UnusableFile]],
    cells: Sequence[Cell],
    versions: dict[str, str],
    retry: AbstractSet[str],
    disturbed: Literal["again", "keep"],
    show: Progress,
) -> tuple[dict[str, Score], dict[str, int]]:
    """(cell_id → score of the records that stay, cell_id → how many records in a row drifted or were
    disturbed, of cells measured again).

    A cell that was disturbed or drifted is measured again by itself only once, whichever of both it was then.
    On a machine that is never quiet a third number would be no better than the second, and a study must end;
    its records say so.
    """
    kept: dict[str, Score] = {}
    in_a_row: dict[str, int] = {}
    facts, problems = known
    for problem in problems:
        if problem.path.stem in versions:
            show.note(f"Measured again: {problem}")
    for cell in cells:
        stored = facts.get(cell.cell_id)
        if stored is None or stored.method_version != versions[cell.cell_id]:
            continue
        asked = {"disturbed": stored.num_disturbed > 0, "drifting": stored.is_drifting}
        by_itself = disturbed == "again" and stored.num_unsettled == 1
        if by_itself or any(asked[name] for name in retry & asked.keys()):
            in_a_row[cell.cell_id] = stored.num_unsettled
        elif stored.status not in retry and not (stored.is_noisy and "noisy" in retry):
            kept[cell.cell_id] = Score.known(cell, stored)
    if in_a_row:
        num_disturbed = sum(facts[cell_id].num_disturbed > 0 for cell_id in in_a_row)
        reasons = {
            "during which others used the device": num_disturbed,
            "whose samples drifted": len(in_a_row) - num_disturbed,
        }
        for reason, count in reasons.items():
            if count:
                show.note(f"Measured again: {plural(count, 'cell')} {reason}")
    return kept, in_a_row


@contextmanager
def _launcher(task: Task | None, results: Path, stopped: Callable[[], bool]) -> Iterator[Launcher]:
    if task is None:
        yield Local()
    else:
        with Job(task, results, stopped) as job:
            yield job
