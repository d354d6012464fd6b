"""The files of the package that a reader enters on three ways: those whose functions are called. Bodies of
modules and classes do not count, and neither does what only prepares the way.

    python -m benchmarks.files_entered           counts
    python -m benchmarks.files_entered --list    and the files, by package

- one dense cell: `naive` under a causal mask is prepared, checked and timed on the CPU
- one ring message: a planned ring of two ranks, from the mask to the output of one forward, on rank 0
- one advice: the ranking of `longca.advise` for 8 GPUs
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType

import torch
import torch.distributed
import torch.multiprocessing

import longca

PACKAGE = Path(longca.__file__).resolve().parent
SEQLEN = 256
HEADS = (4, 2)
HEAD_DIM = 32
BODIES = ("<module>",)
ENTERED = "entered.json"


@contextmanager
def recorded(entered: set[str]) -> Iterator[None]:
    """Adds the files of the package whose functions are called meanwhile, in any thread."""
    ends = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in ends:
            path = Path(code.co_filename)
            is_body = code.co_name in BODIES or not code.co_flags & 0x2  # a class's body has no fast locals
            ends[code] = (
                None if is_body or not path.is_relative_to(PACKAGE) else path.relative_to(PACKAGE).as_posix()
            )

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    entered.update(path for path in ends.values() if path is not None)


def dense_cell() -> set[str]:
    from longca.lab.bench.measure.kernel import measure_kernel
    from longca.lab.studies import Cell, Measure

    cell = Cell(
        kind="kernel",
        kernel="naive",
        mask="causal",
        seqlen=SEQLEN,
        num_q_heads=HEADS[0],
        num_kv_heads=HEADS[1],
        head_dim=HEAD_DIM,
        dtype="fp32",
        direction="fwd",
    )
    entered: set[str] = set()
    with recorded(entered):
        result = measure_kernel(cell, Measure.fixed(repeats=3), torch.device("cpu"))
    assert result.outcome.status == "ok", result.outcome
    return entered


def ring_message() -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_ring_rank, (Path(folder),), nprocs=2)
        return set(json.loads((Path(folder) / ENTERED).read_text(encoding="utf-8")))


def _ring_rank(rank: int, folder: Path) -> None:
    address = (folder / "store").as_uri()
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    num_q_heads, num_kv_heads = HEADS
    entered: set[str] = set()
    with recorded(entered):
        mask = longca.build_mask("causal", seqlen=SEQLEN)
        cp = longca.context_parallel(
            mask,
            strategy="ring_p2p",
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=HEAD_DIM,
            backward=False,
        )
        torch.manual_seed(0)  # ranks share one sequence
        q, k, v = (torch.randn(SEQLEN, num, HEAD_DIM) for num in (num_q_heads, num_kv_heads, num_kv_heads))
        with torch.no_grad():
            cp.attention(cp.shard(q), cp.shard(k), cp.shard(v))
    if rank == 0:
        (folder / ENTERED).write_text(json.dumps(sorted(entered)), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def advice() -> set[str]:
    mask = longca.build_mask("causal", seqlen="64K")
    entered: set[str] = set()
    with recorded(entered):
        longca.advise(mask, gpus=8, num_q_heads=64, num_kv_heads=8, head_dim=128)
    return entered


WAYS: dict[str, Callable[[], set[str]]] = {
    "one dense cell": dense_cell,
    "one ring message": ring_message,
    "one advice": advice,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The files that are entered on three ways through the package."
    )
    parser.add_argument("--list", action="store_true", help="print the files, too")
    shown = parser.parse_args()
    for name, way in WAYS.items():
        entered = sorted(way())
        print(f"{name}: {len(entered)} files")
        for folder, files in groupby(entered, key=lambda path: path.rpartition("/")[0]) if shown.list else ():
            print(f"  {folder}: {' '.join(Path(path).stem for path in files)}")


if __name__ == "__main__":
    main()
