"""Jobs that torchrun and srun start: ranks of many tasks are measured as those of one machine, and end as
bounded, whatever dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.bench.workers import rendezvous as rendezvous_module
from longca.lab.bench.workers.job import Job, JobError
from longca.lab.bench.workers.launch import Task, find_task
from longca.lab.bench.workers.rendezvous import FOLDER, Rendezvous, join_rendezvous
from longca.lab.store.cells import CellStore
from longca.lab.studies.record import Record
from tests.helpers.support import ROOT
from tests.lab.bench.test_runner import workers_of
from tests.lab.bench.test_worker import wait_until_gone

pytestmark = pytest.mark.long

TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "longca",
]


def srun(num_nodes: int, per_node: int = 1) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.helpers.bench.fake_srun",
        str(num_nodes),
        str(per_node),
        sys.executable,
        "-m",
        "longca",
    ]


STUDY = """
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 0.2, timeout_s: 60}
grids:
"""
GRID = (
    "  - {{kind: cp, strategy: ulysses, kernel: [{kernel}], world: {world}, mask: full, seqlen: {seqlen}, "
    'heads: "3:1", head_dim: 8,'
    " dtype: fp32, direction: fwd}}\n"
)


class Started:
    """A job, what it prints, and its tasks."""

    def __init__(
        self, command: list[str], folder: Path, *cells: dict[str, object], device: str = "cpu"
    ) -> None:
        study = folder / "study.yaml"
        study.write_text(
            STUDY
            + "".join(GRID.format(**{"kernel": "naive", "world": 2, "seqlen": 16, **cell}) for cell in cells)
        )
        self.store = CellStore(folder / "results" / "study")
        options = [
            "run",
            str(study),
            "--results",
            str(folder / "results"),
            "--device",
            device,
            "--progress",
            "plain",
        ]
        self.output = folder / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, *options], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def tasks(self) -> list[int]:
        return workers_of(self.process.pid)

    def wait_for(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.text
            time.sleep(0.02)

    def measures(self, kernel: str) -> bool:
        """True while a cell of that kernel is being measured."""
        heads = [
            path.read_text().rpartition("== ")[2] for path in self.store.folder.glob("logs/*/*-rank*.log")
        ]
        return any(kernel in head for head in heads)

    def end(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def records(self) -> dict[str, Record]:
        stored, problems = self.store.read_all()
        assert not problems
        return {f"{record.cell.kernel} {record.cell.world} {record.cell.seqlen}": record for record in stored}

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start(plugins, tmp_path) -> Iterator[Callable[..., Started]]:
    jobs: list[Started] = []

    def begin(command: list[str], *cells: dict[str, object], **options: str) -> Started:
        jobs.append(Started(command, tmp_path, *cells, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


@pytest.mark.parametrize(
    ("command", "worlds"),
    [pytest.param(TORCHRUN, (1, 2), marks=pytest.mark.slow), (srun(2), (2,))],
    ids=["torchrun", "srun"],
)
def test_tasks_start_ranks(start, command, worlds):
    job = start(command, *({"world": world} for world in (*worlds, 3)))
    assert job.end() == 0, job.text
    records = job.records()
    assert {name: record.outcome.status for name, record in records.items()} == {
        **{f"naive {world} 16": "ok" for world in worlds},
        "naive 3 16": "unavailable",
    }
    assert "3 ranks: this job has 2" in records["naive 3 16"].outcome.reason
    assert [len(records[f"naive {world} 16"].samples.time_ms) for world in worlds] == list(worlds)
    assert job.text.count(" measured before, ") == job.text.count("Next: longca report ") == 1, (
        "one task speaks for all"
    )
    assert not (job.store.folder / FOLDER).exists()


@pytest.mark.slow  # the first start is above; tests/slurm has the real one
@pytest.mark.parametrize(("per_node", "world", "node"), [(1, 2, "gpu2"), (2, 3, "gpu1")])
def test_srun_starts_ranks_and_starts_them_again(start, per_node, world, node):
    job = start(srun(2, per_node), {"world": world, "kernel": "naive, midway_killed_while_timed"})
    assert job.end() == 1, job.text
    records = job.records()
    assert records[f"naive {world} 16"].outcome.status == "ok"
    outcome = records[f"midway_killed_while_timed {world} 16"].outcome
    assert outcome.type == "WorkerDied" and f"rank 1 on {node}: it was killed by SIGKILL" in outcome.message


@pytest.mark.slow  # tests/slurm has it on a cluster, and test_pool the rule by which others go on
def test_a_task_that_is_gone_fails_its_cell_and_others_go_on(start):
    job = start(
        srun(3),
        {"world": 3, "kernel": "midway_sleeps"},
        {"world": 3, "kernel": "midway_sleeps", "seqlen": 24},
        {},
    )
    job.wait_for(lambda: job.measures("midway_sleeps"))
    tasks = job.tasks
    workers = [worker for task in tasks for worker in workers_of(task)]
    os.kill(tasks[2], signal.SIGKILL)
    assert job.end() != 0
    records = job.records()
    assert len(records) == 2 and records["naive 2 16"].outcome.status == "ok"
    failed = next(record for record in records.values() if record.cell.kernel == "midway_sleeps")
    assert (
        failed.outcome.type == "WorkerDied"
        and "rank 2 on gpu3: task 2 on gpu3 is gone" in failed.outcome.message
    )
    assert (
        job.text.splitlines()[-1]
        == "longca: 1 cell not measured: task 2 on gpu3 is gone. All others are stored: run again to go on"
    )
    for worker in workers:
        wait_until_gone(worker)


@pytest.mark.slow  # it starts four processes, as the next one does; tests/slurm has both on a cluster
def test_a_signal_to_all_tasks_stops_the_run_and_fails_no_cell(start):
    job = start(srun(2), {"kernel": "midway_sleeps"})
    job.wait_for(lambda: job.measures("midway_sleeps"))
    tasks = job.tasks
    workers = [worker for task in tasks for worker in workers_of(task)]
    for process in [*workers, *reversed(tasks)]:
        os.kill(process, signal.SIGTERM)
    assert job.end() == 130, job.text
    assert not job.records() and "1 cells to do: run again to go on" in job.text
    for worker in workers:
        wait_until_gone(worker)


@pytest.mark.slow
def test_tasks_end_with_a_runner_that_is_killed(start):
    job = start(srun(2), {"kernel": "midway_sleeps"})
    job.wait_for(lambda: job.measures("midway_sleeps"))
    tasks = job.tasks
    workers = [worker for task in tasks for worker in workers_of(task)]
    os.kill(tasks[0], signal.SIGKILL)
    job.end()
    assert "longca: task 1 on gpu2: the runner is gone" in job.text
    for process in (*tasks, *workers):
        wait_until_gone(process)


def test_tasks_leave_when_the_runner_refuses(start):
    job = start(srun(2), {}, device="cuda")
    begun = time.monotonic()
    assert job.end() == UserError.exit_code
    assert time.monotonic() - begun < 30 and "longca: There is no device 'cuda' here" in job.text


def test_only_this_user_can_read_the_token(tmp_path):
    rendezvous = Rendezvous(tmp_path, "job")
    try:
        assert rendezvous.path.stat().st_mode & 0o777 == rendezvous.new_file().stat().st_mode & 0o777 == 0o600
    finally:
        rendezvous.close()
    assert not (tmp_path / FOLDER).exists()


def test_what_a_killed_job_left_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous_module, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:  # somebody else has the port now
        path = tmp_path / FOLDER / "job.json"
        path.parent.mkdir()
        path.write_text(
            json.dumps({"addresses": ["127.0.0.1"], "port": other.getsockname()[1], "token": "00"})
        )
        with pytest.raises(TimeoutError, match=r"nobody answers at 127\.0\.0\.1"):
            join_rendezvous(tmp_path, "job", {}, 0.5)
    with pytest.raises(TimeoutError, match=r"other.json is not there"):
        join_rendezvous(tmp_path, "other", {}, 0.1)


ELASTIC = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "TORCHELASTIC_RUN_ID": "abc",
    "MASTER_PORT": "29500",
}
STEP = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURMD_NODENAME": "gpu2",
}


@pytest.mark.parametrize(
    ("launcher", "environ", "expected"),
    [
        ("auto", {}, None),
        ("auto", STEP, Task(5, 8, 1, "gpu2", "slurm-42-0")),
        ("srun", STEP | ELASTIC, Task(5, 8, 1, "gpu2", "slurm-42-0")),
        ("auto", STEP | ELASTIC, Task(5, 8, 1, socket.gethostname(), "torchrun-abc-29500-e3b0c44298fc")),
        ("local", STEP | ELASTIC, None),
        (
            "auto",
            STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
            None,
        ),  # one of Snakemake's own steps
        (
            "auto",
            STEP | {"SLURM_STEP_NUM_NODES": "1"},
            Task(5, 8, 1, "gpu2", "slurm-42-0", on_one_machine=True),
        ),
        (
            "auto",
            {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "42"},
            None,
        ),  # a batch script
    ],
)
def test_the_environment_says_which_task_this_is(launcher, environ, expected):
    assert find_task(launcher, environ) == expected


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"LOCAL_WORLD_SIZE": "8"}, "0000-another-machine"),
        ({"MASTER_ADDR": "node1"}, {"MASTER_ADDR": "node7"}),
    ],
    ids=["machines", "masters"],
)
def test_jobs_of_the_default_id_and_port_on_other_machines_are_others(ours, theirs, monkeypatch):
    """Both have torchrun's default id, and one folder of results: `none` and 29500."""
    environ = ELASTIC | {"TORCHELASTIC_RUN_ID": "none"} | ours
    task = find_task("torchrun", environ)
    assert task.job == find_task("torchrun", environ | {"RANK": "0"}).job and task.job.startswith(
        "torchrun-none-29500-"
    )
    if isinstance(theirs, str):
        monkeypatch.setattr("longca.lab.bench.workers.launch.boot_id", lambda: theirs)
    else:
        environ |= theirs
    other = find_task("torchrun", environ)
    assert other.job != task.job and other.on_one_machine == task.on_one_machine == (
        "LOCAL_WORLD_SIZE" in ours
    )


@pytest.mark.parametrize(
    ("number", "why"), [(1, "has that number"), (0, "has that number"), (7, "its number is another's")]
)
def test_a_task_of_another_job_ends_both_in_one_line(tmp_path, number, why):
    """Two tasks with one number would be two jobs in one: each would measure with ranks of the other."""
    errors = []

    def gather() -> None:
        try:
            Job(Task(0, 3, 0, "here", "job", on_one_machine=True), tmp_path)
        except JobError as error:
            errors.append(str(error))

    runner = threading.Thread(target=gather)
    runner.start()
    channels = [
        join_rendezvous(tmp_path, "job", {"task": task, "host": "there", "local": 0}, 20)
        for task in (1, number)
    ]
    runner.join(20)
    assert len(errors) == 1 and why in errors[0] and "--rdzv-id" in errors[0] and "\n" not in errors[0]
    assert channels[1].wait(10)["do"] == "leave"
    for channel in channels:
        channel.close()


def test_a_launcher_that_did_not_start_this_process_is_an_error():
    with pytest.raises(UserError, match="not started by srun: SLURM_PROCID is not set"):
        find_task("srun", ELASTIC)
