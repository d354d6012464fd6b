"""The tables of docs/guide/slurm.md, without a cluster."""

import pytest

from tests.slurm.page import PAGE, jobs_table, scenarios_table

JOB = {
    "job_id": "7",
    "name": "kernels_wildcards_kernel-naive-0",
    "state": "COMPLETED",
    "nodes": "n1",
    "seconds": 3,
    "memory": "2000M",
}


@pytest.fixture(scope="module")
def jobs():
    return jobs_table("quick", overhead_s=6.0)


def test_jobs(jobs):
    assert [(record["stage"], record["jobs"], record["GPUs each"]) for record in jobs.records] == [
        ("corpora", 1, 0),
        ("masks", 1, 0),
        ("kernels", 6, 1),
        ("cp", 1, 2),
        ("cp", 1, 4),
        ("collect", 1, 0),
        ("report", 1, 0),
    ]
    assert "12 jobs" in jobs.caption


def test_scenarios():
    again = JOB | {"state": "NODE_FAIL"}
    table = scenarios_table(
        [
            {
                "scenario": "a node fails",
                "seconds": 200,
                "jobs": [again, JOB, JOB | {"job_id": "8", "name": "report"}],
            }
        ]
    )
    assert table.rows == (("a node fails", "200", "2", "NODE_FAIL (kernel-naive-0), 2 COMPLETED"),)


def test_the_page_has_a_place_for_each(jobs):
    for table in (jobs, scenarios_table([])):
        assert f"<!-- begin {table.name} -->" in PAGE.read_text()
