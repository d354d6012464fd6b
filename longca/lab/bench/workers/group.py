"""Groups: the worker processes of all ranks that measure a cell. A group sends them one request and collects
their answers."""

import random
import selectors
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.core import UserError
from longca.lab.bench.judge.judgement import with_judgement
from longca.lab.bench.measure.failure import as_failed
from longca.lab.bench.measure.others import others
from longca.lab.bench.measure.result import FAILURES, Result, WrongRow, culprit
from longca.lab.bench.playoff.answer import Played, player_at_work
from longca.lab.bench.workers.channel import BrokenChannel, Message, check_answer
from longca.lab.bench.workers.device_lock import Claimant
from longca.lab.bench.workers.judge import JudgeDied, JudgeProcess
from longca.lab.bench.workers.launch import (
    AnswerTimeout,
    Launcher,
    Rank,
    RankDied,
    RankWithoutDevice,
    end,
    was_at,
)
from longca.lab.environment import environments_of
from longca.lab.studies import Cell, Failed, Measure, TimedOut
from longca.lab.studies.playoff.rules import PlayoffRules

START_SECONDS = 300.0  # importing torch from a cold network disk takes minutes
PING_SECONDS = 60.0
ANSWER_SECONDS = 60.0  # for what takes milliseconds, on a machine that may be very busy
RETRY_SECONDS = 0.4
TOLD_AFTER = 2  # attempts
GRACE_SECONDS = 10.0  # that the other ranks get to answer, once one has failed
GOODBYE_SECONDS = 5.0
TICK_SECONDS = 0.25


