"""Namespaces: a machine inside the machine, with its own processes, network, mounts and a plain user."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.slurm.cluster.machine import NAMESPACES, SYSTEM_PATH

USER = "runner"
UID = 64007
# process 1: takes up orphans, and ends with its input, and all others with it
KEEP_ALIVE = "trap '' CHLD; exec cat"


class Space:
    """Runs commands inside, as root or as the plain user. Ends with `close`, or with this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._holders: dict[str, tuple[subprocess.Popen[bytes], int]] = {
            "": _hold([*NAMESPACES, "sh", "-c", KEEP_ALIVE])
        }
        self.home.mkdir()
        os.chown(self.home, UID, UID)

    def __enter__(self) -> "Space":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process, _ in self._holders.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def add_node(self, name: str, ip: str, bridge: str) -> None:
        """A network and a host name of its own, joined to the bridge."""
        self._holders[name] = _hold([*self._enter(""), "unshare", "--net", "--uts", "sh", "-c", KEEP_ALIVE])
        pid = self._holders[name][1]
        self.run(f"ip link add v{name} type veth peer name eth0 && ip link set v{name} master {bridge} up")
        subprocess.run(
            [*self._enter(""), "ip", "link", "set", "eth0", "netns", str(self._inner_pid(pid))],
            env=_ENVIRON,
            check=True,
        )
        self.run(
            f"hostname {name}; ip addr add {ip}/24 dev eth0; ip link set eth0 up; ip link set lo up",
            node=name,
        )

    def run(self, script: str, *, node: str = "") -> subprocess.CompletedProcess[str]:
        """A shell script as root; an error raises."""
        done = subprocess.run(
            [*self._enter(node), "sh", "-ec", script],
            capture_output=True,
            text=True,
            env=_ENVIRON,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{script}\n{done.stdout}{done.stderr}")
        return done

    def start(self, command: list[str], log: Path, *, node: str = "") -> subprocess.Popen[bytes]:
        """A daemon as root, in the foreground."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter(node), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_ENVIRON,
            )

    def as_user(self, command: list[str], cwd: Path, **environ: str) -> list[str]:
        """The command line that runs `command` as the plain user, with a clean environment."""
        variables = {
            "HOME": str(self.home),
            "USER": USER,
            "LOGNAME": USER,
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "PATH": SYSTEM_PATH,
            **environ,
        }
        script = f'cd {shlex.quote(str(cwd))} && exec setsid --wait "$@"'
        return [
            *self._enter(""),
            "setpriv",
            f"--reuid={UID}",
            f"--regid={UID}",
            "--clear-groups",
            "env",
            "-i",
            *(f"{name}={value}" for name, value in variables.items()),
            "sh",
            "-c",
            script,
            "sh",
            *command,
        ]

    def kill_node(self, name: str) -> None:
        """Every process of a node dies at once but the one that holds its namespaces."""
        holder = self._holders[name][1]
        network = Path(f"/proc/{holder}/ns/net").stat().st_ino
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != holder and (folder / "ns/net").stat().st_ino == network:
                    os.kill(int(folder.name), 9)
            except OSError:
                continue  # it has ended

    def mount_tmpfs(self, place: Path, size: str) -> None:
        self.run(f"mount -t tmpfs -o size={size},mode=755,uid={UID},gid={UID} tmpfs {place}")

    def inside(self, path: Path) -> Path:
        """The path outside of a path inside."""
        return Path(f"/proc/{self._holders[''][1]}/root{path}")

    def own_etc(self, script: str) -> None:
        """A copy of /etc in its place, changed by a script that runs in it.

        The whole folder, since a file mounted over another is gone as soon as somebody outside replaces that
        one: as adding a user does.
        """
        place = self.folder / "own-etc"
        self.run(
            f"mkdir {place}; mount -t tmpfs -o mode=755 tmpfs {place}; cp -a /etc/. {place}; cd "
            f"{place}\n{script}\nmount --bind {place} /etc"
        )

    def make_readable(self, paths: Iterable[Path]) -> None:
        """Give the plain user a way to folders that lie below one of root's own: that one is hidden, they are
        put back."""
        hidden: dict[Path, set[Path]] = {}
        for path in paths:
            for folder in reversed(path.parents):
                if not folder.stat().st_mode & 0o001:
                    hidden.setdefault(folder, set()).add(path)
                    break
        for number, (folder, below) in enumerate(hidden.items()):
            kept = {path: self.folder / f"kept{number}.{index}" for index, path in enumerate(sorted(below))}
            self.run(
                "\n".join(
                    f"mkdir {position}; mount --bind {path} {position}" for path, position in kept.items()
                )
            )
            self.run(f"mount -t tmpfs -o mode=755 tmpfs {folder}")
            self.run(
                "\n".join(
                    f"mkdir -p {path}; mount --bind {position} {path}" for path, position in kept.items()
                )
            )

    def _enter(self, node: str) -> list[str]:
        flags = ["--mount", "--net", "--uts", "--ipc", "--pid"]
        return ["nsenter", f"--target={self._holders[node][1]}", *flags, "--"]

    def _inner_pid(self, pid: int) -> int:
        """That process's number inside."""
        line = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")
        )
        return int(line.split()[-1])


_ENVIRON = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": "/nonexistent"}


def python_paths() -> set[Path]:
    """Folders that this Python needs: its own, its environment's, and those it imports from."""
    paths = {Path(sys.prefix), Path(sys.base_prefix), *(Path(entry) for entry in sys.path if entry)}
    return {path.resolve() for path in paths if path.is_dir()} | {Path(sys.prefix)}


def _hold(command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a process that holds namespaces; its number out here."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=_ENVIRON)
    while True:
        pid = process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "cat":
            return process, pid
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        time.sleep(0.02)
