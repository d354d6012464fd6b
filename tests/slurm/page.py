"""The tables of docs/guide/slurm.md: the jobs of a study, and what happened in the scenarios.

python -m tests.slurm.page jobs [--study paper]     counts; no cluster is made
python -m tests.slurm.page scenarios [-k PART]      makes clusters and runs all scenarios, or some of them, on it
python -m tests.slurm.page scenarios --log FILE …   of runs with LONGCA_SLURM_LOG=FILE
"""  # noqa: E501

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from longca.lab.bench.plan.shards import Shard, shards
from longca.lab.studies.config import Config
from longca.lab.studies.site import Site, layout
from longca.lab.studies.study import load_study
from tests.helpers.support import ROOT
from tests.slurm.conftest import LOG
from tools.table import Table

PAGE = ROOT / "docs/guide/slurm.md"
OTHER_STAGES = ("corpora", "masks", "collect", "report")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("jobs", "scenarios"))
    parser.add_argument("--study", default="paper")
    parser.add_argument(
        "--overhead-s",
        type=float,
        default=7.0,
        help="what a job costs beside its measuring, as the scenarios show it",
    )
    parser.add_argument("-k", dest="part", default="", help="only these tests")
    parser.add_argument("--log", type=Path, nargs="+", help="logs of earlier runs")
    options = parser.parse_args()
    if options.table == "jobs":
        table = jobs_table(options.study, options.overhead_s)
    else:
        table = scenarios_table(
            [entry for log in options.log for entry in read_log(log)]
            if options.log
            else run_scenarios(options.part)
        )
    table.write_into(PAGE)
    table.show()


def jobs_table(study_name: str, overhead_s: float) -> Table:
    """Jobs of a study by what they ask for, on nodes of eight GPUs."""
    site = Site()
    study = load_study(study_name)
    parts = shards(study.cells(), Config().shard_minutes)
    begun = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "--profile",
            "slurm",
            "--dry-run",
            "--quiet",
            "all",
            "--config",
            f"study={study_name}",
            "results=/nonexistent",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "LONGCA_SITE_CONTAINERS": "off"},
    )  # so that no Apptainer need be here
    dry_run_s = time.monotonic() - begun
    groups: dict[tuple[str, int], list[Shard]] = {}
    for shard in parts:
        groups.setdefault((shard.kind, shard.world), []).append(shard)
    records = [
        {"stage": stage, "jobs": 1, "nodes": 1, "GPUs each": 0, "minutes": 0.0} for stage in OTHER_STAGES
    ]
    records[2:2] = [
        {
            "stage": {"kernel": "kernels"}.get(kind, kind),
            "jobs": len(group),
            "nodes": layout(world, site.gpus_per_node)[0],
            "GPUs each": world,
            "minutes": sum(shard.minutes for shard in group),
        }
        for (kind, world), group in groups.items()
    ]
    gpu_minutes = sum(record["minutes"] * record["GPUs each"] for record in records)
    overhead = sum(record["jobs"] * record["GPUs each"] for record in records) * overhead_s / 60
    num_jobs = sum(record["jobs"] for record in records)
    plan = [sys.executable, "-m", "longca", "plan", study_name, "--gpu", "H100 SXM", "--json"]
    planned = json.loads(subprocess.run(plan, cwd=ROOT, check=True, capture_output=True, text=True).stdout)[
        "gpu_hours"
    ]
    caption = (
        f"Study `{study_name}`: {num_jobs} jobs. The dry run takes {dry_run_s:.1f} s. The minutes are what "
        f"time limits are made of, {gpu_minutes / 60:.0f} GPU hours: no mask is looked at, and what is "
        f"unsupported counts, too. `longca plan`, which looks, expects {planned:.0f}. At {overhead_s:g} s a "
        f"job beside its measuring, jobs hold GPUs for {overhead / 60:.1f} hours more: "
        f"{overhead / gpu_minutes:.1%} of the first, {overhead / 60 / planned:.1%} of the second."
    )
    rows = tuple(
        (
            record["stage"],
            str(record["jobs"]),
            str(record["nodes"]),
            str(record["GPUs each"]),
            f"{record['minutes']:.0f}",
            f"{record['minutes'] * record['GPUs each']:.0f}",
        )
        for record in records
    )
    return Table(
        "slurm_jobs",
        caption,
        ("stage", "jobs", "nodes each", "GPUs each", "minutes in all", "GPU minutes"),
        rows,
        tuple(records),
        texts=("stage",),
    )


def run_scenarios(part: str) -> list[dict[str, Any]]:
    """The tests of this folder; one record each."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        subprocess.run(
            [sys.executable, "-m", "pytest", "tests/slurm", "-m", "slurm", "-k", part],
            cwd=ROOT,
            check=True,
            env={**os.environ, LOG: str(log)},
        )
        return read_log(log)


def read_log(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def scenarios_table(records: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            record["scenario"],
            str(record["seconds"]),
            str(len({job["job_id"] for job in record["jobs"]})),
            _states(record["jobs"]),
        )
        for record in records
    )
    caption = (
        "Two cores that pretend to be two or three nodes, busy with other work as well. Times include the "
        "waits between looks at the queue."
    )
    texts = ("scenario", "states of its jobs")
    return Table(
        "slurm_scenarios",
        caption,
        ("scenario", "seconds", "jobs", "states of its jobs"),
        rows,
        tuple(records),
        texts,
    )


def _states(jobs: list[dict[str, Any]]) -> str:
    """The number of jobs in each state; those that ended otherwise, with the name of the job."""
    plain = Counter(job["state"] for job in jobs if job["state"] in ("PENDING", "COMPLETED"))
    others = [
        f"{job['state']} ({job['name'].partition('_wildcards_')[2] or job['name']})"
        for job in jobs
        if job["state"] not in plain
    ]
    return ", ".join([*others, *(f"{count} {state}" for state, count in plain.items())])


if __name__ == "__main__":
    main()
