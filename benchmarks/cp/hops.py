"""Times one message to the next rank, by NCCL and by copy engines, and what it costs a matmul that it is
overlapped with.

    python -m benchmarks.cp.hops [--ranks 2] [--megabytes 4,32,128]
    python -m benchmarks.cp.hops --device cpu --ranks 2 --megabytes 1

Every rank sends to the next and receives from the one before, GB/s each way; the slowest rank counts.
Messages are checked on arrival.
"beside" is how much longer three large matmuls take while a message is under way than without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.common.text import machine
from benchmarks.cp.ranks import add_rank_options, median_ms, run_on_ranks
from longca.cp.comm.backend import Comm
from longca.lab.studies import Measure
from tools.table import Table, add_options

MEASURE = Measure.fixed(warmup=3, repeats=20, max_seconds=2.0)
WAYS = ("nccl", "symmetric")
COLUMNS = ("messages", "MB", "ms", "GB/s", "beside", "how")
MATMUL_SIZE = {"cuda": 8192, "cpu": 64}
BUFFER = "hop"


class RingMessage:
    """A message of `num_bytes` bytes to the next rank."""

    def __init__(self, comm: Comm, num_bytes: int) -> None:
        self._comm = comm
        self._buffers = comm.receive_buffers()
        self._buffers.reserve(BUFFER, num_bytes)
        self._stream = comm.stream(BUFFER)
        self._buffers.allocate()
        self._message = torch.full((num_bytes,), comm.rank, dtype=torch.uint8, device=comm.device)

    def __call__(self, beside: Callable[[], object] = lambda: None) -> torch.Tensor:
        comm = self._comm
        offset = self._buffers.offset(BUFFER, 0)
        received = self._buffers.empty(BUFFER, self._message.shape, self._message)
        messages = self._stream.post(
            [((comm.rank + 1) % comm.world, self._message, offset)],
            [((comm.rank - 1) % comm.world, received)],
        )
        beside()
        messages.wait()
        return received


def lines(comm: Comm, megabytes: Sequence[float]) -> list[dict[str, Any]]:
    size = MATMUL_SIZE[comm.device.type]
    matrix = torch.randn(size, size, device=comm.device, dtype=torch.bfloat16)

    def matmuls() -> None:
        for _ in range(3):
            torch.mm(matrix, matrix)

    alone_ms = median_ms(comm, matmuls, MEASURE)
    records = []
    for messages in WAYS:
        comm.use(messages)
        for size_mb in megabytes:
            hop = RingMessage(comm, int(size_mb * 1e6))
            if any(comm.gather(not bool((hop() == (comm.rank - 1) % comm.world).all()))):
                raise RuntimeError(f"{messages}: a message of {size_mb:g} MB has arrived damaged")
            hop_ms = median_ms(comm, hop, MEASURE)
            both_ms = median_ms(comm, lambda hop=hop: hop(matmuls), MEASURE)
            records.append(
                {
                    "messages": messages,
                    "megabytes": size_mb,
                    "time_ms": hop_ms,
                    "gb_per_s": size_mb / hop_ms,
                    "beside_percent": 100 * (both_ms / alone_ms - 1),
                    "how": comm.messages_note,
                }
            )
            del hop
    return records


def report(comm: Comm, options: argparse.Namespace) -> None:
    records = lines(comm, options.megabytes)
    if comm.rank == 0:
        rows = tuple(
            (
                line["messages"],
                f"{line['megabytes']:g}",
                f"{line['time_ms']:#.3g}",
                f"{line['gb_per_s']:#.3g}",
                f"{line['beside_percent']:+.0f} %",
                line["how"],
            )
            for line in records
        )
        Table(
            "hops",
            f"{comm.world} ranks; {machine(comm.device)}.",
            COLUMNS,
            rows,
            tuple(records),
            ("messages", "how"),
        ).publish(options)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.hops", description=str(__doc__).partition("\n")[0]
    )
    add_rank_options(parser)
    parser.add_argument(
        "--megabytes", type=lambda text: [float(size) for size in text.split(",")], default=(4.0, 32.0, 128.0)
    )
    add_options(parser)
    run_on_ranks(report, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
