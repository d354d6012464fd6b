"""A group: the worker processes of all ranks of one method, asked and answered together."""

import selectors
import time
from collections.abc import Callable
from pathlib import Path

from longca.bench.measure.result import FAILURES, Result
from longca.bench.workers.channel import Message
from longca.bench.workers.launch import Launcher, Rank, end
from longca.core.cell import Cell
from longca.core.record import Failed, TimedOut
from longca.core.study import Measure

START_SECONDS = 300.0  # importing torch from a cold network disk takes minutes
PING_SECONDS = 60.0
GRACE_SECONDS = 10.0  # for the other ranks, once one has failed
GOODBYE_SECONDS = 5.0
TICK_SECONDS = 0.25
PEER_LOST = "PeerLost"  # of `longca.cp.comm.process_group`, which needs torch


class StartTimeout(Exception):
    """Not all ranks answered in time."""


class RankDied(Exception):
    """A rank's process has ended."""

    def __init__(self, rank: Rank) -> None:
        self.cause = rank.cause_of_death()
        self.log = rank.tail()
        where = f" on {rank.host}" if rank.host else ""
        super().__init__(self.cause if rank.place.world == 1 else f"rank {rank.place.rank}{where}: {self.cause}")


class Refused(Exception):
    """A rank has no device."""


class Group:
    """`world` ranks, wherever the launcher has them.

    Every wait ends: with an answer, with a rank's death or its time. After a death or a timeout all ranks are killed.
    """

    def __init__(self, launcher: Launcher, world: int, device: str, log: Path, stopped: Callable[[], bool]) -> None:
        """Starts the processes; `ready` waits for them.

        Args:
            log: path of the logs, without suffix.
            stopped: asked again and again while waiting; once it says yes, KeyboardInterrupt is raised.

        Raises:
            OSError: a process cannot be started.
            HostLost: a machine that was to run some is gone.
        """
        self.stopped = stopped
        self.is_alive = True
        self.ranks = launcher.start(world, device, log)
        self._selector = selectors.DefaultSelector()
        for rank in self.ranks:
            self._selector.register(rank, selectors.EVENT_READ)

    def ready(self) -> Message:
        """What rank 0 says of its device. Raises Late, Lost or Refused, and the group is gone then."""
        try:
            answers = self._collect(START_SECONDS)
            for answer in answers.values():
                if "refused" in answer:
                    raise Refused(answer["refused"])
            self._check_devices({rank: answer["ready"] for rank, answer in answers.items()})
        except BaseException:
            self.close(gently=False)
            raise
        return answers[0]["ready"]

    def measure(self, cell: Cell, measure: Measure) -> Result:
        """Rank 0's result; or that of a rank which failed, died or did not answer in time."""
        for rank in self.ranks:
            rank.begin(f"{cell.cell_id} {cell.title}")
        request = {"do": "measure", "cell": cell.model_dump(mode="json"), "measure": measure.model_dump(mode="json")}
        try:
            answers = self._ask(request, measure.timeout_s)
        except StartTimeout:
            notes = self._whereabouts()
            self.close(gently=False)
            return Result(outcome=TimedOut(seconds=measure.timeout_s), notes=notes)
        except RankDied as lost:
            self.close(gently=False)
            return Result(outcome=Failed(type="WorkerDied", message=f"worker died: {lost}", log=lost.log))
        results = {rank: Result.model_validate(answer["result"]) for rank, answer in sorted(answers.items())}
        failed = [rank for rank, result in results.items() if result.outcome.status in FAILURES]
        chosen = self._explained(results[_culprit(results, failed)], failed) if failed else results[0]
        if len(results) < len(self.ranks):
            self.close(gently=False)
        return chosen

    def is_healthy(self) -> bool:
        """Whether all ranks still compute and answer each other."""
        if not self.is_alive:
            return False
        try:
            return all(answer.get("healthy") for answer in self._ask({"do": "ping"}, PING_SECONDS).values())
        except (StartTimeout, RankDied):
            return False

    def close(self, *, gently: bool = True) -> None:
        """End all processes. May be called again."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._selector.close()
        end(self.ranks, patience_s=GOODBYE_SECONDS if gently else 0.0)

    def _check_devices(self, facts: dict[int, Message]) -> None:
        """Raises Refused where ranks share a GPU."""
        holders: dict[str, int] = {}
        for rank, uuid in ((rank, fact["uuid"]) for rank, fact in sorted(facts.items()) if fact["uuid"]):
            if uuid in holders:
                raise Refused(f"ranks {holders[uuid]} and {rank} see the same GPU alone, {uuid}")
            holders[uuid] = rank

    def _explained(self, result: Result, failed: list[int]) -> Result:
        """A failed rank's result, with what the failed ranks printed, and which it was if others did not fail."""
        outcome, notes, world = result.outcome, result.notes, len(self.ranks)
        if isinstance(outcome, Failed):
            printed = [f"printed{f' by rank {rank}' if world > 1 else ''}:\n{text}" for rank in failed
                       if (text := self.ranks[rank].tail())]
            outcome = outcome.model_copy(update={"log": "\n".join(filter(None, (outcome.log, *printed)))})
        if len(failed) < world:
            notes = (*notes, f"failed on rank {', '.join(map(str, failed))} of {world} alone")
        return result.model_copy(update={"outcome": outcome, "notes": notes})

    def _whereabouts(self) -> tuple[str, ...]:
        """For each rank, what it is doing, for a reader who wonders which one all others wait for."""
        for rank in self.ranks:
            rank.ask_for_stack()
        time.sleep(TICK_SECONDS)
        return tuple(f"rank {rank.place.rank} was at {where}" for rank in self.ranks if (where := rank.whereabouts()))

    def _ask(self, request: Message, timeout_s: float) -> dict[int, Message]:
        for rank in self.ranks:
            try:
                rank.send(request)
            except EOFError:
                raise RankDied(rank) from None
        return self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> dict[int, Message]:
        """One answer a rank; of fewer ranks only where one failed and the others then hung. Raises Late or Lost."""
        answers: dict[int, Message] = {}
        deadline = time.monotonic() + timeout_s
        while len(answers) < len(self.ranks):
            if self.stopped():
                raise KeyboardInterrupt
            left = deadline - time.monotonic()
            has_failure = any(_is_failure(answer) for answer in answers.values())
            if left <= 0 and has_failure:
                return answers
            if left <= 0:
                raise StartTimeout
            # before the wait, so that the last words of a process that dies meanwhile are still read
            dead = [rank for rank in self.ranks if rank.place.rank not in answers and not rank.is_alive]
            ready = [key.fileobj for key, _ in self._selector.select(min(left, TICK_SECONDS))]
            for rank in ready:
                try:
                    for message in rank.receive():
                        answers[rank.place.rank] = message
                        if _is_failure(message) and not has_failure:
                            has_failure, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
                except EOFError:
                    raise RankDied(rank) from None
            for rank in dead:
                if rank not in ready:  # a grandchild holds its pipe open
                    raise RankDied(rank)
        return answers


def _culprit(results: dict[int, Result], failed: list[int]) -> int:
    """The first of the failed ranks that does not only miss another one."""
    blamed = [rank for rank in failed if getattr(results[rank].outcome, "type", "") != PEER_LOST]
    return (blamed or failed)[0]


def _is_failure(answer: Message) -> bool:
    return "refused" in answer or answer.get("result", {}).get("outcome", {}).get("status") in FAILURES
