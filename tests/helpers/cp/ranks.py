"""Real ranks: processes that talk over gloo. They are forked from a server that has imported torch once."""

import faulthandler
import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

import longca
from longca.cp.comm.backend import Comm
from tests.helpers.forked import start_server
from tests.helpers.support import ROOT

Job = Callable[..., Any]
STANDS_AFTER = 0.4
"""of the timeout: a rank on a GPU then writes the stacks of its threads to its stderr"""


def on_ranks(
    job: Job, world: int, *arguments: object, timeout_s: float = 60.0, device_type: str = "cpu"
) -> list[Any]:
    """job(comm, *arguments) on every rank → results by rank. The job is a function of a module."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start_server()
        torch.multiprocessing.start_processes(
            _rank,
            (world, folder, timeout_s, device_type, dict(os.environ), job, arguments),
            nprocs=world,
            start_method="forkserver" if device_type == "cpu" else "spawn",
        )
        return [torch.load(_result(folder, rank), weights_only=False) for rank in range(world)]


def _rank(
    rank: int,
    world: int,
    folder: Path,
    timeout_s: float,
    device_type: str,
    environ: dict[str, str],
    job: Job,
    arguments: tuple[object, ...],
) -> None:
    assert Path(longca.__file__).is_relative_to(ROOT), f"ranks run {longca.__file__}"
    os.environ.update(environ)  # a server has that of its start
    torch.set_num_threads(1)
    # what is imported stays: memory is then freed quickly between cells, as in the project's own workers
    gc.freeze()
    if device_type != "cpu":  # nothing ends a rank that waits on a GPU: its log says where it stands
        faulthandler.dump_traceback_later(STANDS_AFTER * timeout_s)
    comm = Comm(rank, world, rank, (folder / "rendezvous").as_uri(), device_type, timeout_s)
    torch.save(job(comm, *arguments), _result(folder, rank))
    comm.close()
    faulthandler.cancel_dump_traceback_later()


def _result(folder: Path, rank: int) -> Path:
    return folder / f"result{rank}.pt"
