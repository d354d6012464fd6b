"""Accidents at random moments of a study on a cluster: jobs cancelled or killed, nodes that fail, Snakemake
killed or interrupted."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from longca.lab.bench.measure.environment import cpu_name, num_cores
from longca.lab.store.lock import holders
from tests.chaos import checks
from tests.slurm.cluster.cluster import Cluster, Job
from tests.slurm.outcome import NUM_CELLS
from tests.slurm.project import Project, Run
from tools import reliability

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1500)]
SEED = int(os.environ.get("CHAOS_SEED", "0"))
COUNT = int(os.environ.get("CHAOS_KILLS", "10"))
SAVE = "CHAOS_SAVE"  # write what came of it into docs/results/reliability.md
KINDS = ("job cancelled", "job killed", "node failed", "Snakemake killed", "Snakemake interrupted")
LONGEST_DELAY_S = 15.0
MOST_LAST_RUNS = 5
STARTS_SECONDS = 240.0  # that a job gets to run: the study may have just ended, and begins from nothing
# that Slurm gets to see that a node is gone: it waits for 20 s, and looks once in a while
SEEN_SECONDS = 90.0
RUN_SECONDS = 400.0  # that a run without accidents gets
LEFT_SECONDS = 60.0  # that jobs get to end, once the last run is over


def test_random_moments(accidents, cluster, scenario):
    """Ten accidents at random moments"""
    whole = accidents("undisturbed")
    whole.run(SLOW_SECONDS="2")
    undisturbed = checks.cell_files(whole.results)
    assert len(undisturbed) == NUM_CELLS
    with scenario(cluster):
        campaign = Campaign(cluster, accidents, random.Random(SEED))
        try:
            for what in random.Random(SEED).sample((KINDS * COUNT)[:COUNT], COUNT):
                campaign.happen(what)
        finally:
            campaign.start_nodes()
        campaign.finish(len(undisturbed))
    actual = campaign.found(undisturbed)
    if SAVE in os.environ:
        reliability.save(
            "slurm",
            {
                "date": datetime.now(UTC).date().isoformat(),
                "machine": f"{cpu_name()}, {num_cores()} cores",
                "seed": SEED,
                "found": actual,
                "num_starts": campaign.num_starts,
                "seconds": round(campaign.elapsed()),
                "accidents": campaign.happened,
            },
        )
    again = f"CHAOS_SEED={SEED} CHAOS_KILLS={COUNT} python -m pytest tests/slurm -m slurm -k random_moments"
    assert not actual, f"{actual}\nagain: {again}"


class Campaign:
    """A study on the cluster, started again whenever it has ended, and what happens to it."""

    def __init__(
        self, cluster: Cluster, accidents: Callable[[str], Project], generator: random.Random
    ) -> None:
        self.cluster = cluster
        self.generator = generator
        self.project = accidents("chaos")
        self._at_first = {path.name for path in self.project.results.iterdir()}
        self.happened: list[dict[str, object]] = []
        self.lost: list[str] = []
        self.num_starts = 0
        self._kept: dict[str, int] = {}
        self._failed: list[str] = []
        self._run: Run | None = None
        self._begun = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def happen(self, what: str) -> None:
        """Let something happen some time from now, to a running job or to Snakemake."""
        self._ensure_running()
        time.sleep(self.generator.uniform(1.0, LONGEST_DELAY_S))
        needs_job = what.startswith(("job", "node"))
        job = self._running_job() if needs_job else None
        self._ensure_running()
        self._remember()
        assert self._run is not None
        if what == "job cancelled" and job:
            self.cluster.space.run(f"scancel {job.job_id}")
        elif what == "job killed" and job:
            self.cluster.space.run(f"scancel --signal=KILL --full {job.job_id}")
        elif what == "node failed" and job:
            self.start_nodes()
            self.cluster.fail_node(job.nodes)
            self._failed.append(job.nodes)
        elif what == "Snakemake killed":
            self._run.kill()
        elif what == "Snakemake interrupted":
            self._run.interrupt()
            self._run.process.wait(120)
        self.happened.append(
            {
                "what": what,
                "at_s": round(self.elapsed(), 1),
                "num_cells": len(self._kept),
                "note": reliability.TOO_LATE if needs_job and job is None else "",
            }
        )

    def start_nodes(self) -> None:
        """Nodes that have failed come back, once Slurm has seen that they are gone: no machine starts again
        more quickly."""
        while self._failed:
            node = self._failed.pop()
            deadline = time.monotonic() + SEEN_SECONDS
            seen = f"sinfo --noheader --nodes={node} --format=%T"
            while "down" not in self.cluster.space.run(seen).stdout and time.monotonic() < deadline:
                time.sleep(1.0)
            self.cluster.start_node(node)

    def finish(self, num_cells: int) -> None:
        """Run it without accidents until it is whole."""
        for _ in range(MOST_LAST_RUNS):
            if self._run is None or self._run.process.poll() is not None:
                self._start()
            assert self._run is not None
            try:
                code = self._run.process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                self.lost.append(
                    f"a run without accidents did not end within {RUN_SECONDS:g} s; jobs: "
                    f"{self.cluster.queued()}"
                )
                self._run.kill()
                return
            self._remember()
            if code == 0 and len(checks.cell_files(self.project.results)) >= num_cells:
                return
        self.lost.append(f"not whole after {MOST_LAST_RUNS} more runs")

    def found(self, undisturbed: dict[str, checks.CellFile]) -> list[str]:
        """The faults."""
        cells = checks.cell_files(self.project.results)
        results = self.project.results
        deadline = time.monotonic() + LEFT_SECONDS
        while (
            left := [
                job for job in self.cluster.queued() if job.state in ("RUNNING", "PENDING", "COMPLETING")
            ]
        ) and time.monotonic() < deadline:
            time.sleep(1.0)
        return [
            *self.lost,
            *checks.unlike(cells, undisturbed),
            *checks.lost(self._kept, cells),
            *(f"job {job.name} is left" for job in left),
            *(f"a lock is held by {holder}" for holder in holders(results)),
            *(f"temporary file {path.name} is left" for path in results.rglob(".*.tmp")),
        ]

    def _ensure_running(self) -> None:
        if self._run is not None and self._run.process.poll() is None:
            return
        if (
            self._run is not None and self._run.process.returncode == 0
        ):  # whole before all has happened: once more from nothing
            self._remember()
            for path in (
                self.project.results.iterdir()
            ):  # the page, too: where it is, Snakemake asks for nothing that it was made of
                if path.name not in self._at_first:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._kept = {}
        self._start()

    def _start(self) -> None:
        self.num_starts += 1
        self.project.start("--unlock").process.wait(120)  # a killed Snakemake leaves its lock
        self._run = self.project.start(SLOW_SECONDS="2")

    def _running_job(self) -> Job | None:
        """A measuring job that runs; None where there is none for a while."""
        deadline = time.monotonic() + STARTS_SECONDS
        while time.monotonic() < deadline:
            self._ensure_running()
            actual = [
                job for job in self.cluster.queued() if "kernel-" in job.name and job.state == "RUNNING"
            ]
            if actual:
                return self.generator.choice(sorted(actual, key=lambda job: job.name))
            time.sleep(0.2)
        return None

    def _remember(self) -> None:
        """Finished cells must stay as they are."""
        cells = checks.cell_files(self.project.results)
        self.lost += [text for text in checks.lost(self._kept, cells) if text not in self.lost]
        self._kept |= {name: cell.written_ns for name, cell in cells.items() if cell.status == "ok"}
