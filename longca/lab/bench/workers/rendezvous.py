"""The rendezvous of a job's tasks: a file in the results folder, readable only by its owner, contains the
runner's address.

The runner listens at a free port that the system chooses. It writes its addresses, the port and a token into
that file. So there is no need to parse a list of nodes or to resolve host names; all tasks can read the
folder, as they can read the code. Other users of a cluster can connect, too. So both sides of a connection
prove by HMAC that they know the token, without sending it:

    task  ── nonce ──────────────────────▶  runner
    task  ◀── nonce, proof ───────────────  runner
    task  ── proof, hello ───────────────▶  runner

Each is a line of limited length, and all of them together have limited time. Only a hello with a valid proof
is parsed. Handshakes run concurrently, so a silent client cannot block others.
"""

import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from longca.lab.bench.workers.channel import Channel, Message
from longca.lab.store.files import write_atomically

HANDSHAKE_SECONDS = 10.0  # for all lines of one handshake
LINE_BYTES = 4096  # of one line; a hello has some hundred
# at once; the oldest gives way: that of a task is over in milliseconds, and a task comes again
MOST_HANDSHAKES = 256
RETRY_SECONDS = 0.2
LOOPBACK = "127.0.0.1"
FOLDER = "jobs"
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""with these options the system reports a vanished machine after 25 s of silence; the end of a process is
noticed at once"""


class Arrival(NamedTuple):
    """A task, or the process of a rank, that has proved that it belongs to the job."""

    hello: Message
    channel: Channel
    address: str
    """of this machine, under which it has come"""


class _Refused(Exception):
    """The other side does not do the handshake as it should."""


class _Lines:
    """The lines that come over a connection; it reads no byte behind them."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._partial = b""

    def take(self) -> bytes | None:
        """The next line, without its end; None if there is none yet. Raises _Refused if it is too long, or
        the connection ends."""
        try:
            ahead = self.connection.recv(LINE_BYTES, socket.MSG_PEEK)
            line, end, _ = ahead.partition(b"\n")
            self.connection.recv(len(line + end))
        except BlockingIOError:
            return None
        except OSError:
            raise _Refused from None
        if not ahead or len(self._partial) + len(line) >= LINE_BYTES:
            raise _Refused
        self._partial += line
        if not end:
            return None
        found = self._partial
        self._partial = b""
        return found

    def send(self, *parts: str) -> None:
        """Raises _Refused if the other side does not take it: a line always fits into a buffer that is
        empty."""
        line = " ".join(parts).encode() + b"\n"
        try:
            if self.connection.send(line) != len(line):
                raise _Refused
        except OSError:
            raise _Refused from None


@dataclass(eq=False)
class _Handshake:
    """A connection whose other side has not proved itself yet, as the runner sees it."""

    lines: _Lines
    token: bytes
    deadline: float = field(default_factory=lambda: time.monotonic() + HANDSHAKE_SECONDS)
    nonces: bytes = b""

    def go_on(self) -> Message | None:
        """Do what the bytes that have come allow. The hello if that ends the handshake. Raises _Refused."""
        while (line := self.lines.take()) is not None:
            if self.nonces:
                proof, _, hello = line.partition(b" ")
                if not _proves(proof, self.token, "task", self.nonces, hello):
                    raise _Refused
                return json.loads(hello)
            nonce = secrets.token_hex(16)
            self.nonces = line + b" " + nonce.encode()
            self.lines.send(nonce, _proof(self.token, "runner", self.nonces))
        return None