class Group:
    """`world` ranks, on the machines where the launcher starts them.

    Every wait ends: with an answer, with the death of a rank, or with a timeout. After a death or a timeout
    all ranks are killed.
    """

    def __init__(
        self,
        launcher: Launcher,
        world: int,
        device: str,
        log: Path,
        stopped: Callable[[], bool],
        claimant: Claimant,
        judge: JudgeProcess | None = None,
        number: int = 0,
    ) -> None:
        """Starts the processes; `ready` waits for them.

        Args:
            log: path of the logs, without suffix.
            stopped: polled during every wait; once it returns True, KeyboardInterrupt is raised.
            claimant: the run, which waits for devices that other runs measure on.
            judge: judges the results; without it rank 0 does.
            number: of the group, by which the judge knows it.

        Raises:
            OSError: a process cannot be started.
            HostLost: a machine that should run some of them is gone.
            JudgeDied: likewise the judge.
        """
        self.stopped = stopped
        self.claimant = claimant
        self.is_alive = True
        self.judge = judge
        self._number = number
        self._device_type = "cpu"
        # digests of the listings of environments that results of this group had
        self._listed: set[str] = set()
        if judge is None:
            self.ranks = launcher.start(world, device, log)
        else:
            with judge.meet(number) as link:
                self.ranks = launcher.start(world, device, log, link.fileno())
        self._selector = selectors.DefaultSelector()
        for rank in self.ranks:
            self._selector.register(rank, selectors.EVENT_READ, rank)

    def ready(self) -> Message:
        """Facts of rank 0's device, once all ranks have their devices, no other run uses them, and all ranks
        are ready.

        Raises:
            AnswerTimeout, RankDied, RankWithoutDevice: the group is closed then.
            UserError: devices cannot be locked on this machine; likewise.
        """
        try:
            answers = self._collect(START_SECONDS, ("found", "refused"))
            for answer in answers.values():
                if "refused" in answer:
                    raise RankWithoutDevice(answer["refused"])
            self._claim()
            answers = self._ask({"do": "open"}, START_SECONDS, "ready")
            self._check_devices({rank: answer["ready"] for rank, answer in answers.items()})
        except BaseException:
            self.close(gently=False)
            raise
        self._device_type = answers[0]["ready"].get("type", "cpu")
        return answers[0]["ready"]

    def measure(self, cell: Cell, measure: Measure, seed: int = 0, *, judged: bool = True) -> Result:
        """The result of rank 0, or of a rank that failed, died or did not answer in time, with the verdict of
        the judge.

        Args:
            seed: of the run, for all that is drawn for checks.
            judged: False for a control, which judges itself.
        """
        if self.judge is None or not judged:
            return self._measure(cell, measure, seed)
        try:
            self._begin_judging([cell], measure, seed)
            result = self._measure(cell, measure, seed)
            if isinstance(result.outcome, TimedOut):
                with suppress(JudgeDied):  # it may be at work for long yet; then another takes its place
                    self.judge.verdicts(self._number, GRACE_SECONDS)
                return result
            return with_judgement(result, self.judge.verdicts(self._number)[0])
        except JudgeDied as lost:
            return self._without_judge(lost)

    def _measure(self, cell: Cell, measure: Measure, seed: int) -> Result:
        for rank in self.ranks:
            rank.begin(f"{cell.cell_id} {cell.title}")
        request = {
            "do": "measure",
            "cell": cell.model_dump(mode="json"),
            "measure": measure.model_dump(mode="json"),
            "seed": seed,
            "listed": self.listed,
            "judge": None if self.judge is None else self.judge.process.pid,
        }
        try:
            self._claim()
            answers = self._ask(request, measure.timeout_s, "result")
        except (AnswerTimeout, RankDied) as lost:
            return self._lost(lost, measure.timeout_s)
        results = {rank: Result.received(answer["result"]) for rank, answer in sorted(answers.items())}
        failed = [rank for rank, result in results.items() if result.outcome.status in FAILURES]
        chosen = self._explained(results[culprit(results, failed)], failed) if failed else results[0]
        if len(results) < len(self.ranks):
            self.close(gently=False)
        return chosen.model_copy(
            update={
                "others": others([answer["uses"] for answer in answers.values()]),
                **self.environments([answers[rank] for rank in sorted(answers)]),
            }
        )

    @property
    def listed(self) -> list[str]:
        """Digests of the listings of environments that need not be sent again."""
        return sorted(self._listed)

    def environments(self, answers: Sequence[Message]) -> dict[str, Any]:
        """The fields of a result that say in what environment it was made.

        Args:
            answers: of the ranks, in their order.
        """
        ranks, listings = environments_of(answers)
        self._listed |= listings.keys()
        return {"ranks": ranks, "listings": listings}

    def play(self, cells: Sequence[Cell], measure: Measure, rules: PlayoffRules, seed: int = 0) -> Played:
        """Play off these cells in the process of rank 0, with the verdicts of the judge.

        Args:
            cells: of one case, those that are thought to be the fastest first.
            seed: of the run, for all that is drawn for checks.
        """
        at_work = self.ranks[0].log.with_suffix(".player")
        timeout_s = measure.timeout_s * len(cells) + rules.max_seconds * (len(cells) - 1)
        request: Message = {
            "do": "play",
            "cells": [cell.model_dump(mode="json") for cell in cells],
            "seed": seed,
            "measure": measure.model_dump(mode="json"),
            "rules": rules.model_dump(mode="json"),
            "at_work": str(at_work),
            "listed": self.listed,
            "judge": None if self.judge is None else self.judge.process.pid,
        }
        self.ranks[0].begin(f"play-off of {', '.join(cell.kernel for cell in cells)}: {cells[0].title}")
        try:
            self._begin_judging(cells, measure, seed)
            try:
                self._claim()
                answer = self._ask(request, timeout_s, "players", "lost")[0]
            except (AnswerTimeout, RankDied) as lost:
                result = self._lost(lost, timeout_s)
                if isinstance(result.outcome, TimedOut) and self.judge is not None:
                    with suppress(JudgeDied):
                        self.judge.verdicts(self._number, GRACE_SECONDS)
                return Played.lost(player_at_work(at_work), result)
            if "lost" in answer:
                self.close(gently=False)
                return Played.lost(int(answer["lost"]), Result.received(answer["result"]))
            verdicts = None if self.judge is None else self.judge.verdicts(self._number)
            return Played.answered(cells, answer, verdicts, self.environments([answer]))
        except JudgeDied as lost:
            return Played.failed(cells, self._without_judge(lost))

    def _begin_judging(self, cells: Sequence[Cell], measure: Measure, seed: int) -> None:
        if self.judge is not None:
            device = self._device_type, self.ranks[0].placement.local_rank
            self.judge.begin_cells(self._number, cells, measure, seed, device)

    def _without_judge(self, lost: JudgeDied) -> Result:
        assert self.judge is not None
        self.judge.close()
        return Result(
            outcome=as_failed("JudgeDied", f"the process that judges results died: {lost}", self.judge.tail())
        )

    def wrong_rows(self, cell: Cell, measure: Measure, seed: int = 0) -> list[WrongRow]:
        """The first wrong row of each tensor, as rank 0 finds them; none where it fails. After a death or a
        timeout the group is closed."""
        request = {
            "do": "wrong_rows",
            "cell": cell.model_dump(mode="json"),
            "measure": measure.model_dump(mode="json"),
            "seed": seed,
        }
        try:
            answer = self._ask(request, measure.timeout_s, "wrong_rows")[0]
        except (AnswerTimeout, RankDied):
            self.close(gently=False)
            return []
        return [WrongRow.model_validate(row) for row in answer["wrong_rows"]]

    def is_healthy(self) -> bool:
        """True if all ranks still compute and answer each other."""
        if not self.is_alive:
            return False
        try:
            answers = self._ask({"do": "ping"}, PING_SECONDS, "healthy")
            return all(answer.get("healthy") for answer in answers.values())
        except (AnswerTimeout, RankDied):
            return False

    def close(self, *, gently: bool = True) -> None:
        """End all processes. A second call does nothing."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._selector.close()
        if self.judge is not None:
            self.judge.forget(self._number)
        end(self.ranks, patience_s=GOODBYE_SECONDS if gently else 0.0)

    def _lost(self, why: AnswerTimeout | RankDied, timeout_s: float) -> Result:
        """The result where a rank died or was not done in time. The group is closed."""
        if isinstance(why, AnswerTimeout):
            notes = self._whereabouts()
            self.close(gently=False)
            return Result(outcome=TimedOut(seconds=timeout_s), notes=notes)
        self.close(gently=False)
        message = f"worker died: {why}" if why.type == "WorkerDied" else str(why)
        return Result(outcome=as_failed(why.type, message, why.log), notes=why.notes)

    def _claim(self) -> None:
        """Wait until all ranks have the locks of their devices, or another rank of this run has them.

        All-or-nothing: partial acquisition could deadlock with another run.
        """
        attempts = 0
        begun = time.monotonic()
        while True:
            answers = self._ask(
                {"do": "claim", "signature": self.claimant.signature}, ANSWER_SECONDS, "holder", "error"
            ).values()
            for answer in answers:
                if "error" in answer:
                    what, why, todo = answer["error"]
                    raise UserError(what, why=why, todo=todo)
            taken = [
                f"{answer['device']}: {answer['holder']} is measuring on it"
                for answer in answers
                if answer["holder"]
            ]
            if not taken:
                return
            self._ask({"do": "release"}, ANSWER_SECONDS)
            attempts += 1
            if attempts == TOLD_AFTER:  # a process that is killed is gone a moment later
                self.claimant.say_waiting(taken)
            self.claimant.check_patience(time.monotonic() - begun, taken)
            # not in step with another run that does the same
            until = time.monotonic() + RETRY_SECONDS * random.uniform(0.5, 1.5)
            while time.monotonic() < until:
                if self.stopped() or self.claimant.given_up():
                    raise KeyboardInterrupt
                time.sleep(TICK_SECONDS / 5)

    def _check_devices(self, facts: dict[int, Message]) -> None:
        """Raise RankWithoutDevice if two ranks share a GPU."""
        holders: dict[str, int] = {}
        for rank, uuid in ((rank, fact["uuid"]) for rank, fact in sorted(facts.items()) if fact["uuid"]):
            if uuid in holders:
                raise RankWithoutDevice(f"ranks {holders[uuid]} and {rank} see the same GPU alone, {uuid}")
            holders[uuid] = rank

    def _explained(self, result: Result, failed: list[int]) -> Result:
        """The result of a failed rank, with the output of all failed ranks, and with their numbers if other
        ranks did not fail."""
        outcome = result.outcome
        notes = result.notes
        world = len(self.ranks)
        if isinstance(outcome, Failed):
            printed = [
                f"printed{f' by rank {rank}' if world > 1 else ''}:\n{text}"
                for rank in failed
                if (text := self.ranks[rank].tail())
            ]
            outcome = as_failed(
                outcome.type, outcome.message, "\n".join(filter(None, (outcome.log, *printed)))
            )
        if len(failed) < world:
            notes = (*notes, f"failed on rank {', '.join(map(str, failed))} of {world} alone")
        return result.model_copy(update={"outcome": outcome, "notes": notes})

    def _whereabouts(self) -> tuple[str, ...]:
        """The line of code at which each rank is, so that a reader sees which rank the others wait for."""
        for rank in self.ranks:
            rank.ask_for_stack()
        time.sleep(TICK_SECONDS)
        return tuple(note for rank in self.ranks for note in was_at(rank))

    def _ask(self, request: Message, timeout_s: float, *answered: str) -> dict[int, Message]:
        """One answer of each rank, as `_collect` returns them.

        Args:
            answered: an answer has one of these keys; any will do without them.
        """
        for rank in self.ranks:
            try:
                rank.send(request)
            except EOFError:
                raise RankDied(rank) from None
        return self._collect(timeout_s, answered)

    def _collect(self, timeout_s: float, answered: Collection[str]) -> dict[int, Message]:
        """One answer of each rank; of fewer if one failed and the others then hung.

        Raises:
            AnswerTimeout: not all ranks answered in time.
            RankDied: the process of one ended, or something has written into its channel what is no answer.
        """
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
                raise AnswerTimeout
            # found before the wait, so that the last message of a process that dies during it is still read
            dead = [rank for rank in self.ranks if rank.placement.rank not in answers and not rank.is_alive]
            ready: list[Rank] = [key.data for key, _ in self._selector.select(min(left, TICK_SECONDS))]
            for rank in ready:
                try:
                    for message in rank.receive():
                        check_answer(message, answered)
                        answers[rank.placement.rank] = message
                        if _is_failure(message) and not has_failure:
                            has_failure, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
                except BrokenChannel as error:
                    raise RankDied(
                        rank,
                        f"something in the measuring process has written to the runner's channel, which is "
                        f"longca's alone: {error}",
                    ) from None
                except EOFError:
                    raise RankDied(rank) from None
            for rank in dead:
                if rank not in ready:  # a child of that process holds its pipe open
                    raise RankDied(rank)
        return answers


def _is_failure(answer: Message) -> bool:
    return "refused" in answer or answer.get("result", {}).get("outcome", {}).get("status") in FAILURES
