"""Jobs of several nodes: each task is where its rank belongs, with its own GPU."""

import pytest

from longca.lab.studies.site import layout
from tests.slurm.outcome import differences
from tests.slurm.project import Project
from tests.slurm.studies import WHOLE, WIDE

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
WORLDS = (1, 2, 3, 4, 6)
TASKS = """
from longca.lab.studies.site import MEASURING_RESOURCES, load_site
SITE = load_site()
def measuring(name):
    return lambda wildcards, attempt: SITE.measuring_job(int(wildcards.world), attempt).get(name)
rule all:
    input: [f"tasks/{world}" for world in WORLDS]
rule tasks:
    output: "tasks/{world}"
    resources: runtime=2, **{name: measuring(name) for name in MEASURING_RESOURCES}
    params: launch=lambda wildcards: SITE.launch(int(wildcards.world))
    shell:
        "{params.launch} sh -c 'echo $SLURMD_NODENAME $SLURM_PROCID $SLURM_STEP_NUM_TASKS $SLURM_LOCALID $CUDA_VISIBLE_DEVICES' > {output}"
"""  # noqa: E501


def test_geometry(new_cluster, scenario):
    """Jobs of 1 to 6 ranks on three nodes of two GPUs"""
    with new_cluster(num_nodes=3) as cluster:
        project = Project.new(cluster, "tasks", WHOLE)
        (project.folder / "tasks.smk").write_text(TASKS.replace("WORLDS", repr(WORLDS)))
        with scenario(cluster):
            project.run("--snakefile", "tasks.smk")
        for world in WORLDS:
            nodes, ranks = layout(world, 2)
            tasks = [line.split() for line in (project.folder / f"tasks/{world}").read_text().splitlines()]
            by_node: dict[str, list[str]] = {}
            for node, _, _, local, _ in tasks:
                by_node.setdefault(node, []).append(local)
            if nodes == 1:
                gpus = ",".join(map(str, range(ranks)))
                assert [task[2:] for task in tasks] == [["1", "0", gpus]], (
                    f"{world}: one task that has all GPUs"
                )
                continue
            assert sorted(int(number) for _, number, *_ in tasks) == list(range(world))
            assert len(by_node) == nodes and all(
                sorted(locals_) == [str(n) for n in range(ranks)] for locals_ in by_node.values()
            ), tasks
            assert all(task[2] == str(world) and len(task[4].split(",")) == ranks for task in tasks), tasks


def test_ranks_on_several_nodes(new_cluster, scenario):
    """Context parallelism over two and three nodes, a task a rank"""
    with new_cluster(num_nodes=3) as cluster:
        by_slurm = Project.new(cluster, "wide-slurm", WIDE)
        with scenario(cluster):
            by_slurm.run()
        locally = Project.new(cluster, "wide-local", WIDE)
        locally.run(profile="workflow/profiles/local")
        assert not differences(by_slurm, locally)
        assert {status for status, _ in by_slurm.cells().values()} == {"ok"}
        hosts = [
            {node["hostname"] for node in record["environment"]["nodes"]} for record in by_slurm.records()
        ]
        assert sorted(map(len, hosts)) == [2, 2, 3, 3]
