"""Tasks: the processes that torchrun or srun starts, all with the same command. This file finds out which one this process is.

Task 0 is the runner; the others start and watch processes of ranks for it. Number of tasks, own number and machine come from the
environment variables that the launcher sets, so the command has no options for them.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from longca.core.config import Launch
from longca.core.errors import UserError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""variables that srun sets; a batch script, which is no task of a step, has some of them but not SLURM_STEP_NUM_TASKS"""


@dataclass(frozen=True)
class Task:
    """One of the `num_tasks` processes of a job."""

    number: int
    num_tasks: int
    local_number: int
    """number among the tasks of its machine"""
    host: str
    job: str
    """the same for all tasks of a job, different for any other running job"""
    on_one_machine: bool = False
    """the launcher says that all tasks are on the same machine"""

    @property
    def title(self) -> str:
        return f"task {self.number} on {self.host}"


def find_task(launcher: Launch, environ: Mapping[str, str] | None = None) -> Task | None:
    """The task that the environment describes; None where this process is alone and starts all ranks itself.

    Args:
        launcher: "auto" recognizes each launcher. A job of one task counts as no job.

    Raises:
        UserError: a launcher was named that has not started this process.
    """
    environ = os.environ if environ is None else environ
    ways = {"torchrun": (TORCHRUN, _of_torchrun), "srun": (SRUN, _of_srun)}
    for name, (variables, read) in ways.items():
        if launcher not in ("auto", name):
            continue
        missing = [variable for variable in variables if not environ.get(variable)]
        if not missing:
            task = read(environ)
            return task if task.num_tasks > 1 else None
        if launcher == name:
            raise UserError(f"This process was not started by {name}", why=f"{missing[0]} is not set",
                            todo=f"Start it with {name}, or choose another `launcher`")
    return None


def _of_torchrun(environ: Mapping[str, str]) -> Task:
    return Task(int(environ["RANK"]), int(environ["WORLD_SIZE"]), int(environ["LOCAL_RANK"]), socket.gethostname(),
                f"torchrun-{environ['TORCHELASTIC_RUN_ID']}-{environ.get('MASTER_PORT', '')}",
                environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"])


def _of_srun(environ: Mapping[str, str]) -> Task:
    # the node name of Slurm may differ from the host name, as it does where several nodes run on one machine
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()
    return Task(int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"]), int(environ["SLURM_LOCALID"]), host,
                f"slurm-{environ['SLURM_JOB_ID']}-{environ['SLURM_STEP_ID']}", environ.get("SLURM_STEP_NUM_NODES") == "1")
