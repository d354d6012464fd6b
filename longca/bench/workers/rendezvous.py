"""The rendezvous of a job's tasks: a file in the folder of results, readable by its owner only, tells them where the runner listens.

The runner listens at a free port that the system chooses. It writes its addresses, the port and a token into that file. So no list of
nodes must be parsed, and no host name must be resolvable; all tasks see the folder anyway, as they see the code. Other users of a
cluster can connect, too. So both sides of a connection prove that they know the token, by HMAC, without sending it.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from longca.bench.workers.channel import Channel, Message
from longca.store.files import write_atomically

HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.2
FOLDER = "jobs"
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""with these options the system reports a vanished machine after 25 s of silence; the end of a process is noticed at once"""


class Rendezvous:
    """The runner's side: the listening socket and the file that names it."""

    def __init__(self, results: Path, job: str) -> None:
        """Raises OSError if the file cannot be written."""
        self.token = secrets.token_bytes(32)
        self._server = socket.create_server(("", 0), backlog=512)
        self.path = rendezvous_path(results, job)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"addresses": addresses(), "port": self._server.getsockname()[1], "token": self.token.hex()}
        write_atomically(self.path, json.dumps(content).encode(), mode=0o600)

    def fileno(self) -> int:
        return self._server.fileno()

    def accept(self) -> tuple[Message, Channel, str] | None:
        """Wait for the next connection.

        Returns:
            (hello, channel, address of this machine that was connected to); None if the other side does not know the token.
        """
        connection, _ = self._server.accept()
        with suppress(OSError, ValueError, EOFError, KeyError, TypeError):
            address = connection.getsockname()[0]
            keep_alive(connection)
            channel = Channel.over(connection)
            try:
                hello = channel.wait(HANDSHAKE_SECONDS)
                nonce = secrets.token_hex(16)
                channel.send({"nonce": nonce, "proof": _proof(self.token, "runner", hello["nonce"])})
                answer = channel.wait(HANDSHAKE_SECONDS)
                if hmac.compare_digest(answer["proof"], _proof(self.token, "task", nonce)):
                    return answer["hello"], channel, address
            except BaseException:
                channel.close()
                raise
            channel.close()
        return None

    def close(self) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # another job's file is in it
            self.path.parent.rmdir()


def join_rendezvous(results: Path, job: str, hello: Message, timeout_s: float) -> Channel:
    """Connect a task to the runner, which may start later. Raises TimeoutError, with what was missing."""
    path, deadline, reason = rendezvous_path(results, job), time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        try:
            _look_again(path.parent)
            published = json.loads(path.read_text())
            token = bytes.fromhex(published["token"])
        except (OSError, ValueError, KeyError) as error:  # not there yet, or left by a job that was killed
            reason = f"{path} {'is not there' if isinstance(error, OSError) else 'is damaged'}"
        else:
            for address in published["addresses"]:
                channel = _connect(address, published["port"], token, hello)
                if channel is not None:
                    return channel
            reason = f"nobody answers at {', '.join(published['addresses'])}, port {published['port']}, as {path} says"
        time.sleep(RETRY_SECONDS)
    raise TimeoutError(reason)


def addresses() -> list[str]:
    """Addresses under which other machines may reach this one: its host name, then its IPv4 addresses, loopback last."""
    import psutil

    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == socket.AF_INET]
    return [socket.gethostname(), *sorted(found, key=lambda address: address.startswith("127."))]


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has the address."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def rendezvous_path(results: Path, job: str) -> Path:
    return results / FOLDER / f"{job}.json"


def keep_alive(connection: socket.socket) -> None:
    """Have the system end a connection whose other end has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connect(address: str, port: int, token: bytes, hello: Message) -> Channel | None:
    """A channel to the runner; None if nobody listens there, or somebody who does not know the token."""
    try:
        connection = socket.create_connection((address, port), HANDSHAKE_SECONDS)
    except OSError:
        return None
    keep_alive(connection)
    channel = Channel.over(connection)
    with suppress(TimeoutError, EOFError, ValueError, KeyError, TypeError):
        nonce = secrets.token_hex(16)
        channel.send({"nonce": nonce})
        answer = channel.wait(HANDSHAKE_SECONDS)
        if hmac.compare_digest(answer["proof"], _proof(token, "runner", nonce)):
            channel.send({"proof": _proof(token, "task", answer["nonce"]), "hello": hello})
            return channel
    channel.close()
    return None


def _proof(token: bytes, who: str, nonce: str) -> str:
    return hmac.new(token, f"{who} {nonce}".encode(), hashlib.sha256).hexdigest()


def _look_again(folder: Path) -> None:
    """Change the folder, so that a network file system looks again: it remembers for a minute that a file was not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=f".{os.getpid()}"):
        pass
