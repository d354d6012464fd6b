"""A kernel in a file of its own, checked and timed beside other kernels. Nothing is registered, and nothing
of it is stored.

The file reaches the worker processes as a plug-in: a folder that lives as long as the comparison holds an
adapter that names the file.
User code runs in worker processes alone, so a file that hangs or dies ends a cell, not the command.
"""

import ast
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longca.core import AS_RELEASED, BrokenPlugin, Registry, UserError, parse
from longca.core.reading import CODE, read_file
from longca.lab.bench.measure.result import Result, WrongRow
from longca.lab.bench.plan.predict import Predictor
from longca.lab.bench.run.scores import FAILED, Score
from longca.lab.bench.workers.device_lock import Claimant
from longca.lab.bench.workers.pool import Pool
from longca.lab.studies import Cell, Environment, Failed, Measure, Record, Study
from longca.lab.studies.checkout import source

ADAPTER = "\n".join(
    (  # line by line: to `longca.lab.code.source` an import in a string would be one of this file
        '"""The kernel of a file that `longca bench` was given."""',
        "from pathlib import Path",
        "",
        "from longca.kernels.own_file import OwnFileKernel",
        "",
        "",
        "class Own(OwnFileKernel):",
        "    file = Path({file!r})",
        "",
    )
)
ENDED_BADLY = (*FAILED, "oom")  # statuses after which the output of the processes may tell more
UNDEFINED = "DefinitionError"  # of `longca.kernels.own_file`, which this process does not import
NOTE = re.compile(r"^at (\S+, line \d+, in .*)$", re.MULTILINE)  # of `longca.kernels.own_file`


@dataclass(frozen=True)
class OwnFileResult:
    """One cell of the file's kernel, and the same cell of its rivals, where the first one was right."""

    own: Record
    rivals: list[Record]
    wrong_rows: list[WrongRow] = field(default_factory=list)
    place: str = ""
    """where in the file an error was raised, or what it was doing when it died or was stopped: "k.py, line 7,
    in forward: …" """

    @property
    def is_right(self) -> bool:
        return self.own.outcome.status == "ok"


@dataclass(frozen=True)
class OwnFileRun:
    """A comparison of a file's kernel with others."""

    kernel: str
    """its name: the file's, or a variant of it where a kernel is named so"""
    device: str
    results: list[OwnFileResult]
    logs: Path | None
    """output of the worker processes; None where all went well and nothing is kept"""

    @property
    def exit_code(self) -> int:
        """0: what can run is right; 1: a cell ended badly; 2: no cell can run, so that nothing was checked.

        A cell that the kernel refuses is no failure, as in a run; but a run has other cells.
        """
        statuses = {result.own.outcome.status for result in self.results}
        if statuses & {*ENDED_BADLY}:
            return 1
        return 0 if "ok" in statuses else UserError.exit_code


def compare_own_file(
    file: Path,
    grid: dict[str, Any],
    measure: Measure,
    *,
    rivals: Sequence[str] | None,
    device: str,
    seed: int | None = None,
    announce: Callable[[str], object] = lambda text: None,
    wait_s: float | None = None,
) -> OwnFileRun:
    """Check the kernel in `file` against float64 and time it, and then its rivals.

    Args:
        grid: axes of a study's grid (`longca.lab.studies.grid.Grid`) but for the kernels.
        rivals: names of kernels; all that can run these cells here if None.
        device: "auto", "cpu" or "cuda".
        seed: of what is drawn for checks; drawn anew if not given.
        announce: called with the title of each cell before it is measured.
        wait_s: how long to wait for another run on the device; without limit if not given.

    Raises:
        UserError: the file is no kernel, a name is unknown, there is no such device, or another run uses it
            for longer than `wait_s`. That the file is no kernel may show only in the measuring process, where
            its code runs.
    """
    with ExitStack() as stack:
        kernel = stack.enter_context(_as_plugin(file))
        cells = parse(Study, {"name": "bench", "grids": [{"kernel": kernel, **grid}]}, "Options").cells()
        logs = stack.enter_context(_logs())
        pool = stack.enter_context(Pool(device, logs, claimant=Claimant(patience_s=wait_s), seed=seed))

        def measured(cell: Cell) -> Record:
            announce(cell.title)
            started = datetime.now(UTC)
            return _record(cell, pool.measure(cell, measure), started)

        own: dict[Cell, Record] = {}
        wrong_rows: dict[Cell, list[WrongRow]] = {}
        for cell in cells:  # before any rival
            own[cell] = measured(cell)
            _refuse_undefined(file, own[cell])
            if own[cell].outcome.status == "incorrect":
                wrong_rows[cell] = pool.wrong_rows(cell, measure)
        right = [cell for cell in cells if own[cell].outcome.status == "ok"]
        names = {cell: rivals_of(cell, pool.device.type) if rivals is None else rivals for cell in right}
        beside: dict[Cell, list[Record]] = {cell: [] for cell in cells}
        for name in dict.fromkeys(
            name for of_cell in names.values() for name in of_cell
        ):  # one after the other: on a GPU each starts anew
            for cell in right:
                if name in names[cell]:
                    beside[cell].append(measured(_with_kernel(cell, name)))
        results = [
            OwnFileResult(own[cell], beside[cell], wrong_rows.get(cell, []), _place(own[cell]))
            for cell in cells
        ]
        run = OwnFileRun(kernel, pool.device.name, results, logs)
    if not any(
        record.outcome.status in ENDED_BADLY for result in results for record in (result.own, *result.rivals)
    ):
        shutil.rmtree(logs, ignore_errors=True)
        return replace(run, logs=None)
    return run


