"""Accidents on a cluster: each time the report is complete in the end, and no measured cell is measured
again."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.slurm.cluster.cluster import Cluster, Job
from tests.slurm.outcome import NUM_CELLS, ended_well, slow_cells, states
from tests.slurm.project import Project
from tests.slurm.studies import ACCIDENTS, PLUGINS

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def running(cluster: Cluster) -> Job:
    """The slow kernel's job."""
    return next(
        job for job in cluster.queued() if job.name.endswith("kernel-slow-0") and job.state == "RUNNING"
    )


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
    output = over_its_memory(accidents("memory"), cluster, scenario)
    assert "oom-kill" in output or not cluster.layout.cgroups


@pytest.mark.slow
def test_memory_without_cgroups(new_cluster, scenario):
    """A job over its memory, where Slurm has no control groups and looks now and then"""
    with new_cluster(num_nodes=1, cgroups=False) as cluster:
        output = over_its_memory(
            Project.new(cluster, "memory", ACCIDENTS, plugins=PLUGINS), cluster, scenario
        )
    assert "exceeded memory limit" in output


def over_its_memory(project: Project, cluster: Cluster, scenario: Callable[..., Any]) -> str:
    """The output of Snakemake."""
    with scenario(cluster) as jobs:
        run = project.start(SLOW_BYTES="2.5e9", SLOW_SECONDS="8")
        project.wait_for(lambda: {"FAILED", "OUT_OF_MEMORY"} & set(states(jobs())), run)
        kept = {cell: actual for cell, actual in project.cells().items() if actual[0] == "ok"}
        output = run.finish()
        ended_well(project, kept)
        of_slow = [(job.state, job.memory) for job in jobs() if job.name.endswith("kernel-slow-0")]
        assert of_slow in [
            [(state, "2000M"), ("COMPLETED", "4000M")] for state in ("OUT_OF_MEMORY", "FAILED")
        ], output
    return output


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
