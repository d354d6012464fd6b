"""How the tasks of a job find each other: through a file in the folder of results, which only its owner can read.

The runner listens at a port that the system gives it, so that none can be taken twice, and writes into that file under what
addresses it may be reached and a token. No list of nodes has to be taken apart and no name of a machine must be resolvable;
the folder is one that all tasks see anyhow, as they do the code. Whoever connects shows that it knows the token, and is shown
the same, without the token itself being sent: on a shared cluster others can connect, too.
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
"""A machine that vanishes is noticed after 25 s of silence, by the system; a process that ends, at once"""


class Rendezvous:
    """The runner's end: where it listens."""

    def __init__(self, results: Path, job: str) -> None:
        """Raises OSError where the file cannot be written."""
        self.token = secrets.token_bytes(32)
        self._server = socket.create_server(("", 0), backlog=512)
        self.path = meeting_path(results, job)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"addresses": addresses(), "port": self._server.getsockname()[1], "token": self.token.hex()}
        write_atomically(self.path, json.dumps(content).encode(), mode=0o600)

    def fileno(self) -> int:
        return self._server.fileno()

    def accept(self) -> tuple[Message, Channel, str] | None:
        """The next one that connects: what it says of itself, its channel, and under which of this machine's addresses
        it came. None for somebody who does not know the token; waits for a connection.
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


def join(results: Path, job: str, hello: Message, timeout_s: float) -> Channel:
    """A task's connection to the runner, which may not be there yet. Raises TimeoutError, with what was missing."""
    path, deadline, reason = meeting_path(results, job), time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        try:
            _look_again(path.parent)
            place = json.loads(path.read_text())
            token = bytes.fromhex(place["token"])
        except (OSError, ValueError, KeyError) as error:  # not there yet, or left by a job that was killed
            reason = f"{path} {'is not there' if isinstance(error, OSError) else 'is damaged'}"
        else:
            for address in place["addresses"]:
                channel = _connect(address, place["port"], token, hello)
                if channel is not None:
                    return channel
            reason = f"nobody answers at {', '.join(place['addresses'])}, port {place['port']}, as {path} says"
        time.sleep(RETRY_SECONDS)
    raise TimeoutError(reason)


def addresses() -> list[str]:
    """Under which this machine may be reached: its name, and where that means nothing to others its numbers."""
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


def meeting_path(results: Path, job: str) -> Path:
    return results / FOLDER / f"{job}.json"


def keep_alive(connection: socket.socket) -> None:
    """Have the system end a connection whose other end says nothing any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connect(address: str, port: int, token: bytes, hello: Message) -> Channel | None:
    """None where nobody listens, or somebody else."""
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
    """Network file systems remember for a minute that a file was not there, unless its folder was changed from here."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=f".{os.getpid()}"):
        pass
