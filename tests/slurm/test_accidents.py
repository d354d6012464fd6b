"""What goes wrong on a cluster: each time the report is complete in the end, and nothing that was measured is measured again."""

import pytest

from tests.slurm.cluster.cluster import Cluster, Job
from tests.slurm.project import Project

pytestmark = pytest.mark.slurm
NUM_CELLS = 8


def ended_well(project: Project, kept: dict[str, tuple[str, int]]) -> None:
    cells = project.cells()
    assert [status for status, _ in cells.values()] == ["ok"] * NUM_CELLS
    assert kept and {cell: cells[cell] for cell in kept} == kept, "what was measured stays as it was"
    assert (project.results / "report.html").stat().st_size > 0


def states(jobs: list[Job], rule: str = "") -> list[str]:
    return [job.state for job in jobs if job.name.startswith(rule)]


def running(cluster: Cluster) -> Job:
    """The slow kernel's job."""
    return next(job for job in cluster.queued() if job.name.endswith("kernel-slow-0") and job.state == "RUNNING")


def test_scancel(accidents, cluster, scenario):
    """`scancel` of a job in the middle; meanwhile a second Snakemake on the same folder is refused"""
    project = accidents("scancel")
    with scenario(cluster) as jobs:
        run = project.start()
        project.wait_for(lambda: slow_cells(project), run)
        cluster.space.run(f"scancel {running(cluster).job_id}")
        assert "cannot be locked" in project.start().finish(code=1)
        kept = project.cells()
        run.finish()
        ended_well(project, kept)
        assert sorted(states(jobs(), "kernels_wildcards_kernel-slow")) == ["CANCELLED", "COMPLETED"]


def slow_cells(project: Project) -> bool:
    """One cell of the slow kernel is done, and others are not."""
    return len(project.cells()) in (5, 6, 7)


def test_interrupt(accidents, cluster, scenario):
    """Ctrl-C of Snakemake, then a second start"""
    project = accidents("interrupt")
    with scenario(cluster) as jobs:
        run = project.start()
        project.wait_for(lambda: slow_cells(project), run)
        run.interrupt()
        run.finish(code=1)
        kept = project.cells()
        assert 0 < len(kept) < NUM_CELLS
        assert "CANCELLED" in states(jobs(), "kernels_wildcards_kernel-slow")
        project.run()
        ended_well(project, kept)


@pytest.mark.slow
def test_time_limit(accidents, cluster, scenario):
    """A job over its time limit"""
    project = accidents("time")
    with scenario(cluster) as jobs:
        run = project.start("--set-resources", "kernels:runtime=attempt", SLOW_SECONDS="22")
        project.wait_for(lambda: "TIMEOUT" in states(jobs()), run)
        kept = project.cells()
        output = run.finish()
        ended_well(project, kept)
        assert states(jobs(), "kernels_wildcards_kernel-slow") == ["TIMEOUT", "COMPLETED"], output


@pytest.mark.slow
def test_memory(accidents, cluster, scenario):
    """A job over its memory"""
    project = accidents("memory")
    with scenario(cluster) as jobs:
        run = project.start(SLOW_BYTES="2.5e9")
        project.wait_for(lambda: {"FAILED", "OUT_OF_MEMORY"} & set(states(jobs())), run)
        kept = {cell: found for cell, found in project.cells().items() if found[0] == "ok"}
        output = run.finish()
        ended_well(project, kept)
        assert "oom-kill" in output
        of_slow = [(job.state, job.memory) for job in jobs() if job.name.endswith("kernel-slow-0")]
        assert of_slow in [[(state, "2000M"), ("COMPLETED", "4000M")] for state in ("OUT_OF_MEMORY", "FAILED")], output


@pytest.mark.slow
def test_node_failure(accidents, cluster, scenario):
    """A node that fails with its jobs"""
    project = accidents("node")
    with scenario(cluster) as jobs:
        run = project.start()
        project.wait_for(lambda: slow_cells(project), run)
        node = running(cluster).nodes
        cluster.fail_node(node)
        kept = project.cells()
        try:
            run.finish()
        finally:
            cluster.start_node(node)
        ended_well(project, kept)
        assert states(jobs(), "kernels_wildcards_kernel-slow") == ["NODE_FAIL", "COMPLETED"]


@pytest.mark.slow
def test_full_disk(accidents, cluster, scenario):
    """A full results disk, then room again"""
    project = accidents("disk")
    made = {path.name: path.read_bytes() for path in project.results.glob("*.json")}
    place = project.folder / "results/study"
    cluster.space.mount_tmpfs(place, "64m")
    with scenario(cluster):
        for name, content in made.items():
            (project.results / name).write_bytes(content)
        run = project.start("--retries", "0")
        project.wait_for(lambda: slow_cells(project), run)
        cluster.space.run(f"cat /dev/zero > {place}/filler 2> /dev/null || true")
        output = run.finish(code=1)
        assert "No space left on device" in output and "Finished cells are safe" in output
        kept = project.cells()
        assert len(kept) < NUM_CELLS
        cluster.space.run(f"rm {place}/filler")
        project.run()
        ended_well(project, kept)
