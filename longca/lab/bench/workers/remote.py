"""Ranks in other tasks and the agents that start them: the runner's side of
`longca.lab.bench.workers.agent`."""

import time
from contextlib import suppress
from pathlib import Path

from longca.lab.bench.workers.channel import Channel, Message, is_readable
from longca.lab.bench.workers.launch import RankPlacement

# for an answer of an agent; its longest work is to wait for the end of a process that it has killed
ANSWER_SECONDS = 30.0


class AgentLink:
    """The runner's connection to one agent."""

    def __init__(self, hello: Message, channel: Channel, address: str) -> None:
        """
        Args:
            address: address of the runner under which the agent has reached it.
        """
        self.task = hello["task"]
        self.host = hello["host"]
        self.local_rank = hello["local"]
        self.address = address
        self.channel = channel
        self.is_lost = False

    @property
    def title(self) -> str:
        return f"task {self.task} on {self.host}"

    def tell(self, do: str, number: int, **request: object) -> None:
        """Send a request and do not wait for an answer. Does nothing if the agent is gone."""
        if not self.is_lost:
            try:
                self.channel.send({"do": do, "number": number, **request})
            except EOFError:
                self.lose()

    def answer(self) -> Message:
        """The answer to the last request; empty if the agent is gone or does not answer in time."""
        if not self.is_lost:
            try:
                return self.channel.wait(ANSWER_SECONDS)
            except (EOFError, TimeoutError):
                self.lose()
        return {}

    def look(self) -> None:
        """Notice if the agent is gone. It sends nothing unasked, so if there is something to read, it is the
        end."""
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
    """A rank that an agent starts; it is driven over its own connection."""

    def __init__(self, placement: RankPlacement, agent: AgentLink, number: int, log: Path) -> None:
        self.placement = placement
        self.log = log
        self.host = agent.host
        self.agent = agent
        self._number = number
        self.channel: Channel | None = None
        """connection to the process; None before it is made"""

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
