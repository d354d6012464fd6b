"""Runs a benchmark on several ranks, started here or by torchrun, and times calls that all ranks make
together."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longca.cp.comm.backend import Comm
from longca.cp.comm.process_group import TORCHRUN
from longca.lab.bench.measure.timer import time_calls
from longca.lab.studies import Measure

TIMEOUT_S = 120.0


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    num_gpus = torch.cuda.device_count()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if num_gpus else "cpu")
    parser.add_argument("--ranks", type=int, default=num_gpus or 2)


def run_on_ranks(work: Callable[[Comm, argparse.Namespace], object], options: argparse.Namespace) -> None:
    """Runs `work` on every rank; under torchrun this process is one of them. `options` has at least those of
    `add_rank_options`."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if all(name in os.environ for name in TORCHRUN):
        _close_after(work, Comm.from_torchrun(options.device, TIMEOUT_S), options)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _on_rank, (work, options, (Path(folder) / "meeting").as_uri()), nprocs=options.ranks
        )


def _on_rank(
    rank: int, work: Callable[[Comm, argparse.Namespace], object], options: argparse.Namespace, meeting: str
) -> None:
    _close_after(work, Comm(rank, options.ranks, rank, meeting, options.device, TIMEOUT_S), options)


def _close_after(
    work: Callable[[Comm, argparse.Namespace], object], comm: Comm, options: argparse.Namespace
) -> None:
    work(comm, options)
    comm.close()


def median_ms(comm: Comm, call: Callable[[], Any], measure: Measure) -> float:
    """Returns the median over calls, each as long as its slowest rank. All ranks call it together."""
    samples = time_calls(call, measure, comm.device, before_each=comm.barrier, agree=comm.largest)
    return statistics.median(map(max, zip(*comm.gather(samples.time_ms[0]), strict=True)))
