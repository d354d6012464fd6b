"""The run: measures the cells that need it, one after another, and stores each as soon as it is done. Never imports torch."""

import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from longca.bench.measure.environment import slurm_job
from longca.bench.measure.result import Result
from longca.bench.run.expected import check_mask, read_digests
from longca.bench.run.method_version import method_version
from longca.bench.run.order import shuffled
from longca.bench.run.progress import Progress, duration, make_progress
from longca.bench.workers.job import Job, JobError
from longca.bench.workers.launch import Launcher
from longca.bench.workers.local import Local
from longca.bench.workers.pool import Pool, TooFewLeft
from longca.bench.workers.task import Task
from longca.core.cell import Cell
from longca.core.checkout import source
from longca.core.config import Config
from longca.core.plugin import Registry
from longca.core.record import STATUSES, Environment, Record, Source
from longca.core.schema import Frozen
from longca.core.study import Study
from longca.store.cells import CellStore, UnusableFile
from longca.store.text import plural


class Summary(Frozen):
    """What a run came to."""

    run_id: str
    counts: dict[str, int]
    """status → number of the cells asked for, whether measured now or before"""
    num_measured: int
    num_kept: int
    seconds: float

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        return (f"{plural(self.num_measured + self.num_kept, 'cell')}: {counts} "
                f"({self.num_measured} measured in {duration(self.seconds)}, {self.num_kept} before)")


def run_cells(study: Study, cells: Sequence[Cell], config: Config, *, retry: AbstractSet[str] = frozenset(), force: bool = False,
              part: str | None = None, log: Path | None = None, progress: Progress | None = None, task: Task | None = None) -> Summary:
    """Measure those of the cells that have no record of today's method, in random order.

    Args:
        retry: statuses whose cells are measured again.
        force: measure all again.
        part: name of the shard that the cells are. Runs of different parts may share the folder of results.
        log: a file that takes one line a cell.
        progress: the display; else what `config.progress` says.
        task: this process, where it is task 0 of a job; else all ranks are on this machine.

    Raises:
        UserError: another run holds the folder, it cannot be written, or the device is not here.
        JobError: machines were lost, and cells are left that need them. All others are stored.
        KeyboardInterrupt: on SIGINT and SIGTERM, after all workers are stopped. Finished cells are stored.
    """
    store = CellStore(config.results / study.name)
    begun, started = time.monotonic(), datetime.now(UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    with (_stopped_by_signals() as stopped, _launcher(task, store.folder, stopped.is_set) as launcher, store.lock(part),
          closing(progress or make_progress(config.progress, log)) as show,
          Pool(config.device, store.folder / "logs" / run_id, stopped.is_set, launcher) as pool):
        versions = {cell.cell_id: method_version(cell, study.measure, pool.device.name) for cell in cells}
        kept = {} if force else _kept(store, versions, retry, show)
        counts = Counter(kept.values())
        todo = shuffled((cell for cell in cells if cell.cell_id not in kept), study.seed, pool.device.type)
        run = _Run(study, run_id, pool, versions, read_digests(store.folder / "masks.json"), source())
        show.start(len(cells), len(kept))
        missed = ""
        try:
            for cell in todo:
                if stopped.is_set():
                    raise KeyboardInterrupt
                show.begin(cell)
                try:
                    record = run.measure(cell)
                except TooFewLeft as reason:
                    missed = str(reason)
                    continue
                store.write(record)
                counts[record.outcome.status] += 1
                show.end(record)
        except KeyboardInterrupt:
            show.note(f"Stopped with {show.num_left} cells to do: run again to go on")
            raise
        if missed:
            raise JobError(f"{plural(show.num_left, 'cell')} not measured", why=missed, todo="All others are stored: run again to go on")
    return Summary(run_id=run_id, counts={status: counts[status] for status in STATUSES}, num_measured=len(todo),
                   num_kept=len(kept), seconds=round(time.monotonic() - begun, 3))


@dataclass(frozen=True)
class _Run:
    """What all records of a run share."""

    study: Study
    run_id: str
    pool: Pool
    versions: dict[str, str]  # cell_id → method version
    digests: dict[str, str]  # mask → digest
    source: Source

    def measure(self, cell: Cell) -> Record:
        begun, started = time.monotonic(), datetime.now(UTC)
        result = check_mask(cell, self.pool.measure(cell, self.study.measure), self.digests)
        environment = (Environment(nodes=result.nodes, software=result.software, source=self.source, slurm_job=slurm_job())
                       if result.nodes and result.software else None)
        measured = {name: getattr(result, name) for name in Result.model_fields if name not in ("nodes", "software")}
        return Record(cell_id=cell.cell_id, cell=cell, study=self.study.name, run_id=self.run_id,
                      work=Registry("kernel").load(cell.kernel).work(cell),
                      method_version=self.versions[cell.cell_id], environment=environment, **measured,
                      started_at=started.isoformat(timespec="seconds"), seconds=round(time.monotonic() - begun, 3))


def _kept(store: CellStore, versions: dict[str, str], retry: AbstractSet[str], show: Progress) -> dict[str, str]:
    """cell_id → status of the records that stay."""
    kept = {}
    for cell_id, version in versions.items():
        found = store.read(cell_id)
        if isinstance(found, UnusableFile):
            show.note(f"Measured again: {found}")
        elif found is not None and found.method_version == version and found.outcome.status not in retry:
            kept[cell_id] = found.outcome.status
    return kept


@contextmanager
def _launcher(task: Task | None, results: Path, stopped: Callable[[], bool]) -> Iterator[Launcher]:
    if task is None:
        yield Local()
    else:
        with Job(task, results, stopped) as job:
            yield job


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set. A flag and no exception, so that nothing is left half done."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # signals are the main thread's
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
