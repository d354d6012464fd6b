"""One cluster for all tests that can share it, and a log of what happened on it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.slurm.cluster.cluster import Cluster, Job
from tests.slurm.cluster.machine import why_not
from tests.slurm.project import Project
from tests.slurm.studies import ACCIDENTS, PLUGINS
from tests.support import cannot

LOG = "LONGCA_SLURM_LOG"  # a file that takes a line of JSON for each scenario


@pytest.fixture(scope="session")
def new_cluster() -> Callable[..., Cluster]:
    reason = why_not()
    if reason:
        cannot("slurm", f"no Slurm cluster can be made here: {reason}")
    return Cluster


@pytest.fixture(scope="session")
def cluster(new_cluster) -> Iterator[Cluster]:
    with new_cluster(num_nodes=2) as made:
        yield made


@pytest.fixture(scope="session")
def accidents(cluster) -> Callable[[str], Project]:
    """accidents(name) → a project whose masks are made and whose cells are not measured yet."""
    base = Project.new(cluster, "base", ACCIDENTS, plugins=PLUGINS)
    base.run("--until", "masks")
    return base.copy


@pytest.fixture
def scenario(request) -> Callable[..., object]:
    """with scenario(cluster): … logs how long the block took, and the jobs that it ran. Gives a function that
    lists them so far."""

    @contextmanager
    def log(cluster: Cluster) -> Iterator[Callable[[], list[Job]]]:
        before = {job.job_id for job in cluster.jobs()}

        def jobs() -> list[Job]:
            """The accounting learns of a job with some delay."""
            accounted = cluster.jobs()
            known = before | {job.job_id for job in accounted}
            return [job for job in accounted if job.job_id not in before] + [
                job for job in cluster.queued() if job.job_id not in known
            ]

        begun = time.monotonic()
        yield jobs
        if LOG in os.environ:
            entry = {
                "scenario": request.function.__doc__,
                "seconds": round(time.monotonic() - begun),
                "jobs": [asdict(job) for job in jobs()],
            }
            with Path(os.environ[LOG]).open("a") as file:
                file.write(json.dumps(entry) + "\n")

    return log
