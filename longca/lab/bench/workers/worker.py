"""The worker process of one rank, driven over two pipes or a socket. Its task starts it, as
`longca.core.children.start` says."""

import argparse
import gc
import os

from longca.lab.bench.workers.channel import Channel, out_of_reach
from longca.lab.bench.workers.launch import RankPlacement
from longca.lab.bench.workers.process import obey_parent

NCCL = {
    # a broken connection ends the process; otherwise a collective would wait on the GPU for ever
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    # … also where the thread that looks for broken connections hangs itself,
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60",  # … after so long
    # dumps of past collectives delay the end by up to a minute, and nobody reads them
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""settings that make NCCL give up; in any case the runner ends all ranks when one has failed or the cell's
time is over"""


def main() -> None:
    options = _options()
    obey_parent(options.parent)
    for name, value in NCCL.items():
        os.environ.setdefault(name, value)
    channel = Channel.of_worker(options.reader, options.writer)
    judge = None if options.judge is None else out_of_reach(options.judge)

    gc.disable()  # no import leaves garbage: looking for it is a seventh of the import's time
    from longca.lab.bench.measure.environment import NoDevice
    from longca.lab.bench.workers.session import Session  # imports torch: seconds

    gc.freeze()
    gc.enable()
    placement = RankPlacement(options.rank, options.world, options.local_rank, options.rendezvous)
    try:
        session = Session(placement, options.device, options.threads, options.listener, judge)
    except NoDevice as error:
        channel.send({"refused": str(error)})
        return
    channel.send({"found": session.device.type})
    for request in channel:
        if request["do"] == "exit":
            break
        if request["do"] == "measure":
            session.measure(request, channel.send)
        else:
            channel.send(getattr(session, request["do"])(request))
    session.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("rank", "world", "local-rank", "threads", "reader", "writer", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("rendezvous", "device"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--listener", type=int, help="for rank 0: the socket that listens at the rendezvous URL"
    )
    parser.add_argument("--judge", type=int, help="for rank 0: the socket to the judge")
    return parser.parse_args()
