"""The launcher of a job: torchrun or srun has started one task for each rank. Task 0 is the runner, the other
tasks are agents.

A group of fewer ranks than the job has tasks takes the first tasks. A lost task stays lost for the rest of
the run; the others go on.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from longca.core import UserError
from longca.lab.bench.workers.agent import JOIN_SECONDS, RENDEZVOUS_SECONDS, TICK_SECONDS, threads_per_task
from longca.lab.bench.workers.launch import HostLost, Rank, RankPlacement, Task, end, rank_log
from longca.lab.bench.workers.local import RankProcess
from longca.lab.bench.workers.process import network
from longca.lab.bench.workers.remote import AgentLink, RemoteRank
from longca.lab.bench.workers.rendezvous import LOOPBACK, Arrival, Rendezvous, network_address
from longca.lab.code import package_digest


class JobError(UserError):
    """Tasks or machines of the job are missing."""

    exit_code = 3


def _check_code(title: str, digest: object) -> None:
    """Raise JobError for a task that has imported another package than this process. One that does not say is
    not checked."""
    if digest and digest != package_digest():
        raise JobError(
            f"{title} runs another longca than the runner",
            why=f"digest {digest} instead of {package_digest()}",
            todo="All tasks need the same package: look at the working folder and PYTHONPATH on each machine",
        )


class Job:
    """A launcher: rank 0 is a child of this process, each other rank is a child of another task."""

    def __init__(self, task: Task, results: Path, stopped: Callable[[], bool] = lambda: False) -> None:
        """Waits until all tasks have connected.

        Args:
            results: a folder that all tasks see.
            stopped: polled during every wait; once it returns True, KeyboardInterrupt is raised.

        Raises:
            JobError: some did not connect in time, or one has imported another package.
            UserError: the folder cannot be written.
        """
        self.task = task
        self.stopped = stopped
        self.agents: list[AgentLink] = []
        self._num_started = 0
        self._address = LOOPBACK if task.on_one_machine else network_address()
        try:
            self._rendezvous = Rendezvous(results, task.job, self._address)
        except OSError as error:
            raise UserError(
                f"Cannot write '{results}'",
                why=error.strerror or str(error),
                todo="Give another folder with `--results`",
            ) from error
        try:
            self._gather()
        except BaseException:
            self.close()
            raise

    @property
    def num_ranks(self) -> int:
        for agent in self.agents:
            agent.look()
        return 1 + sum(not agent.is_lost for agent in self.agents)

    @property
    def lost(self) -> str:
        return ", ".join(agent.title for agent in self.agents if agent.is_lost)

    def start(self, world: int, device: str, log: Path, judge: int | None = None) -> list[Rank]:
        agents = [agent for agent in self.agents if not agent.is_lost][: world - 1]
        if len(agents) < world - 1:
            raise HostLost(self.lost)
        hosts = Counter([self.task.host, *(agent.host for agent in agents)])
        facing = self._address or next(
            (agent.address for agent in agents if agent.host != self.task.host), LOOPBACK
        )
        ranks: list[Rank] = []
        with self._meeting_place(world) as (url, listener):
            try:
                placement = RankPlacement(0, world, self.task.local_number, url(self._address or LOOPBACK))
                ranks.append(
                    RankProcess(
                        placement,
                        device,
                        threads_per_task(hosts[self.task.host]),
                        rank_log(log, 0, world),
                        network(facing),
                        listener=listener,
                        judge=judge,
                    )
                )
                remote: dict[int, RemoteRank] = {}
                for rank, agent in enumerate(agents, 1):
                    self._num_started += 1
                    placement = RankPlacement(
                        rank, world, agent.local_rank, url(self._address or agent.address)
                    )
                    process = RemoteRank(placement, agent, self._num_started, rank_log(log, rank, world))
                    agent.tell(
                        "start",
                        self._num_started,
                        placement=asdict(placement),
                        device=device,
                        log=str(process.log.absolute()),
                        num_local=hosts[agent.host],
                        address=facing if agent.host == self.task.host else "",
                    )
                    remote[self._num_started] = process
                    ranks.append(process)
                self._connect(remote)
            except BaseException:
                end(ranks)
                raise
        return ranks

    def close(self) -> None:
        for agent in self.agents:
            agent.let_go()
        self._rendezvous.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gather(self) -> None:
        """Collect all agents, ordered by machine and then by task, whatever way srun has distributed the
        tasks.

        Ranks that follow each other are then on the same machine where that is possible.
        """
        deadline = time.monotonic() + RENDEZVOUS_SECONDS
        while len(self.agents) < self.task.num_tasks - 1:
            self._check(deadline)
            for hello, channel, address in self._arrivals(set()):
                if "task" in hello:
                    self._admit(AgentLink(hello, channel, address))
                    _check_code(self.agents[-1].title, hello.get("code", ""))
                else:
                    channel.close()
        first = {self.task.host: 0}
        for agent in sorted(self.agents, key=lambda agent: agent.task):
            first.setdefault(agent.host, agent.task)
        self.agents.sort(key=lambda agent: (first[agent.host], agent.task))
        used = {agent.address for agent in self.agents if agent.host != self.task.host} or {
            agent.address for agent in self.agents
        }
        if not self._address and len(used) == 1:
            (self._address,) = used
            self._rendezvous.narrow(self._address)

    def _admit(self, agent: AgentLink) -> None:
        """Take a task into the job. Raises JobError if its number is taken or too large: it is of another
        job."""
        titles = {0: self.task.title} | {other.task: other.title for other in self.agents}
        if agent.task in titles or not 0 < agent.task < self.task.num_tasks:
            agent.let_go()
            why = (
                f"{titles[agent.task]} has that number" if agent.task in titles else "its number is another's"
            )
            raise JobError(
                f"{agent.title} is not of this job of {self.task.num_tasks} tasks",
                why=why,
                todo="Give each job its own `--rdzv-id`, or its own results with `--results`",
            )
        self.agents.append(agent)

    @contextmanager
    def _meeting_place(self, world: int) -> Iterator[tuple[Callable[[str], str], socket.socket | None]]:
        """(rendezvous URL of the ranks by the address of this machine, socket that listens there).

        On one machine it is a file beside the rendezvous of the tasks, and no port is open.
        """
        if world == 1:
            yield lambda address: "", None
        elif self.task.on_one_machine:
            file_uri = self._rendezvous.new_file().as_uri()
            yield lambda address: file_uri, None
        else:
            with socket.create_server((self._address, 0), backlog=512) as listener:
                port = listener.getsockname()[1]
                yield lambda address: f"tcp://{address}:{port}", listener

    def _check(self, deadline: float) -> None:
        if self.stopped():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            missing = sorted(set(range(1, self.task.num_tasks)) - {agent.task for agent in self.agents})
            raise JobError(
                f"Task {', '.join(map(str, missing))} of {self.task.num_tasks} of this job "
                f"has not come in {RENDEZVOUS_SECONDS:.0f} s",
                todo="All tasks need the same command and the same folder of results",
            )

    def _connect(self, remote: dict[int, RemoteRank]) -> None:
        """Wait for the connections of the ranks' processes. Raises HostLost if one does not come."""
        deadline = time.monotonic() + 2 * JOIN_SECONDS
        missing = dict(remote)
        while missing:
            if self.stopped():
                raise KeyboardInterrupt
            for hello, channel, _ in self._arrivals({rank.agent for rank in missing.values()}):
                rank = missing.pop(hello.get("rank", 0), None)
                if rank is None:
                    channel.close()
                else:
                    rank.channel = channel
            late = time.monotonic() > deadline
            for rank in missing.values():
                if late:
                    rank.agent.lose()
                if rank.agent.is_lost:
                    raise HostLost(rank.agent.title)

    def _arrivals(self, agents: set[AgentLink]) -> list[Arrival]:
        """Connections made within one tick. Also notices which of the agents are gone."""
        arrivals = self._rendezvous.arrivals(TICK_SECONDS)
        for agent in agents:
            agent.look()
        return arrivals
