"""Measures the work of a rank's host for the header of a call, by ranks of one machine, without any waiting.

    python -m benchmarks.cp.headers [--ranks 8] [--calls 5000]

The other ranks lie in this process, and have posted their headers before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from longca.cp.api.agreement import Agreement
from longca.cp.api.agreement_text import Header
from longca.cp.comm.headers import MAX_BYTES, SharedHeaders, file_bytes
from longca.cp.comm.shared_file import SHARED_MEMORY

CALL = (
    "mask causal_document of 65536 tokens (0123456789abcdef)\none sequence without a batch\n"
    "plan 0123456789ab (ulysses, contiguous sharding)"
)


class LoneComm:
    """As much of `Comm` as an agreement needs."""

    rank, timeout_s, can_release = 0, 60.0, True

    def __init__(self, world: int) -> None:
        self.world = world

    def abandon(self) -> None: ...


def call_us(world: int, num_calls: int) -> list[float]:
    """Microseconds of this thread for each call after the first, which alone waits."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else None) as folder:
        path = Path(folder) / "headers"
        path.write_bytes(bytes(file_bytes(world)))
        own, *others = (SharedHeaders(FileIO(str(path), "r+"), rank, world) for rank in range(world))
        comm: Any = LoneComm(world)
        with patch("longca.cp.api.agreement.open_headers", lambda comm: own):
            agreement = Agreement(comm, waits=False)
        samples = [_call_us(agreement, others, number) for number in range(1, num_calls + 2)]
        for headers in others:
            headers.close()
        agreement.close(is_failing=True)
    return samples[1:]


def _call_us(agreement: Agreement, others: Sequence[SharedHeaders], number: int) -> float:
    header = Header("forward", number, CALL, "", number == 1, None).packed(MAX_BYTES)
    for headers in others:
        headers.post(header)
    start_ns = time.thread_time_ns()
    agreement.begin("forward", CALL, series=CALL)
    with agreement.messages():
        pass
    agreement.end()
    elapsed_ns = time.thread_time_ns() - start_ns
    for headers in others:
        headers.poll()
    return elapsed_ns / 1e3


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.headers", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args(arguments)
    samples = call_us(options.ranks, options.calls)
    low, median, high = statistics.quantiles(samples, n=4)
    print(f"{options.ranks} ranks: {median:.1f} microseconds a call (quartiles {low:.1f} to {high:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
