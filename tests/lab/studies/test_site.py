"""The cluster's settings, and what jobs ask of it."""

from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.studies.config import load_config
from longca.lab.studies.site import MEASURING_RESOURCES, Site, layout, load_site

SITE = Site(
    account="bench",
    partition="gpu",
    cpu_partition="cpu",
    constraint="ib",
    gpu_model="h100",
    gpus_per_node=4,
    memory_per_gpu_gb=10,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text("account: 1234\npartition: from_file\n")
    return path


def test_layers(file: Path, tmp_path: Path):
    environ = {
        "SBATCH_ACCOUNT": "from_sbatch",
        "SBATCH_QOS": "from_sbatch",
        "LONGCA_SITE_PARTITION": "from_env",
        "LONGCA_SITE_GPUS_PER_NODE": "4",
    }
    assert load_site(file, environ) == Site(
        account="1234", qos="from_sbatch", partition="from_env", gpus_per_node=4
    )
    assert load_site(tmp_path / "none.yaml", {}) == Site()


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("acount: x", {}, "unknown key 'acount', did you mean 'account'?"),
        ("gpus_per_node: many", {}, "'gpus_per_node' = 'many'"),
        ("gpus_per_node: -1", {}, "greater than or equal to 0"),
        ("just words", {}, "site.yaml"),
        (
            "",
            {"LONGCA_SITE_ACOUNT": "x"},
            "Unknown environment variable 'LONGCA_SITE_ACOUNT': did you mean 'LONGCA_SITE_ACCOUNT'",
        ),
    ],
)
def test_mistakes_are_one_line(text: str, environ: dict[str, str], message: str, tmp_path: Path):
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_site(path, environ)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_its_variables_are_no_settings_of_a_run(tmp_path: Path):
    assert load_config(path=tmp_path / "none.yaml", environ={"LONGCA_SITE_ACCOUNT": "bench"}) == load_config(
        path=tmp_path / "none.yaml", environ={}
    )


def test_the_example_is_the_defaults():
    example = Path("config/site.example.yaml")
    assert load_site(example, {}) == Site()
    assert {
        line.partition(":")[0] for line in example.read_text().splitlines() if line and line[0] != "#"
    } == set(Site.model_fields)


@pytest.mark.parametrize(
    ("world", "per_node", "expected"),
    [
        (1, 8, (1, 1)),
        (8, 8, (1, 8)),
        (12, 8, (2, 6)),
        (96, 8, (12, 8)),
        (3, 2, (3, 1)),
        (4, 1, (4, 1)),
        (9, 4, (3, 3)),
        (7, 4, (7, 1)),
    ],
)
def test_layout(world: int, per_node: int, expected: tuple[int, int]):
    assert layout(world, per_node) == expected


@pytest.mark.parametrize("world", range(1, 33))
def test_layouts_fit(world: int):
    nodes, ranks = layout(world, 4)
    assert nodes * ranks == world and ranks <= 4


def test_one_gpu():
    assert SITE.measuring_job(1) == {
        "slurm_account": "bench",
        "slurm_partition": "gpu",
        "constraint": "ib",
        "nodes": 1,
        "mem_mb": 10000,
        "cpus_per_task": 8,
        "gres": "gpu:h100:1",
    }


def test_one_node_is_one_task():
    job = SITE.measuring_job(4)
    assert (
        job["gres"] == "gpu:h100:4"
        and job["cpus_per_task"] == 32
        and "mpi" not in job
        and SITE.launch(4) == ""
    )


def test_several_nodes_are_a_task_a_rank():
    job = SITE.measuring_job(12, attempt=2)
    assert {
        name: job[name] for name in ("nodes", "tasks_per_node", "gres", "mpi", "cpus_per_task", "mem_mb")
    } == {
        "nodes": 3,
        "tasks_per_node": 4,
        "gres": "gpu:h100:4",
        "mpi": "srun",
        "cpus_per_task": 8,
        "mem_mb": 80000,
    }
    assert SITE.launch(12) == "srun --nodes=3 --ntasks-per-node=4 --cpus-per-task=8"


def test_one_rank_on_each_of_several_nodes():
    job = Site(gpus_per_node=1).measuring_job(3)
    assert job["tasks"] == job["nodes"] == 3 and job["slurm_extra"] == "--ntasks-per-node=1 --gpus-per-node=1"
    assert "gres" not in job and "tasks_per_node" not in job


def test_no_gpus():
    site = Site(gpus_per_node=0)
    assert "gres" not in site.measuring_job(1) and site.measuring_job(16)["tasks_per_node"] == 8
    assert Site(gpus_per_node=0).cpu_job() == {}


def test_jobs_without_gpu_go_to_their_partition():
    assert SITE.cpu_job() == {"slurm_account": "bench", "slurm_partition": "cpu"}
    assert Site(partition="gpu").cpu_job() == {"slurm_partition": "gpu"}


@pytest.mark.parametrize("world", [1, 4, 7, 12])
def test_all_resources_are_known_to_the_rules(world: int):
    assert set(SITE.measuring_job(world)) <= set(MEASURING_RESOURCES)
