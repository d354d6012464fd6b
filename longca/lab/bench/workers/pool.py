"""The pool: a few groups of workers, by kernel and by number of ranks. It replaces groups that are no longer
healthy."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from longca.core import Frozen, Registry, UserError
from longca.core.children.template import Template
from longca.core.plugin import is_of_package
from longca.lab.bench.judge.plausible import plausible
from longca.lab.bench.measure.failure import as_failed
from longca.lab.bench.measure.result import FAILURES, PlayerResult, Result, WrongRow
from longca.lab.bench.playoff.answer import NO_RIVAL
from longca.lab.bench.workers.channel import Message
from longca.lab.bench.workers.device_lock import Claimant
from longca.lab.bench.workers.group import Group
from longca.lab.bench.workers.judge import JudgeDied, JudgeProcess
from longca.lab.bench.workers.launch import AnswerTimeout, HostLost, Launcher, RankDied, RankWithoutDevice
from longca.lab.bench.workers.local import Local
from longca.lab.bench.workers.process import new_template
from longca.lab.studies import Cell, Measure
from longca.lab.studies.outcome import Unavailable
from longca.lab.studies.playoff.rules import PlayoffRules

MAX_CPU_RANKS = 8
MAX_CPU_GROUPS = 3

Key = tuple[str, str | None, int]


class Device(Frozen):
    """The device that cells are measured on."""

    type: str
    name: str
    num_devices: int
    """on this machine"""
    uuid: str = ""
    """of the GPU of rank 0; empty for a CPU"""
    num_tasks: int | None = None
    """tasks of the job, each with one device; None without a job"""

    def too_few(self, world: int) -> str | None:
        """The reason why `world` ranks cannot run here; None if they can."""
        if self.num_tasks is not None:
            return None if world <= self.num_tasks else f"{world} ranks: this job has {self.num_tasks}"
        if self.type == "cpu":
            return (
                None
                if world <= MAX_CPU_RANKS
                else f"{world} ranks on one CPU: at most {MAX_CPU_RANKS} are measured"
            )
        return (
            None
            if world <= self.num_devices
            else f"{world} ranks need {world} GPUs, this machine has {self.num_devices}"
        )


def worker_key(cell: Cell, device_type: str) -> Key:
    """The key of a cell's group of worker processes; cells of one key share a group.

    On a GPU a kernel has a group of its own, since its libraries stay loaded and keep memory and settings of
    the device. On a CPU the package's own kernels share one group: to start a process takes longer than to
    measure a short cell. An external plug-in has a group of its own, since it may change what a process
    shares: modules, settings of torch, its environment. All context-parallel methods of one number of ranks
    share a group: to start and connect many ranks takes long, and methods that are compared should run in the
    same processes.
    """
    is_own = is_of_package("kernel", cell.kernel)
    alone = cell.kind == "kernel" and (device_type != "cpu" or not is_own)
    return cell.kind, cell.kernel if alone else None, cell.world


class TooFewLeft(Exception):
    """Too few ranks are left for a cell, because machines have been lost."""


class Pool:
    """Measures cells in worker processes.

    On GPUs one group lives at a time, since each process keeps device memory that the next group would miss.
    On a CPU up to
    `MAX_CPU_GROUPS` live, with up to `MAX_CPU_RANKS` ranks in all. The least recently used group is closed
    first.
    """

    def __init__(
        self,
        device: str,
        logs: Path,
        stopped: Callable[[], bool] = lambda: False,
        launcher: Launcher | None = None,
        claimant: Claimant | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        *,
        seed: int | None = None,
        first_world: int = 1,
    ) -> None:
        """
        Args:
            device: "auto", "cpu" or "cuda".
            logs: folder for the output of workers.
            stopped: polled during every wait; once it returns True, KeyboardInterrupt is raised.
            launcher: starts the ranks; on this machine if not given.
            claimant: the run for which devices are locked, and what it does while it waits; a run of its own
                if not given.
            meanwhile: called once, while the first process starts.
            seed: of all that is drawn for checks; drawn anew if not given, so that no kernel can know it.
            first_world: the fewest ranks that a cell of the run has. So many processes find the device, and
                then measure such cells.

        Raises:
            UserError: no worker starts here, or the device is not here.
        """
        self.logs = logs
        self.stopped = stopped
        self.launcher = launcher or Local()
        self.claimant = claimant or Claimant()
        self._started = 0
        self._lost = ""
        self.seed = secrets.randbits(48) if seed is None else seed
        self._judge: JudgeProcess | None = None
        self._groups: dict[
            Key | None, Group
        ] = {}  # most recently used last; key None: the group that is not used yet
        self._first_world = (
            first_world if self.launcher.num_ranks is None and first_world <= MAX_CPU_RANKS else 1
        )
        with suppress(OSError):  # then the first process cannot be started either, and says why
            self._begin_template(device)
        try:
            has_template = self._template() is not None
            if has_template:  # it imports meanwhile
                meanwhile()
            group = self._new_group(self._first_world, device)
            if not has_template:
                meanwhile()
        except BaseException:
            self.close(gently=False)
            raise
        facts: Message | None = None
        if self._first_world > 1:
            # one rank may get ready where several do not; then the cells say why
            with suppress(AnswerTimeout, RankDied, RankWithoutDevice):
                facts = self._ready(group)
            if facts is None:
                self._first_world, group = 1, self._new_group(1, device)
        try:
            facts = facts or self._ready(group)
        except RankWithoutDevice as refusal:
            raise UserError(
                f"There is no device '{device}' here", why=str(refusal), todo="Use `--device cpu` or `auto`"
            ) from None
        except RankDied as lost:
            last = (lost.log.splitlines() or [""])[-1]
            raise UserError(
                "The measuring process does not start",
                why=last or lost.cause,
                todo=f"Its output is in {group.ranks[0].log}",
            ) from None
        except AnswerTimeout:
            raise UserError(
                "The measuring process does not start",
                why="it says nothing",
                todo=f"Its output is in {group.ranks[0].log}",
            ) from None
        self.device = Device(
            type=facts["type"],
            name=facts["name"],
            num_devices=facts["num_devices"],
            uuid=facts.get("uuid") or "",
            num_tasks=self.launcher.num_ranks,
        )
        self._groups[None] = group

    def measure(self, cell: Cell, measure: Measure) -> Result:
        """The result of a cell. An error of the cell is a result, too.

        Raises:
            KeyboardInterrupt: `stopped` returned True.
            TooFewLeft: machines were lost that the cell needs.
        """
        reason = self.device.too_few(cell.world)
        if reason:
            return Result(outcome=Unavailable(reason=reason))
        key = worker_key(cell, self.device.type)
        try:
            group = self._group(key)
        except (AnswerTimeout, RankDied, RankWithoutDevice, JudgeDied) as error:
            if self.launcher.lost != self._lost:  # a lost machine, not the cell, is the cause
                return self.measure(cell, measure)
            return Result(
                outcome=as_failed(
                    "WorkerDidNotStart",
                    str(error) or "its processes did not get ready in time",
                    getattr(error, "log", ""),
                )
            )
        is_control = self._is_control(cell)
        result = group.measure(cell, measure, self.seed, judged=not is_control)
        result = result if is_control else plausible(cell, result)
        if not group.is_alive or (result.outcome.status in FAILURES and not group.is_healthy()):
            self._groups.pop(key).close(gently=False)
        return result

    def play(self, cells: Sequence[Cell], measure: Measure, rules: PlayoffRules) -> list[PlayerResult]:
        """The results of a play-off, in the order of its cells. A player that takes the process with it ends
        alone: the rest start anew.

        On a GPU all play-offs share a process of their own, on a CPU it is that of all kernels.

        Args:
            cells: of one case, those that are thought to be the fastest first.

        Raises:
            KeyboardInterrupt: `stopped` returned True.
            TooFewLeft: machines were lost, this one's task among them.
        """
        key: Key = ("kernel" if self.device.type == "cpu" else "playoff"), None, 1
        left = list(range(len(cells)))
        results = dict[int, PlayerResult]()
        while len(left) > 1:
            try:
                group = self._group(key)
            except (AnswerTimeout, RankDied, RankWithoutDevice, JudgeDied) as error:
                failed = as_failed(
                    "WorkerDidNotStart",
                    str(error) or "its process did not get ready in time",
                    getattr(error, "log", ""),
                )
                results |= {number: PlayerResult(result=Result(outcome=failed)) for number in left}
                break
            played = group.play([cells[number] for number in left], measure, rules, self.seed)
            results |= {left[number]: player for number, player in played.results.items()}
            any_failed = any(player.result.outcome.status in FAILURES for player in played.results.values())
            if not group.is_alive or (any_failed and not group.is_healthy()):
                self._groups.pop(key).close(gently=False)
            left = [number for number in left if number not in results]
            assert played.is_lost or not left, "each player has a result"
        alone = PlayerResult(result=Result(outcome=NO_RIVAL))
        return [results.get(number, alone) for number in range(len(cells))]

    def wrong_rows(self, cell: Cell, measure: Measure) -> list[WrongRow]:
        """The first wrong row of each tensor of a kernel cell that was incorrect; none where they are not
        found in the cell's time."""
        group = self._groups.get(worker_key(cell, self.device.type))
        return [] if group is None else group.wrong_rows(cell, measure, self.seed)

    def _is_control(self, cell: Cell) -> bool:
        """True for a call of known work, which judges itself: its kernel says so, which is believed of the
        package's kernels alone."""
        if not is_of_package("kernel", cell.kernel):
            return False
        with suppress(Exception):  # one that cannot be loaded: the measuring process says why
            return Registry("kernel").load(cell.kernel).family == "control"
        return False

    def _check(self, world: int) -> None:
        """Raise TooFewLeft if too few ranks are left. After a loss all groups are closed, since some had
        ranks on that machine."""
        left = self.launcher.num_ranks
        if self.launcher.lost != self._lost:
            self._lost = self.launcher.lost
            self.close(gently=False)
        if left is not None and left < world:
            raise TooFewLeft(f"{self._lost} is gone")

    def restart(self) -> None:
        """On a GPU, have the next cell measured in a new process. On a CPU cells share one as long as it is
        healthy."""
        if self.device.type == "cuda":
            self.close()

    def close(self, *, gently: bool = True) -> None:
        self._close_groups(gently=gently)
        if isinstance(self.launcher, Local) and self.launcher.template is not None:
            self.launcher.template.close()
            self.launcher.template = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(gently=kind is None)

    def _group(self, key: Key) -> Group:
        world = key[2]
        self._check(world)
        if self._judge is None or not self._judge.is_alive:
            self.close(gently=False)
        if key not in self._groups and world == self._first_world and None in self._groups:
            self._groups[key] = self._groups.pop(None)
        if key in self._groups:
            self._groups[key] = self._groups.pop(key)
            return self._groups[key]
        while self._groups and not self._has_room(world):
            self._groups.pop(next(iter(self._groups))).close()
        group = None
        while group is None:
            with suppress(HostLost):  # try again with the tasks that are left
                self._check(world)
                group = self._new_group(world, self.device.type)
        group.ready()
        self._groups[key] = group
        return group

    def _has_room(self, world: int) -> bool:
        """True if a group of `world` ranks may live beside the present groups."""
        if self.device.type == "cuda":
            return not self._groups
        num_ranks = sum(self._first_world if key is None else key[2] for key in self._groups)
        return len(self._groups) < MAX_CPU_GROUPS and num_ranks + world <= MAX_CPU_RANKS

    def _new_group(self, world: int, device: str) -> Group:
        if self._judge is None or not self._judge.is_alive:
            self._close_groups(gently=False)  # they know the judge that they met
        self._started += 1
        try:
            self._begin_template(device)
            self._judge = self._judge or JudgeProcess(self.logs / "judge.log", self.stopped, self._template())
            return Group(
                self.launcher,
                world,
                device,
                self.logs / f"worker{self._started}",
                self.stopped,
                self.claimant,
                self._judge,
                self._started,
            )
        except OSError as error:  # no room for its log, no process left …
            raise UserError(
                "Cannot start a measuring process", why=str(error), todo="Finished cells are safe: run again"
            ) from error

    def _begin_template(self, device: str) -> None:
        if device != "cuda" and isinstance(self.launcher, Local):
            self.launcher.template = self.launcher.template or new_template(
                self.logs / "template.log", self.stopped
            )

    def _template(self) -> Template | None:
        return self.launcher.template if isinstance(self.launcher, Local) else None

    def _ready(self, group: Group) -> Message:
        try:
            return group.ready()
        except BaseException:
            self.close(gently=False)
            raise

    def _close_groups(self, *, gently: bool) -> None:
        for group in self._groups.values():
            group.close(gently=gently)
        self._groups.clear()
        if self._judge is not None:
            self._judge.close()
            self._judge = None
