"""The measuring process: one rank, driven over two pipes. `python -m longca.bench.worker`, started by `longca.bench.launch`."""

import argparse
import ctypes
import faulthandler
import os
import signal
import sys

from longca.bench.channel import Channel
from longca.bench.launch import Place

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def main() -> None:
    options = _options()
    die_with(options.parent)
    faulthandler.enable()
    for descriptor in (options.reader, options.writer):
        os.set_inheritable(descriptor, False)  # a grandchild that outlives this process must not hold the pipes open
    channel = Channel(options.reader, options.writer)

    from longca.bench.session import NoDevice, Session  # imports torch: seconds

    place = Place(options.rank, options.world, options.local_rank, options.rendezvous)
    try:
        session = Session(place, options.device, options.threads)
    except NoDevice as error:
        channel.send({"refused": str(error)})
        return
    channel.send({"ready": session.facts})
    for request in channel:
        if request["do"] == "exit":
            break
        channel.send(session.ping() if request["do"] == "ping" else session.measure(request))
    session.close()


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies, however it dies.

    Where there is no such call (not Linux), the end of the pipe ends it after the cell in flight.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("rank", "world", "local-rank", "threads", "reader", "writer", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("rendezvous", "device"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
