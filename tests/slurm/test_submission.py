"""Sending a whole study: how long it takes, and that every job asks for what its shard needs."""

import os
from collections import Counter

import pytest

from longca.lab.bench.run.shards import shards
from longca.lab.studies.config import Config
from longca.lab.studies.study import load_study
from tests.slurm.cluster.files import PARTITION
from tests.slurm.cluster.space import UID
from tests.slurm.project import Project
from tests.support import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_whole_study(new_cluster, scenario):
    """Sending all shards of the paper's study to a queue that starts none"""
    text = (ROOT / "config/studies/paper.yaml").read_text()
    expected = shards(load_study("paper").cells(), Config().shard_minutes)
    with new_cluster(num_nodes=1, gpus_per_node=96, cores_per_node=96) as cluster:
        cluster.space.run(f"scontrol update partition={PARTITION} state=DOWN")
        project = Project.new(
            cluster, "paper", text, site="gpus_per_node: 96\ncores_per_gpu: 1\nmemory_per_gpu_gb: 0.05\n"
        )
        for name in ("corpora.json", "masks.json"):
            (project.folder / "results/study").mkdir(parents=True, exist_ok=True)
            (project.folder / "results/study" / name).write_text("[]")
        for path in (project.folder / "results", *project.folder.glob("results/**/*")):
            os.chown(path, UID, UID)
        with scenario(cluster) as jobs:
            run = project.start("--jobs", str(len(expected)))
            project.wait_for(lambda: len(cluster.queued()) == len(expected), run)
            assert Counter(job.state for job in jobs()) == {"PENDING": len(expected)}
        run.interrupt()
        run.finish(code=1)
        assert Counter(job.state for job in cluster.queued()) == {"CANCELLED": len(expected)}
