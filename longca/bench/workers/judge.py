"""The judge's process: it judges what workers send, and tells the runner. No code of a kernel runs here.

`python -m longca.bench.workers.judge` is started by the runner once a run. The runner names each cell to it, with a socket to the
worker of rank 0, and asks for the verdict in the end. What a worker says of its own result is never believed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from longca.bench.workers.channel import Channel, Message
from longca.bench.workers.process import STACK_SIGNAL, ending_signals
from longca.bench.workers.worker import die_with


def main() -> None:
    options = _options()
    die_with(options.parent)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=False)
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)  # the runner reacts, and ends it
    channel = Channel(options.reader, options.writer)
    door = socket.socket(fileno=options.door)
    gc.disable()
    from longca.bench.workers.court import Court  # imports torch: seconds

    gc.freeze()
    gc.enable()
    court = Court(options.threads)
    workers: dict[int, socket.socket] = {}
    while True:
        sources: list[Any] = [channel, *workers.values()]
        ready, _, _ = select.select(sources, [], [])
        for number, worker in list(workers.items()):
            if worker in ready and not court.serve(worker):
                workers.pop(number).close()
        if channel in ready:
            try:
                messages = channel.receive()
            except EOFError:
                return
            for message in messages:
                if message["do"] == "exit":
                    return
                _obey(message, court, workers, door, channel)


def _obey(message: Message, court: Any, workers: dict[int, socket.socket], door: socket.socket, channel: Channel) -> None:
    if message["do"] == "meet":
        _, [descriptor], _, _ = socket.recv_fds(door, 1, 1)
        for number in [number for number in workers if number not in message["others"]]:
            workers.pop(number).close()
        workers[message["worker"]] = socket.socket(fileno=descriptor)
        return
    if message["do"] == "verdict":  # all that the worker has sent is heard first
        worker = workers.get(message["worker"])
        while worker is not None and select.select([worker], [], [], 0)[0]:
            if not court.serve(worker):
                workers.pop(message["worker"]).close()
                break
    with suppress(EOFError):
        channel.send(getattr(court, message["do"])(message))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("reader", "writer", "door", "parent", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
