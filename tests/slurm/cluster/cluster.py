"""The cluster: its daemons, jobs sent to it as a plain user, and what became of them."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster.files import ACCOUNT, DATABASE, GPU_MAJOR, HEAD, HEAD_IP, Layout
from tests.slurm.cluster.machine import has_cgroups, remove_cgroups
from tests.slurm.cluster.space import UID, USER, Space, python_paths

SOCKET = "/run/munge/munge.socket.2"
BRIDGE = "slurm0"
DATABASE_OPTIONS = "--no-defaults --user=root --socket={folder}/mysql.sock --datadir={folder}/mysql"


@dataclass(frozen=True)
class Job:
    """A line of the accounting, or of the queue where there is none."""

    job_id: str
    name: str
    """rule and wildcards, as Snakemake's plugin comments them"""
    state: str
    nodes: str
    seconds: int
    memory: str
    """asked for on each node"""


class Cluster:
    """Slurm in namespaces; a context manager."""

    def __init__(
        self,
        num_nodes: int = 2,
        *,
        accounting: bool = True,
        gpus_per_node: int = 2,
        cores_per_node: int = 16,
        cgroups: bool = True,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="longca-slurm-"))
        self.folder.chmod(0o755)
        self.layout = Layout(
            self.folder,
            num_nodes,
            gpus_per_node,
            cores_per_node,
            accounting=accounting,
            cgroups=cgroups and has_cgroups(),
        )
        self._stack = ExitStack()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if self.layout.cgroups:
                stack.callback(remove_cgroups)
            self.layout.write()
            self.space = stack.enter_context(Space(self.folder))
            self._prepare()
            self._start_daemons()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for daemon in self._daemons.values():
            daemon.wait()

    def accounted(self) -> list[Job]:
        """All jobs, once for each time they ran. What a job is called is known when it has ended."""
        fields = "JobIDRaw,Comment,State,NodeList,ElapsedRaw,ReqMem"
        return _jobs(self.space.run(f"sacct -a -X -D -P -n -S now-1hour -o {fields}").stdout)

    def queued(self) -> list[Job]:
        """All jobs that Slurm's controller still knows, each as it is now."""
        return _jobs(self.space.run("squeue -a -h -t all -S i -o '%i|%k|%T|%N|0|%m'").stdout)

    def jobs(self) -> list[Job]:
        return self.accounted() if self.layout.accounting else self.queued()

    def fail_node(self, node: str) -> None:
        """A node is gone: slurmd and all jobs on it, at once."""
        self.space.kill_node(node)
        self._daemons.pop(f"slurmd.{node}").wait()

    def start_node(self, node: str) -> None:
        self._start(f"slurmd.{node}", ["slurmd", "-D", "-N", node], node=node)

    def _prepare(self) -> None:
        space = self.space
        layout = self.layout
        space.make_readable(python_paths())
        hosts = [
            f"127.0.0.1 localhost\n{HEAD_IP} {HEAD}",
            *(f"{layout.ip(node)} {node}" for node in layout.nodes),
        ]
        space.own_etc(
            "\n".join(
                [
                    f"rm -rf slurm; cp -a {layout.etc} slurm; : > hosts",
                    *(f"echo '{line}' >> hosts" for line in hosts),
                    f"echo {USER}:x:{UID}:{UID}::{space.home}:/bin/bash >> passwd; echo {USER}:x:{UID}: >> "
                    f"group",
                ]
            )
        )
        devices = "\n".join(
            f"mknod -m 666 {self.folder}/dev/nvidia{number} c {GPU_MAJOR} {number}"
            for number in range(layout.gpus_per_node)
        )
        space.run(f"""
            hostname {HEAD}
            ip link set lo up
            ip link add {BRIDGE} type bridge; ip addr add {HEAD_IP}/24 dev {BRIDGE}; ip link set {BRIDGE} up
            mkdir -p /run/munge; mount -t tmpfs -o mode=755 tmpfs /run/munge
            mkdir {self.folder}/dev; {devices}
            dd if=/dev/urandom of={self.folder}/munge.key bs=128 count=1 status=none; chmod 600 {self.folder}/munge.key
            """)  # noqa: E501
        for node in layout.nodes:
            space.add_node(node, layout.ip(node), BRIDGE)

    def _start_daemons(self) -> None:
        munge = (
            f"--key-file={self.folder}/munge.key --seed-file={self.folder}/munge.seed "
            f"--log-file={self.folder}/log/munged.log"
        )
        self._start("munged", ["munged", "--foreground", "--force", *munge.split()])
        self._wait(lambda: self._succeeds("munge -n"), "munged")
        if self.layout.accounting:
            self._start_accounting()
        self._start("slurmctld", ["slurmctld", "-D"])
        for node in self.layout.nodes:
            self.start_node(node)
        self._wait(lambda: set(self._sinfo()) == {"idle"}, "slurmctld")

    def _start_accounting(self) -> None:
        options = DATABASE_OPTIONS.format(folder=self.folder)
        self.space.run(
            f"mariadb-install-db {options} --skip-test-db --auth-root-authentication-method=normal"
            f" > {self.folder}/log/db.log 2>&1"
        )
        small = (
            "--innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 "
            "--innodb-lock-wait-timeout=900 --bind-address=127.0.0.1"
        )
        self._start("mariadbd", ["mariadbd", *options.split(), *small.split()])
        client = f"mariadb --no-defaults --socket={self.folder}/mysql.sock -uroot -e"
        self._wait(lambda: self._succeeds(f"{client} 'select 1'"), "mariadbd")
        for host in ("localhost", "127.0.0.1"):
            self.space.run(
                f"{client} \"create user slurm@'{host}' identified by 'slurm'; grant all on {DATABASE}.* to "
                f"slurm@'{host}'\""
            )
        self._start("slurmdbd", ["slurmdbd", "-D"])
        self._wait(lambda: self._succeeds("sacctmgr -n list cluster"), "slurmdbd")
        self.space.run(f"""exec >/dev/null
            sacctmgr -i add cluster test
            sacctmgr -i add account {ACCOUNT} cluster=test
            sacctmgr -i add user {USER} account={ACCOUNT} defaultaccount={ACCOUNT}""")

    def _start(self, name: str, command: list[str], node: str = "") -> None:
        self._daemons[name] = self.space.start(command, self.folder / "log" / f"{name}.log", node=node)

    def _sinfo(self) -> Iterable[str]:
        return self.space.run("sinfo -h -N -o %T 2>/dev/null || true").stdout.split() or ["none"]

    def _succeeds(self, script: str) -> bool:
        return not self.space.run(f"({script}) > /dev/null 2>&1 && echo || echo no").stdout.strip()

    def _wait(self, ready: Callable[[], bool], daemon: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{daemon} does not get "
                    f"ready:\n{(self.folder / 'log' / f'{daemon}.log').read_text()[-3000:]}"
                )
            time.sleep(0.1)


def _jobs(lines: str) -> list[Job]:
    jobs = []
    for line in lines.splitlines():
        job_id, comment, state, nodes, seconds, memory = line.split("|")
        jobs.append(Job(job_id, comment.removeprefix("rule_"), state.split()[0], nodes, int(seconds), memory))
    return jobs
