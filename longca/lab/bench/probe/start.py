"""The ranks of a probe: those of torchrun, or processes that are started here and tell their result in a
file."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import UserError
from longca.cp.comm.process_group import TORCHRUN

if TYPE_CHECKING:
    from longca.lab.bench.probe.profile import ProbeResult

USUAL_RANKS = 2  # on a CPU


def run_on_ranks(seconds: float, ranks: int | None, device: str, timeout_s: float) -> ProbeResult | None:
    """Probes on all ranks. None on ranks of torchrun that are not the first.

    Args:
        ranks: that are started here; all GPUs, or two on a CPU, if not given.
        device: auto, cpu or cuda.

    Raises:
        UserError: there is no such device, or a rank failed.
    """
    import torch
    from torch.multiprocessing.spawn import spawn

    from longca.cp.comm.backend import Comm
    from longca.lab.bench.probe.measuring import probe

    count = torch.cuda.device_count()
    device_type = ("cuda" if count else "cpu") if device == "auto" else device
    if device_type == "cuda" and not count:
        raise UserError("There is no GPU here", todo="Take --device cpu")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if all(name in os.environ for name in TORCHRUN):
        comm = Comm.from_torchrun(device_type, timeout_s)
        result = probe(comm, seconds)
        rank = comm.rank
        comm.close()
        return result if rank == 0 else None
    ranks = ranks or (count if device_type == "cuda" else USUAL_RANKS)
    if device_type == "cuda" and ranks > count:
        raise UserError(
            f"{ranks} ranks need {ranks} GPUs",
            why=f"there are {count} here",
            todo="Give fewer, or start more with torchrun",
        )
    os.environ.setdefault(
        "PYTHONSAFEPATH", "1"
    )  # of the ranks: a user's `random.py` in the working folder must not stand for Python's
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        answer = Path(folder) / "result"
        try:
            spawn(_on_rank, (ranks, meeting, device_type, timeout_s, seconds, str(answer)), nprocs=ranks)
        except Exception as error:  # whatever a rank raised, or the signal that ended it
            printed = [line for line in str(error).strip().splitlines() if line.strip()]
            raise UserError(
                "A rank of the probe failed",
                why=printed[-1].strip() if printed else type(error).__name__,
                todo="`longca doctor` tells what works here",
            ) from error
        return pickle.loads(answer.read_bytes())


def _on_rank(
    rank: int, world: int, meeting: str, device_type: str, timeout_s: float, seconds: float, answer: str
) -> None:
    from longca.cp.comm.backend import Comm
    from longca.lab.bench.probe.measuring import probe

    comm = Comm(rank, world, rank, meeting, device_type, timeout_s)
    result = probe(comm, seconds)
    if rank == 0:
        Path(answer).write_bytes(pickle.dumps(result))
    comm.close()
