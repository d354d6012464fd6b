"""One trial: a study in a folder of its own, run and run again through accidents until it is whole."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import checks
from tests.chaos.machine import mount_small, shifted_clock, unmount
from tests.chaos.plan import Accident, TrialPlan
from tests.chaos.processes import MARK, TICK_SECONDS, Process, end_all, processes, send
from tests.helpers.support import ROOT
from tools.reliability import TOO_LATE

STUDY = """
title: chaos
measure: {warmup: 1, warm_seconds: 0, repeats: 5, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - {kernel: [naive, sdpa], mask: [full, causal, causal_document, sliding_window: {window: 32}, prefix_lm_document,
     block_sparse_uniform: {block: 64, density: 0.5}], seqlen: 512, heads: "4:2", head_dim: 64, dtype: fp32}
  - {kind: cp, strategy: [ulysses, ring_allgather], kernel: naive, world: 2, mask: [causal, causal_document, full], seqlen: 256,
     heads: "4:2", head_dim: 32, dtype: fp32}
"""  # noqa: E501
PARTS = ("Snakefile", "config", "containers", "longca", "workflow")  # what the workflow needs of the project
APPEARS_SECONDS = 60.0  # that a victim gets to appear, and a run to end once it was told to
WHOLE_SECONDS = 240.0  # that the last run gets, without accidents
FINISHING = ("snakemake", "SIGTERM")  # told so, Snakemake waits for its running jobs, each up to all cells
MOST_LAST_RUNS = 6  # the first ones may meet an orphan that is still measuring
DISK = "96m"


@dataclass
class Happened:
    """An accident, and what was seen of it."""

    accident: Accident
    at_s: float
    """since the trial began"""
    num_cells: int
    """that were finished"""
    note: str = ""


@dataclass
class Trial:
    """A trial as it goes, and what was found."""

    plan: TrialPlan
    seed: int
    folder: Path
    study: str = STUDY
    happened: list[Happened] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """what should not be: empty after a good trial"""
    num_starts: int = 0
    num_repaired: int = 0
    """cells that ended as `error` since their own process was killed, and were measured again with
    `--retry`"""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.mark = f"{os.getpid()}-{self.seed}-{self.plan.number}"
        self.home = self.folder / "results"
        self.results = self.home / "chaos"
        self.log = self.folder / "output.log"
        self.shift = self.folder / "shift"  # seconds by which the clock is wrong
        self._clock: dict[str, str] = {}
        self._top: subprocess.Popen[bytes] | None = None
        self._kept: dict[str, int] = {}  # finished cell → time of its file
        self._begun = time.monotonic()

    def run(self, undisturbed: dict[str, checks.CellFile]) -> None:
        """Run it to its end. Whatever happens, no process of it is left afterwards.

        Args:
            undisturbed: cells of a run without accidents; none: this is that run.
        """
        self._prepare()
        full_disk = any(accident.what == "full disk" for accident in self.plan.accidents)
        if full_disk:
            mount_small(self.home, DISK)
        try:
            for accident in self.plan.accidents:
                self._happen(accident)
            self._finish(num_cells=len(undisturbed))
            cells = checks.cell_files(self.results)
            self.found += [
                *checks.unlike(cells, undisturbed or cells),
                *checks.lost(self._kept, cells),
                *checks.side_by_side(cells.values()),
                *checks.left_behind(self.folder, self.results, self.mark),
            ]
        finally:
            end_all(self.mark)
            self._top = self._top and None
            if full_disk:
                unmount(self.home)
            self.seconds = round(time.monotonic() - self._begun, 1)

    def _prepare(self) -> None:
        self.home.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        for part in PARTS:
            (self.folder / part).symlink_to(ROOT / part)
        (self.folder / "chaos.yaml").write_text(self.study)
        self.shift.write_text("0\n")
        if any(accident.what == "clock" for accident in self.plan.accidents):
            self._clock = shifted_clock(self.folder, self.shift)

    # ---- what is started

    def _command(self, *more: str) -> list[str]:
        if self.plan.way == "snakemake":
            return [
                sys.executable,
                "-m",
                "snakemake",
                "--profile",
                "workflow/profiles/local",
                *more,
                "--config",
                "study=chaos.yaml",
            ]
        return [sys.executable, "-m", "longca", "run", "chaos.yaml", "--exit-zero", *more]

    def _start(self, command: list[str] | None = None) -> None:
        self.num_starts += 1
        environ = {
            **os.environ,
            MARK: self.mark,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder / "tmp"),
            "CI": "1",
            "LONGCA_DEVICE": "cpu",
            "LONGCA_RESULTS": "results",
            "LONGCA_DISTURBED": "keep",
            "OMP_NUM_THREADS": "1",
            **self._clock,
        }
        with self.log.open("ab") as output:
            output.write(f"\n=== start {self.num_starts} after {self._elapsed():.1f} s\n".encode())
            output.flush()
            self._top = subprocess.Popen(
                command or self._command(),
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_heed_interrupts,
            )

    def _runs(self) -> bool:
        return self._top is not None and self._top.poll() is None

    def _ensure_running(self) -> None:
        """Start it again where it has ended; from nothing where all is done."""
        if self._runs():
            return
        if self._top is not None and self._top.returncode == 0:
            self._check_kept()
            self._wipe()
        self._start()

    # ---- what happens to it

    def _happen(self, accident: Accident) -> None:
        victim = None
        if accident.victim:
            victim = self._victim(accident.victim, accident.delay_s)
        else:
            self._ensure_running()
            self._pause(accident.delay_s)
        self._note_finished()
        self.happened.append(Happened(accident, round(self._elapsed(), 1), len(self._kept)))
        {
            "kill": self._kill,
            "stop": self._stop,
            "full disk": self._fill,
            "clock": self._jump,
            "folder deleted": self._delete,
        }[accident.what](accident, victim)

    def _victim(self, kind: str, delay_s: float) -> Process | None:
        """A process of this kind, some time after the first one was seen; None where none appears."""
        deadline = time.monotonic() + 3 * APPEARS_SECONDS
        waited = False
        while time.monotonic() < deadline:
            self._ensure_running()
            actual = [process for process in processes(self.mark) if process.kind == kind]
            if actual and waited:
                return min(actual, key=lambda process: hash((process.pid, self.seed)))
            if actual:
                self._pause(delay_s)
                waited = True
            else:
                time.sleep(TICK_SECONDS)
        self.found.append(f"no {kind} appeared within {3 * APPEARS_SECONDS:g} s")
        return None

    def _kill(self, accident: Accident, victim: Process | None) -> None:
        if victim is None or not send(victim, signal.Signals[accident.signal]):
            self.happened[-1].note = TOO_LATE
            return
        if self._top is not None and victim.pid == self._top.pid:
            told = accident.victim, accident.signal
            limit_s = WHOLE_SECONDS if told == FINISHING else APPEARS_SECONDS
            try:
                self._top.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.found.append(f"{accident.victim} did not end within {limit_s:g} s of {accident.signal}")
                end_all(self.mark)
            self.happened[-1].note = f"ended with {self._top.poll()}"

    def _stop(self, accident: Accident, victim: Process | None) -> None:
        if victim is None or not send(victim, signal.SIGSTOP):
            self.happened[-1].note = TOO_LATE
            return
        time.sleep(accident.amount)
        send(victim, signal.SIGCONT)

    def _fill(self, accident: Accident, _: Process | None) -> None:
        filler = self.home / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        self._pause(accident.amount)
        filler.unlink()

    def _jump(self, accident: Accident, _: Process | None) -> None:
        self.shift.write_text(f"{accident.amount:.0f}\n")

    def _delete(self, *_: object) -> None:
        self._wipe()

    def _wipe(self) -> None:
        """Remove the study's results, also while a run writes them."""
        while self.results.exists():
            shutil.rmtree(self.results, ignore_errors=True)
        self._kept = {}

    # ---- the end

    def _finish(self, num_cells: int) -> None:
        """Let it run to its end, and measure again what ended as an error since its own process was
        killed."""
        starts = 0
        while not self._is_whole(num_cells):
            if not self._runs():
                starts += 1
                if starts > MOST_LAST_RUNS:
                    code = self._top and self._top.returncode
                    self.found.append(
                        f"not whole after {MOST_LAST_RUNS} more runs, the last ended with {code}"
                    )
                    return
                self._pause(starts - 1)
                self._start()
            if not self._wait():
                return
        broken = [
            name
            for name, cell in checks.cell_files(self.results).items()
            if cell.status in ("error", "timeout")
        ]
        if broken:
            self.num_repaired = len(broken)
            of_victims = sum(
                entry.accident.what == "kill" and entry.accident.victim in ("worker", "rank")
                for entry in self.happened
            )
            if len(broken) > of_victims:
                self.found.append(
                    f"{len(broken)} cells ended as errors, but only {of_victims} of their processes were "
                    f"killed"
                )
            self._start(
                [
                    sys.executable,
                    "-m",
                    "longca",
                    "run",
                    "chaos.yaml",
                    "--exit-zero",
                    "--retry",
                    "error,timeout",
                ]
            )
            self._wait()

    def _is_whole(self, num_cells: int) -> bool:
        return (
            self._top is not None
            and self._top.poll() == 0
            and len(checks.cell_files(self.results)) >= max(num_cells, 1)
            and (self.plan.way != "snakemake" or (self.results / "report.html").exists())
        )

    def _wait(self) -> bool:
        assert self._top is not None
        try:
            self._top.wait(WHOLE_SECONDS)
        except subprocess.TimeoutExpired:
            self.found.append(f"a run without accidents did not end within {WHOLE_SECONDS:g} s")
            return False
        self._note_finished()
        return True

    # ---- what is remembered

    def _note_finished(self) -> None:
        """Remember finished cells: they must stay as they are."""
        self._check_kept()
        self._kept |= {
            name: cell.written_ns
            for name, cell in checks.cell_files(self.results).items()
            if cell.status == "ok"
        }

    def _check_kept(self) -> None:
        lost = checks.lost(self._kept, checks.cell_files(self.results))
        self.found += [text for text in lost if text not in self.found]

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun


def _heed_interrupts() -> None:
    """A shell lets programs in the background ignore Ctrl-C and hang-ups, and so would all that they
    start."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def undisturbed(
    folder: Path, study: str = STUDY, say: Callable[[str], object] = print
) -> dict[str, checks.CellFile]:
    """The cells of a run without accidents."""
    trial = Trial(TrialPlan(-1, "snakemake", ()), 0, folder, study)
    trial.run({})
    if trial.found:
        raise RuntimeError(f"a run without accidents is not as it should be: {'; '.join(trial.found)}")
    cells = checks.cell_files(trial.results)
    say(f"undisturbed: {len(cells)} cells in {trial.seconds:.0f} s")
    return cells
