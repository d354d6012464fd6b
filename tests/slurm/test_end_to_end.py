"""A study through Slurm, as on any cluster: every stage is a job, and the result is the local one."""

import re

import pytest

from tests.helpers.support import ROOT
from tests.slurm.outcome import differences
from tests.slurm.project import LONGEST_RUN_S, SITE, Project
from tests.slurm.studies import WHOLE

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
NO_ACCOUNT = SITE.replace("account: bench\n", "")


def stages(jobs) -> dict[str, int]:
    counts: dict[str, int] = {}
    for job in jobs:
        assert job.state == "COMPLETED", job
        stage = job.name.partition("_wildcards_")[0]
        counts[stage] = counts.get(stage, 0) + 1
    return counts


def check_both_ways(cluster, scenario, name: str, study: str, timeout_s: float = LONGEST_RUN_S) -> None:
    by_slurm = Project.new(cluster, f"{name}-slurm", study)
    with scenario(cluster) as jobs:
        by_slurm.run(timeout_s=timeout_s)
        ran = stages(jobs())
    assert set(ran) == {"corpora", "masks", "kernels", "playoff", "cp", "collect", "report"}
    assert ran["kernels"] + ran["cp"] + ran["playoff"] == len(list(by_slurm.results.glob("shards/*.done")))
    locally = Project.new(cluster, f"{name}-local", study)
    locally.run(profile="workflow/profiles/local", timeout_s=timeout_s)
    assert not differences(by_slurm, locally)
    for file in ("corpora.json", "masks.json"):
        assert without_times(by_slurm, file) == without_times(locally, file)
    assert figures(by_slurm) == figures(locally)
    logs = {path.stem for path in by_slurm.results.glob("logs/*.log")}
    assert logs >= {"corpora", "masks", "collect", "report"} | {
        path.stem for path in by_slurm.results.glob("shards/*.done")
    }


def without_times(project: Project, file: str) -> str:
    return re.sub(r'"[a-z_]*_ms": [\d.e-]+', "", (project.results / file).read_text())


def figures(project: Project) -> set[str]:
    return {path.name for path in project.results.glob("figures/*")}


def test_every_stage(cluster, scenario):
    """A study with every stage, end to end"""
    check_both_ways(cluster, scenario, "whole", WHOLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_quick_study(cluster, scenario):
    """The quick study, end to end"""
    check_both_ways(cluster, scenario, "quick", (ROOT / "config/studies/quick.yaml").read_text(), 1700)


@pytest.mark.slow
def test_without_accounting(new_cluster, scenario):
    """Three nodes without accounting: status by `squeue`"""
    with new_cluster(num_nodes=3, accounting=False) as cluster:
        project = Project.new(cluster, "plain", WHOLE, site=NO_ACCOUNT)
        with scenario(cluster) as jobs:
            project.run()
            stages(jobs())
        assert {status for status, _ in project.cells().values()} == {"ok"}
