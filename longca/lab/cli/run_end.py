"""The end of a run, as its command says it: the finding, the tables, what failed and the next step.

The end of a run that had nothing to do is kept beside the cells of a large study, with a digest of all that
it follows from. The next run says the same at once, as long as nothing has changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.lab.cli.options import line_width, print_table, print_text

if TYPE_CHECKING:
    from longca.lab.bench import Summary
    from longca.lab.studies import Config, Study

KEPT = ".run.json"
MOST_FAILURES = 5  # named at the end; each has its line above
ENVIRONMENT = ("LONGCA_", "CUDA_", "NVIDIA_")  # beginnings of variables that may change what a run does


@dataclass(frozen=True)
class RunEnd:
    """The end of a run as JSON data."""

    headline: str
    """what was asked, measured before and to do"""
    texts: tuple[str, ...]
    tables: tuple[Mapping[str, Any], ...]
    """arguments of `print_table`"""
    failed: tuple[str, ...]
    """a line for each of the first failures"""
    num_failed: int
    failed_statuses: tuple[str, ...]
    logs: str
    num_disturbed: int
    num_drifting: int
    is_failure: bool
    """exit code 1"""

    @classmethod
    def of(cls, summary: Summary, width: int) -> RunEnd:
        """The end of this run.

        Args:
            width: of the terminal, for which tables are divided.
        """
        from longca.lab.bench import failures, finding, outcome_table, rate_tables

        board = summary.board
        playoffs = summary.playoffs
        has_playoffs = playoffs and (playoffs.num_played or playoffs.num_kept or playoffs.left_out)
        failed = failures(board)
        texts = (
            str(summary),
            str(summary.repeats) if summary.repeats else "",
            str(playoffs) if has_playoffs else "",
            finding(board),
        )
        tables = (*rate_tables(board, width), outcome_table(board))
        # of earlier runs too, where cells were kept
        logs = summary.logs if summary.num_measured and not summary.num_kept else summary.logs.parent
        return cls(
            summary.headline,
            tuple(filter(None, texts)),
            tuple(asdict(table) for table in tables if table.rows),
            tuple(
                f"{score.status}: {summary.names.name(score.cell)}"
                + (f" at {score.raised_at}" if score.raised_at else "")
                for score in failed[:MOST_FAILURES]
            ),
            len(failed),
            tuple(dict.fromkeys(score.status for score in failed)),
            str(logs),
            sum(score.num_disturbed > 0 for score in board.scores),
            sum(score.is_drifting for score in board.scores),
            bool(summary.num_failed),
        )

    def show(self, study: str, *, has_page: bool = False) -> None:
        """Print it.

        Args:
            study: as the next command needs it.
            has_page: the workflow makes the page, so that it is no next step.
        """
        from longca.lab.store.text import plural

        print_text("\n".join(self.texts))
        for table in self.tables:
            print_table(**table)
        for line in self.failed:
            print(line)
        if self.num_failed > len(self.failed):
            print(f"… and {plural(self.num_failed - len(self.failed), 'cell')} more")
        if self.num_failed:
            statuses = ",".join(self.failed_statuses)
            print(f"Logs: {self.logs}/. After mending: longca run {study} --retry {statuses}")
        if self.num_disturbed:
            print_text(
                f"Others used the device while {plural(self.num_disturbed, 'cell')} ran. When it is quiet: "
                f"longca run {study} --retry disturbed"
            )
        if self.num_drifting:
            print_text(
                f"The times of {plural(self.num_drifting, 'cell')} drift, which the page marks. "
                f"To measure again: longca run {study} --retry drifting"
            )
        if not has_page:
            print(f"Next: longca report {study}")


def end_of_run(
    study: Study,
    config: Config,
    folder: Path,
    asked: Mapping[str, Any],
    run: Callable[[], tuple[Summary, bool]],
) -> RunEnd:
    """The end of a run of many cells; the kept one if it had nothing to do and nothing has changed since.

    Args:
        folder: of the study's results.
        asked: the command's arguments.
        run: runs, whatever is kept; and says whether its end may be kept.
    """
    from longca.core import plugin_folders
    from longca.lab.bench import is_plain
    from longca.lab.store import CellStore, kept_answer
    from longca.lab.store.index import FEWEST, files_of_cells, stamps_as_bytes

    width = line_width()
    files, strays = files_of_cells(CellStore(folder))
    devices = _devices(config.device)
    if len(files) < FEWEST or strays or devices is None or plugin_folders():
        return RunEnd.of(run()[0], width)
    ended: list[RunEnd] = []

    def make() -> dict[str, Any] | None:
        summary, may_be_kept = run()
        ended.append(RunEnd.of(summary, width))
        return asdict(ended[0]) if summary.had_nothing_to_do and may_be_kept else None

    causes = [*_causes(study, config, folder, {**asked, "width": width}), *devices, *stamps_as_bytes(files)]
    content = kept_answer(folder / "cells" / KEPT, causes, make)
    if ended:
        return ended[0]
    if is_plain(config.progress):
        print(content["headline"], file=sys.stderr)
    return RunEnd(**content)


def _causes(study: Study, config: Config, folder: Path, asked: Mapping[str, Any]) -> Iterator[str | bytes]:
    """Texts of all that decides what a run has to do, but for its cells and its device: the settings, what
    was asked, the packages, the code, and the other records of the study."""
    from longca.lab.bench import package_stamps
    from longca.lab.code import source_digest
    from longca.lab.store import PlayoffStore, RepeatStore
    from longca.lab.studies.checkout import studies_folder

    yield study.model_dump_json()
    yield config.model_dump_json()
    yield repr(sorted((name, str(value)) for name, value in asked.items()))
    yield repr(sorted(pair for pair in os.environ.items() if pair[0].startswith(ENVIRONMENT)))
    yield repr(package_stamps())
    yield source_digest("longca.lab.cli.run")
    yield PlayoffStore(folder).digest()
    yield RepeatStore(folder).digest()
    beside = [
        *studies_folder().parent.glob("*.yaml"),
        *(folder / "controls").rglob("*"),
        *folder.glob("*.json"),
    ]
    for path in sorted(beside):
        status = path.stat()
        yield repr((str(path), status.st_size, status.st_ctime_ns, status.st_ino))


def _devices(device: str) -> list[str] | None:
    """Names of what this machine measures on; None where only a measuring process can tell."""
    from longca.lab.bench import local_device, visible_gpus

    name = local_device(device)
    return visible_gpus() if name is None else [name]
