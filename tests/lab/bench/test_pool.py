"""Every way in which a cell can end is data, and the next cell is measured as if nothing had been."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from longca.core.errors import UserError
from longca.lab.bench.measure.result import Result
from longca.lab.bench.workers import group as group_module
from longca.lab.bench.workers import pool as pool_module
from longca.lab.bench.workers.launch import HostLost, Launcher
from longca.lab.bench.workers.pool import MAX_CPU_GROUPS, MAX_CPU_RANKS, Device, Pool, TooFewLeft
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Unsupported
from tests.helpers.bench.misbehaving import HOARD_BYTES, MEASURE, cp_cell, kernel_cell
from tests.lab.bench.test_worker import is_running, wait_until_gone

pytestmark = pytest.mark.long


def pids(pool: Pool) -> list[int]:
    return [rank.process.pid for group in pool._groups.values() for rank in group.ranks]


def test_a_good_cell_is_measured_in_the_process_that_was_there_already(pool):
    assert pool.measure(kernel_cell("quick"), MEASURE).outcome.status == "ok"
    before = sorted(pids(pool))
    result = pool.measure(kernel_cell("quick", seqlen=48), MEASURE)
    assert result.outcome.status == "ok" and len(result.samples.time_ms[0]) == 3
    assert result.software.env["OMP_NUM_THREADS"] == "1"
    assert sorted(pids(pool)) == before and os.getpid() not in before
    assert pool.device.type == "cpu" and pool.device.name


def test_an_error_keeps_its_traceback_and_what_was_printed(pool):
    outcome = pool.measure(kernel_cell("raiser"), MEASURE).outcome
    assert (outcome.status, outcome.type, outcome.message) == ("error", "RuntimeError", "boom")
    assert "Traceback" in outcome.log and outcome.log.endswith("printed:\nsaid before")


def test_out_of_memory_has_its_own_outcome_and_the_process_lives_on(pool):
    assert pool.measure(kernel_cell("hungry"), MEASURE).outcome.status == "oom"
    before = pids(pool)
    assert pool.measure(kernel_cell("hungry", seqlen=48), MEASURE).outcome.status == "oom"
    assert pids(pool) == before


@pytest.mark.parametrize(
    ("kernel", "cause", "log"),
    [
        pytest.param("killed", "it was killed by SIGKILL", "", marks=pytest.mark.slow),
        pytest.param("quitter", "it exited with code 3", "last words", marks=pytest.mark.slow),
        ("crasher", "it was killed by SIGSEGV", "Segmentation fault"),
    ],
)
def test_a_process_that_dies_is_an_error(pool, kernel, cause, log):
    result = pool.measure(kernel_cell(kernel), MEASURE)
    assert result.outcome.status == "error" and result.outcome.type == "WorkerDied"
    assert cause in result.outcome.message and log in result.outcome.log
    assert result.notes == (("rank 0 was at crasher.py:5 in prepare",) if "SIGSEGV" in cause else ()), (
        "the line of the plug-in, not ctypes"
    )
    assert len(pids(pool)) <= MAX_CPU_GROUPS and all(map(is_running, pids(pool)))


def test_a_hang_ends_with_the_cells_time(pool):
    measure = MEASURE.model_copy(update={"timeout_s": 0.5})
    result = pool.measure(kernel_cell("sleeper"), measure)
    assert result.outcome.status == "timeout" and result.outcome.seconds == 0.5 and result.samples is None
    assert result.notes == ("rank 0 was at sleeper.py:5 in prepare",)
    assert ("kernel", "sleeper", 1) not in pool._groups


def test_a_grandchild_that_holds_the_pipes_open_neither_hangs_the_run_nor_stays(pool):
    outcome = pool.measure(kernel_cell("orphaner"), MEASURE).outcome
    assert outcome.type == "WorkerDied" and "exited with code 1" in outcome.message
    wait_until_gone(int(outcome.log.split()[-1]))


def test_whatever_is_written_to_the_channel_ends_the_cell_alone(pool):
    outcome = pool.measure(kernel_cell("scribbler"), MEASURE).outcome
    assert outcome.type == "BrokenChannel" and "longca's alone: 'no message'" in outcome.message
    assert pool.measure(kernel_cell("small_scribbler"), MEASURE).outcome.status == "ok"


def test_a_process_that_has_left_the_group_ends_with_the_worker_and_holds_no_lock(pool):
    assert pool.measure(kernel_cell("escapee"), MEASURE).outcome.status == "ok"
    (group,) = (group for key, group in pool._groups.items() if key == ("kernel", "escapee", 1))
    escapee = int(group.ranks[0].tail().split()[-1])
    assert is_running(escapee) and os.getsid(escapee) == escapee
    assert not any(".lock" in str(file.resolve()) for file in Path(f"/proc/{escapee}/fd").iterdir())
    group.ranks[0].kill()
    wait_until_gone(escapee)
    assert pool.measure(kernel_cell("escapee", seqlen=20), MEASURE).outcome.type == "WorkerDied"


def test_a_sick_process_is_replaced(pool):
    assert pool.measure(kernel_cell("sticky"), MEASURE).outcome.message == "sticky"
    assert ("kernel", "sticky", 1) not in pool._groups
    assert pool.measure(kernel_cell("quick", seqlen=24), MEASURE).outcome.status == "ok"


def test_a_kernel_that_is_not_there_is_an_error_of_its_cell(pool):
    outcome = pool.measure(kernel_cell("no_such_kernel"), MEASURE).outcome
    assert outcome.status == "error" and "no_such_kernel" in outcome.message


class FakeJudge:
    is_alive = True

    def __init__(self, *_: object) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(("device", "limit"), [("cpu", MAX_CPU_GROUPS), ("cuda", 1)])
def test_few_groups_live_and_the_oldest_goes(tmp_path, monkeypatch, device, limit):
    alive = []
    most = 0

    class FakeGroup:
        is_alive = True

        def __init__(self, launcher: object, world: int, *_: object) -> None:
            nonlocal most
            alive.append(self)
            most = max(most, len(alive))

        def ready(self) -> dict:
            return {"type": device, "name": "fake", "num_devices": 4}

        def measure(self, cell: Cell, *_: object, judged: bool) -> Result:
            return Result(outcome=Unsupported(reason=cell.kernel))

        def close(self, *, gently: bool = True) -> None:
            alive.remove(self)

    monkeypatch.setattr(pool_module, "Group", FakeGroup)
    monkeypatch.setattr(pool_module, "JudgeProcess", FakeJudge)
    with Pool(device, tmp_path) as pool:
        for kernel in ("a", "b", "c", "a", "d"):
            assert pool.measure(kernel_cell(kernel), MEASURE).outcome.reason == kernel
        assert [key[1:] for key in pool._groups] == [(kernel, 1) for kernel in ("c", "a", "d")][-limit:]
        assert len(alive) == limit
        for world in (2, 3, 2):
            pool.measure(kernel_cell("a", kind="cp", strategy="s", world=world), MEASURE)
        pool.measure(kernel_cell("b", kind="cp", strategy="t", world=2), MEASURE)
        assert [key[1:] for key in pool._groups] == [("d", 1), (None, 3), (None, 2)][-limit:] and len(
            alive
        ) == most == limit
        if device == "cpu":
            pool.measure(kernel_cell("a", kind="cp", strategy="s", world=4), MEASURE)
            assert [key[2] for key in pool._groups] == [2, 4]
            pool.measure(kernel_cell("a", kind="cp", strategy="s", world=6), MEASURE)
            assert [key[2] for key in pool._groups] == [6] and most == limit
    assert not alive


class Shrinking:
    """A launcher of three ranks whose machines go, one each time that a group is started."""

    num_ranks = 3
    lost = ""

    def go(self) -> None:
        self.num_ranks, self.lost = self.num_ranks - 1, f"{self.lost} another"
        raise HostLost


def test_what_can_do_without_a_lost_machine_goes_on(tmp_path, monkeypatch):
    launcher = Shrinking()

    class FakeGroup:
        is_alive = True
        world = 0

        def __init__(self, launcher: Shrinking, world: int, *_: object) -> None:
            self.world = world
            if launcher.num_ranks == 3 and world == 2:
                launcher.go()

        def ready(self) -> dict:
            if self.world == 3:
                with suppress(HostLost):
                    launcher.go()
                raise group_module.AnswerTimeout
            return {"type": "cpu", "name": "fake", "num_devices": 1}

        def measure(self, *_: object, judged: bool) -> Result:
            return Result(outcome=Unsupported(reason=f"measured by {self.world}"))

        def close(self, *, gently: bool = True) -> None:
            """Nothing to end."""

    monkeypatch.setattr(pool_module, "Group", FakeGroup)
    monkeypatch.setattr(pool_module, "JudgeProcess", FakeJudge)
    with Pool("cpu", tmp_path, launcher=launcher) as pool:
        assert (
            pool.measure(cp_cell("s", 2), MEASURE).outcome.reason == "measured by 2"
            and launcher.num_ranks == 2
        )
        with pytest.raises(TooFewLeft, match="another is gone"):
            pool.measure(cp_cell("s", 3), MEASURE)
        launcher.num_ranks = 3
        with pytest.raises(TooFewLeft, match="another another is gone"):
            pool.measure(cp_cell("s", 3), MEASURE)
        assert pool.measure(cp_cell("s", 2), MEASURE).outcome.reason == "measured by 2"
        assert pool.measure(cp_cell("s", 4), MEASURE).outcome.status == "unavailable"


def test_memory_is_free_again_between_cells(pool):
    usual, hoard, after = (
        pool.measure(cp_cell(strategy, seqlen=seqlen), MEASURE)
        for strategy, seqlen in (("ulysses", 32), ("rank_hoards", 32), ("ulysses", 48))
    )
    assert hoard.memory.absolute_peak_bytes[1] - usual.memory.absolute_peak_bytes[1] > HOARD_BYTES / 2
    assert after.outcome.status == "ok"
    for before_bytes, after_bytes in zip(
        usual.memory.absolute_peak_bytes, after.memory.absolute_peak_bytes, strict=True
    ):
        assert after_bytes - before_bytes < HOARD_BYTES / 2


def test_too_many_ranks_are_unavailable_and_start_nothing(pool):
    before = pids(pool)
    result = pool.measure(
        kernel_cell("naive", kind="cp", strategy="ulysses", world=MAX_CPU_RANKS + 1), MEASURE
    )
    assert result.outcome.status == "unavailable" and "9 ranks" in result.outcome.reason
    assert pids(pool) == before
    gpus = Device(type="cuda", name="some GPU", num_devices=2)
    assert gpus.too_few(2) is None and gpus.too_few(4) == "4 ranks need 4 GPUs, this machine has 2"


def test_workers_that_do_not_start(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(group_module, "START_SECONDS", 1e-9)
    monkeypatch.setattr(pool, "_groups", {})  # those of tests before would do
    outcome = pool.measure(cp_cell("ulysses", 3), MEASURE).outcome
    assert outcome.type == "WorkerDidNotStart" and "not get ready in time" in outcome.message
    with pytest.raises(UserError, match="does not start: it says nothing"):
        Pool("cpu", tmp_path)


@pytest.mark.slow  # test_job.py has it, of the tasks of a job
def test_the_ranks_that_find_the_device_measure_the_first_cells(plugins, tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "Group", counted := Counted())
    with Pool("cpu", tmp_path, first_world=2) as pool:
        before = pids(pool)
        assert pool.measure(cp_cell("ulysses"), MEASURE).outcome.status == "ok"
        assert pids(pool) == before and counted.worlds == [2]


def test_where_several_ranks_do_not_start_one_finds_the_device(plugins, tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "Group", counted := Counted(refused=2))
    with Pool("cpu", tmp_path, first_world=2) as pool:
        assert pool.device.type == "cpu" and counted.worlds == [2, 1]
        assert pool.measure(cp_cell("ulysses"), MEASURE).outcome.type == "WorkerDidNotStart"
        assert pool.measure(kernel_cell("quick"), MEASURE).outcome.status == "ok" and counted.worlds == [
            2,
            1,
            2,
        ]


class Counted:
    """Makes groups, and keeps their numbers of ranks."""

    def __init__(self, refused: int = 0) -> None:
        self.worlds: list[int] = []
        self._refused = refused  # a number of ranks of which one has no device

    def __call__(self, launcher: Launcher, world: int, *others: Any) -> group_module.Group:
        self.worlds.append(world)
        group = group_module.Group(launcher, 1 if world == self._refused else world, *others)
        if world == self._refused:
            group.ready = self._refuse(group)
        return group

    @staticmethod
    def _refuse(group: group_module.Group) -> Callable[[], None]:
        def ready() -> None:
            group.close(gently=False)
            raise group_module.RankWithoutDevice("torch sees 1 GPUs")

        return ready


def test_a_missing_gpu_is_a_users_error(plugins, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"no device 'cuda' here: torch .* sees 0 GPUs"):
        Pool("cuda", tmp_path)


def test_a_broken_installation_is_a_users_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match="does not start: ImportError: libcudart") as caught:
        Pool("cpu", tmp_path / "logs")
    assert "\n" not in str(caught.value)


def test_told_to_stop_it_stops_at_once(plugins, tmp_path):
    stop = []
    pool = Pool("cpu", tmp_path, lambda: bool(stop))
    running = pids(pool)
    stop.append("now")
    with pytest.raises(KeyboardInterrupt), pool:
        pool.measure(kernel_cell("sleeper"), MEASURE)
    assert not any(map(is_running, running)) and not pids(pool)