def _refuse_undefined(file: Path, record: Record) -> None:
    """Raise UserError where not a result was wrong, but what the file defines."""
    outcome = record.outcome
    if isinstance(outcome, Failed) and outcome.type == UNDEFINED:
        raise UserError(
            f"'{file.name}' is no kernel",
            why=outcome.message,
            todo="docs/guide/own-kernel.md tells what a file defines",
        )
    if isinstance(outcome, Failed) and outcome.type == BrokenPlugin.__name__:
        raise UserError(
            outcome.message.replace(str(Registry("kernel").paths()[record.cell.kernel]), str(file))
        )


@contextmanager
def _logs() -> Iterator[Path]:
    """A folder for output, which stays unless there is an error that the user must mend first."""
    folder = Path(tempfile.mkdtemp(prefix="longca-bench-"))
    try:
        yield folder
    except UserError as error:
        if str(folder) not in str(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def rivals_of(cell: Cell, device_type: str) -> list[str]:
    """The kernels that can run this cell here: no controls, and none "as released"."""
    known = Registry("kernel")
    predictor = Predictor(device_type)
    return [
        name
        for name in known.names()
        if name != cell.kernel
        and not name.startswith(AS_RELEASED)
        and known.load(name).family != "control"
        and _refusal(predictor, _with_kernel(cell, name)) is None
    ]


def _refusal(predictor: Predictor, cell: Cell) -> str | None:
    prediction = predictor.predict(cell)
    return prediction.unavailable or prediction.unsupported


def _with_kernel(cell: Cell, name: str) -> Cell:
    return Cell.model_validate(cell.model_dump() | {"kernel": name})


def _record(cell: Cell, result: Result, started: datetime) -> Record:
    measured = {name: getattr(result, name) for name in Result.model_fields if name in Record.model_fields}
    environment = (
        Environment(nodes=result.nodes, software=result.software, source=source(), ranks=result.ranks)
        if result.nodes and result.software
        else None
    )
    return Record(
        cell_id=cell.cell_id,
        cell=cell,
        study="bench",
        run_id="bench",
        method_version="unregistered",
        environment=environment,
        started_at=started.isoformat(timespec="seconds"),
        seconds=(datetime.now(UTC) - started).total_seconds(),
        **measured,
    )


def _place(record: Record) -> str:
    """The place in the user's code where it went wrong; empty if nothing says so."""
    if isinstance(record.outcome, Failed) and (noted := NOTE.findall(record.outcome.log)):
        return noted[-1]
    return re.sub(
        r"^(?:.*/)?([^/]*):(\d+) in ", r"\1, line \2, in ", Score.of(record).raised_at
    )  # as other failures are told


@contextmanager
def _as_plugin(file: Path) -> Iterator[str]:
    """The name of the kernel in `file`, which this process and those that it starts know until the end of the
    block."""
    file = file.resolve()
    is_plugin = _check_file(file)
    known = Registry("kernel").paths()
    if file in known.values():
        yield file.stem
        return
    stem = re.sub(r"\W", "_", file.stem).lower().lstrip("_") or "kernel"
    name = next(name for name in (stem, f"own_{stem}", f"own_own_{stem}") if name not in known)
    before = os.environ.get("LONGCA_PLUGINS")
    with tempfile.TemporaryDirectory(prefix="longca-bench-") as folder:
        adapter = Path(folder) / "kernels" / f"{name}.py"
        adapter.parent.mkdir()
        if is_plugin:
            adapter.symlink_to(file)
        else:
            adapter.write_text(ADAPTER.format(file=str(file)), encoding="utf-8")
        os.environ["LONGCA_PLUGINS"] = os.pathsep.join(filter(None, (before, folder)))
        try:
            yield name
        finally:
            if before is None:
                del os.environ["LONGCA_PLUGINS"]
            else:
                os.environ["LONGCA_PLUGINS"] = before


def _check_file(file: Path) -> bool:
    """True if the file is a kernel plug-in, False if it has a function `forward`. It is read, not run. Raises
    UserError."""
    try:
        tree = ast.parse(read_file(file, CODE), str(file))
    except OSError as error:
        raise UserError(
            f"Cannot read '{file}'",
            why=error.strerror or str(error),
            todo="`longca new kernel NAME` writes a file to begin with",
        ) from error
    except (RecursionError, MemoryError):
        raise UserError(f"'{file.name}' is not valid Python", why="it is nested too deeply") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(
            f"'{file.name}'{line} is not valid Python", why=getattr(error, "msg", None) or str(error)
        ) from error
    if "forward" in set(_top_names(tree)):
        return False
    if any(
        isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Kernel") for base in node.bases)
        for node in tree.body
    ):
        return True
    raise UserError(
        f"'{file.name}' is no kernel",
        why="it defines neither a function forward(q, k, v, mask) nor a sub-class of Kernel",
        todo="`longca new kernel NAME` writes one to begin with",
    )


def _top_names(tree: ast.Module) -> Iterator[str]:
    """Names that the module binds at its top: functions, assignments and imports."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
