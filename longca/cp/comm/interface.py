"""The network interface that ranks use: loopback where all of them are on one machine."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

GLOO = "GLOO_SOCKET_IFNAME"
LOOPBACK_NAMES = ("lo", "lo0")  # of Linux, of BSD and macOS


@contextmanager
def gloo_interface() -> Iterator[None]:
    """Have gloo listen at loopback alone for groups that are made in this block, if all ranks are on one
    machine. gloo takes the address of the host name otherwise, which others may reach.

    An interface that the site has chosen by `GLOO_SOCKET_IFNAME` stays.
    """
    names = [name for _, name in socket.if_nameindex() if name in LOOPBACK_NAMES]
    if GLOO in os.environ or not names or not on_one_machine(os.environ):
        yield
        return
    os.environ[GLOO] = names[0]
    try:
        yield
    finally:
        os.environ.pop(GLOO, None)


def on_one_machine(environ: Mapping[str, str]) -> bool:
    """True if the variables of torchrun, or of `env://`, say that all ranks are on this machine."""
    if "LOCAL_WORLD_SIZE" in environ:
        return environ["LOCAL_WORLD_SIZE"] == environ.get("WORLD_SIZE")
    return loopback_address(environ.get("MASTER_ADDR", "")) is not None


def local_store(environ: Mapping[str, str]) -> tuple[str, socket.socket | None] | None:
    """(URL of torch's store at loopback, socket of rank 0 that listens there), where MASTER_ADDR names
    loopback and nobody has made the store: torch's own would listen at all addresses. None where torch has to
    find it.

    Raises OSError if the port is taken.
    """
    address = loopback_address(environ["MASTER_ADDR"])
    if address is None or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    port = int(environ["MASTER_PORT"])
    listener = socket.create_server((address, port), backlog=512) if environ["RANK"] == "0" else None
    return f"tcp://{address}:{port}", listener


def loopback_address(host: str) -> str | None:
    """The IPv4 address of a host name that is this machine's loopback; None for other names."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return None
    return str(address) if address.is_loopback else None
