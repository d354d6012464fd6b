"""The cluster for jobs: the hardware of its nodes, and the options that its Slurm requires."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from longca.core import Frozen, merge, parse, read_yaml, unknown
from longca.core.reading import in_project

SITE_FILE = Path("config/site.yaml")
PREFIX = "LONGCA_SITE_"
SBATCH = {
    "account": "SBATCH_ACCOUNT",
    "partition": "SBATCH_PARTITION",
    "constraint": "SBATCH_CONSTRAINT",
    "qos": "SBATCH_QOS",
}

MEASURING_RESOURCES = (
    "slurm_account",
    "slurm_partition",
    "qos",
    "constraint",
    "nodes",
    "mem_mb",
    "cpus_per_task",
    "mpi",
    # all that `Site.measuring_job` may name
    "tasks_per_node",
    "gres",
    "tasks",
    "slurm_extra",
)
MOST_RANKS = 8  # of a node without GPUs

Resources = dict[str, Any]


class Site(Frozen):
    """A Slurm site. Empty settings mean Slurm's defaults."""

    account: str = ""
    """account of jobs: sbatch --account; needs Slurm's accounting"""
    partition: str = ""
    """partition of jobs that measure"""
    cpu_partition: str = ""
    """partition of jobs without GPU; the same partition if empty"""
    constraint: str = ""
    """required features of measuring nodes: sbatch --constraint"""
    qos: str = ""
    """sbatch --qos"""
    gpu_model: str = ""
    """the GPU's type as Slurm knows it, h100 in gpu:h100:4; any if empty"""
    gpus_per_node: int = Field(default=8, ge=0, le=10_000)
    """0: nodes have no GPUs, and jobs request none"""
    cores_per_gpu: int = Field(default=8, ge=1, le=100_000)
    """CPU cores for each rank"""
    memory_per_gpu_gb: float = Field(default=32.0, gt=0, le=1e6)
    """main memory for each rank in the first attempt; a retry requests more"""
    containers: bool = True
    """off: jobs run in the Python of the workflow, for sites without Apptainer; their records name no
    container"""

    @field_validator("account", "partition", "cpu_partition", "constraint", "qos", "gpu_model", mode="before")
    @classmethod
    def _number_is_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def cpu_job(self) -> Resources:
        """Snakemake's resources of a job without a GPU."""
        return _given(
            slurm_account=self.account, slurm_partition=self.cpu_partition or self.partition, qos=self.qos
        )

    def measuring_job(self, world: int, attempt: int = 1) -> Resources:
        """Snakemake's resources of a job with a GPU for each of `world` ranks: one task on one node, which
        starts its ranks itself; on several nodes one task for each rank. Memory is per node, and grows with
        `attempt`."""
        nodes, ranks = layout(world, self.gpus_per_node or MOST_RANKS)
        gpus = f"gpu:{self.gpu_model}:{ranks}" if self.gpu_model else f"gpu:{ranks}"
        resources = _given(
            slurm_account=self.account,
            slurm_partition=self.partition,
            qos=self.qos,
            constraint=self.constraint,
            nodes=nodes,
            mem_mb=round(self.memory_per_gpu_gb * 1000 * ranks * attempt),
            cpus_per_task=self.cores_per_gpu * (ranks if nodes == 1 else 1),
            mpi="srun" if nodes > 1 else "",
            tasks_per_node=ranks if nodes > 1 else 0,
            gres=gpus if self.gpus_per_node else "",
        )
        # Snakemake's plugin refuses a tasks_per_node of 1, and treats tasks together with gres as tasks per
        # GPU
        if nodes > 1 and ranks == 1:
            del resources["tasks_per_node"]
            per_node = (
                f" --gpus-per-node={resources.pop('gres').removeprefix('gpu:')}" if self.gpus_per_node else ""
            )
            resources |= {"tasks": nodes, "slurm_extra": f"--ntasks-per-node=1{per_node}"}
        return resources

    def launch(self, world: int) -> str:
        """The `srun` command that starts another command on every rank of a multi-node job; "" for one node.

        It contains the geometry, since the job's SLURM_* variables do not reach the command.
        """
        nodes, ranks = layout(world, self.gpus_per_node or MOST_RANKS)
        return (
            f"srun --nodes={nodes} --ntasks-per-node={ranks} --cpus-per-task={self.cores_per_gpu}"
            if nodes > 1
            else ""
        )


def _given(**resources: Any) -> Resources:
    """The non-empty settings; the others are not passed to Slurm."""
    return {name: value for name, value in resources.items() if value}


def layout(world: int, per_node: int) -> tuple[int, int]:
    """(nodes, ranks per node): the fewest nodes for `world` ranks, with equal numbers of at most
    `per_node`."""
    nodes = next(nodes for nodes in range(-(-world // per_node), world + 1) if world % nodes == 0)
    return nodes, world // nodes


def load_site(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Site:
    """The site in force: sbatch's own variables, then config/site.yaml, then LONGCA_SITE_* variables. Raises
    UserError."""
    environ = os.environ if environ is None else environ
    path = in_project(SITE_FILE) if path is None else path
    own = {}
    for key, value in environ.items():
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX).lower()
            if name not in Site.model_fields:
                raise unknown(
                    "environment variable", key, [PREFIX + field.upper() for field in Site.model_fields]
                )
            own[name] = value
    layers = {
        "sbatch's variables": {name: environ[key] for name, key in SBATCH.items() if key in environ},
        str(path): read_yaml(path) if path.exists() else {},
        f"{PREFIX}* variables": own,
    }
    for where, layer in layers.items():
        parse(Site, layer, where)  # separately, so that an error names its layer
    return parse(Site, merge(*layers.values()), "Site")