class Rendezvous:
    """The runner's side: the listening socket and the file that names it."""

    def __init__(self, results: Path, job: str, address: str = "") -> None:
        """Raises OSError if the file cannot be written.

        Args:
            address: of this machine, the only one to listen at; empty for all.
        """
        self.token = secrets.token_bytes(32)
        self.path = rendezvous_path(results, job)
        self._handshakes: dict[_Handshake, None] = {}  # the oldest first
        self._files: list[Path] = []
        self._selector = selectors.DefaultSelector()
        self._listen(address, 0)

    def arrivals(self, seconds: float) -> list[Arrival]:
        """Those who have proved themselves; waits for the first one, but not longer than that."""
        found: list[Arrival] = []
        deadline = time.monotonic() + seconds
        while not found:
            left = deadline - time.monotonic()
            for key, _ in self._selector.select(max(left, 0.0)):
                if key.data is None:
                    self._welcome()
                elif key.data in self._handshakes:
                    found += self._hear(key.data)
            now = time.monotonic()
            for late in [handshake for handshake in self._handshakes if handshake.deadline <= now]:
                self._turn_away(late)
            if left <= 0:
                break
        return found

    def narrow(self, address: str) -> None:
        """Listen at this address alone from now on. Connected tasks stay; a task that is connecting must
        try again."""
        self._server.close()
        self._selector.close()
        for handshake in list(self._handshakes):
            handshake.lines.connection.close()
        self._handshakes.clear()
        self._selector = selectors.DefaultSelector()
        try:
            self._listen(address, self._port)
        except OSError:  # somebody has taken the port meanwhile
            self._listen(address, 0)

    def new_file(self) -> Path:
        """An empty file that only this user can read and all tasks see; it lives as long as the
        rendezvous."""
        path = (self.path.parent / f"{self.path.stem}-{secrets.token_hex(8)}.store").absolute()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._files.append(path)
        return path

    def close(self) -> None:
        self._server.close()
        self._selector.close()
        for handshake in self._handshakes:
            handshake.lines.connection.close()
        self._handshakes.clear()
        for path in (self.path, *self._files):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another job's file is in it
            self.path.parent.rmdir()

    def _listen(self, address: str, port: int) -> None:
        self._server = socket.create_server((address, port), backlog=512)
        self._server.setblocking(False)
        self._port = self._server.getsockname()[1]
        self._selector.register(self._server, selectors.EVENT_READ)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "addresses": [address] if address else addresses(),
            "port": self._port,
            "token": self.token.hex(),
        }
        write_atomically(self.path, json.dumps(content).encode(), mode=0o600)

    def _welcome(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # it has left already, or this process has too many open files
            return
        with suppress(OSError):
            keep_alive(connection)
        connection.setblocking(False)
        if len(self._handshakes) >= MOST_HANDSHAKES:
            self._turn_away(next(iter(self._handshakes)))
        handshake = _Handshake(_Lines(connection), self.token)
        self._handshakes[handshake] = None
        self._selector.register(connection, selectors.EVENT_READ, handshake)

    def _hear(self, handshake: _Handshake) -> list[Arrival]:
        connection = handshake.lines.connection
        try:
            hello = handshake.go_on()
            if hello is None:
                return []
            address = connection.getsockname()[0]
        except (_Refused, OSError):
            self._turn_away(handshake)
            return []
        self._forget(handshake)
        return [Arrival(hello, Channel.over(connection), address)]

    def _turn_away(self, handshake: _Handshake) -> None:
        self._forget(handshake)
        handshake.lines.connection.close()

    def _forget(self, handshake: _Handshake) -> None:
        del self._handshakes[handshake]
        self._selector.unregister(handshake.lines.connection)


def join_rendezvous(results: Path, job: str, hello: Message, timeout_s: float) -> Channel:
    """Connect a task to the runner, which may start later. Raises TimeoutError, with what was missing."""
    path = rendezvous_path(results, job)
    deadline = time.monotonic() + timeout_s
    reason = ""
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
            reason = (
                f"nobody answers at {', '.join(published['addresses'])}, port {published['port']}, as "
                f"{path} says"
            )
        time.sleep(RETRY_SECONDS)
    raise TimeoutError(reason)


def addresses() -> list[str]:
    """Addresses under which other machines may reach this one: its host name, then its IPv4 addresses,
    loopback last."""
    import psutil

    own_addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    return [socket.gethostname(), *sorted(own_addresses, key=lambda address: address.startswith("127."))]


def network_address() -> str:
    """This machine's address at the interface that the site has chosen for gloo; empty where it has chosen
    none."""
    import psutil

    chosen = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), [])
    return next((entry.address for entry in chosen if entry.family == socket.AF_INET), "")


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
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    try:
        connection = socket.create_connection((address, port), HANDSHAKE_SECONDS)
        keep_alive(connection)
    except OSError:
        return None
    lines = _Lines(connection)
    nonce = secrets.token_hex(16)
    with suppress(_Refused):
        lines.send(nonce)
        answer = None
        while answer is None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            answer = lines.take()
        other, _, proof = answer.partition(b" ")
        nonces = nonce.encode() + b" " + other
        content = json.dumps(hello)
        if _proves(proof, token, "runner", nonces):
            lines.send(_proof(token, "task", nonces, content.encode()), content)
            return Channel.over(connection)
    connection.close()
    return None


def _proof(token: bytes, who: str, nonces: bytes, content: bytes = b"") -> str:
    return hmac.new(
        token, b"\n".join((who.encode(), nonces, content)), hashlib.sha256
    ).hexdigest()  # no part has an end of line in it


def _proves(proof: bytes, token: bytes, who: str, nonces: bytes, content: bytes = b"") -> bool:
    return hmac.compare_digest(proof, _proof(token, who, nonces, content).encode())


def _look_again(folder: Path) -> None:
    """Change the folder, so that a network file system looks again: it remembers for a minute that a file was
    not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=f".{os.getpid()}"):
        pass
