"""Ranks on other machines, and the agents there that start them: the runner's side of `longca.bench.workers.agent`."""

import time
from contextlib import suppress
from pathlib import Path

from longca.bench.workers.channel import Channel, Message, is_readable
from longca.bench.workers.launch import RankPlacement

ANSWER_SECONDS = 30.0  # of an agent: it does nothing that lasts, but for the end of a process that it has killed


class AgentLink:
    """The runner's hold on one agent."""

    def __init__(self, hello: Message, channel: Channel, address: str) -> None:
        """
        Args:
            address: the runner's, as the agent has reached it.
        """
        self.task, self.host, self.local_rank, self.address = hello["task"], hello["host"], hello["local"], address
        self.channel = channel
        self.is_lost = False

    @property
    def title(self) -> str:
        return f"task {self.task} on {self.host}"

    def tell(self, do: str, number: int, **request: object) -> None:
        """A request without an answer; of an agent that is gone, nothing is asked."""
        if not self.is_lost:
            try:
                self.channel.send({"do": do, "number": number, **request})
            except EOFError:
                self.lose()

    def answer(self) -> Message:
        """To the request before; empty from an agent that is gone or says nothing."""
        if not self.is_lost:
            try:
                return self.channel.wait(ANSWER_SECONDS)
            except (EOFError, TimeoutError):
                self.lose()
        return {}

    def look(self) -> None:
        """Find out whether it is still there. It speaks only when asked, so that what can be read is the end."""
        if not self.is_lost and is_readable(self.channel):
            self.lose()

    def lose(self) -> None:
        self.is_lost = True
        self.channel.close()

    def let_go(self) -> None:
        if not self.is_lost:
            with suppress(EOFError):
                self.channel.send({"do": "leave"})
            self.lose()


class RemoteRank:
    """A rank that an agent has started, driven over the rank's own connection."""

    def __init__(self, place: RankPlacement, agent: AgentLink, number: int, log: Path) -> None:
        self.place, self.log, self.host = place, log, agent.host
        self.agent, self._number = agent, number
        self.channel: Channel | None = None
        """of the process; None before it has come"""

    def fileno(self) -> int:
        assert self.channel is not None
        return self.channel.fileno()

    def send(self, message: Message) -> None:
        assert self.channel is not None
        self.channel.send(message)

    def receive(self) -> list[Message]:
        assert self.channel is not None
        return self.channel.receive()

    @property
    def is_alive(self) -> bool:
        return True  # as long as its connection is open, which its agent sees to

    def begin(self, title: str) -> None:
        self.agent.tell("begin", self._number, title=title)

    def tail(self) -> str:
        return self._ask("tail").get("tail", "")

    def ask_for_stack(self) -> None:
        self.agent.tell("stack", self._number)

    def whereabouts(self) -> str:
        return self._ask("whereabouts").get("where", "")

    def cause_of_death(self) -> str:
        self.agent.look()
        return self._ask("cause").get("cause") or f"{self.agent.title} is gone"

    def ask_to_stop(self, *, gently: bool) -> None:
        if gently and self.channel is not None:
            with suppress(EOFError):
                self.channel.send({"do": "exit"})
        else:
            self.agent.tell("kill", self._number)

    def stop(self, deadline: float) -> None:
        self.agent.tell("stop", self._number, patience_s=max(deadline - time.monotonic(), 0.0))
        self.agent.answer()
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _ask(self, what: str) -> Message:
        self.agent.tell(what, self._number)
        return self.agent.answer()
