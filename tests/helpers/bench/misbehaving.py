"""Plug-in kernels and strategies of one file each that do what goes wrong in a night of measuring."""

from pathlib import Path

from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure

MEASURE = Measure.fixed(warmup=0, repeats=3, max_seconds=0.2, timeout_s=60.0)

HOARD_BYTES = 200_000_000

SCRIBBLE = """import contextlib, os
        for file in {files}:
            with contextlib.suppress(OSError): os.write(file, b'no message\\n')"""
KERNELS = {
    "quick": "",
    "sleeper": "import time; time.sleep(1e6)",
    "quitter": "import os; print('last words', flush=True); os._exit(3)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "crasher": "import ctypes; ctypes.string_at(0)",
    "raiser": "print('said before'); raise RuntimeError('boom')",
    "hungry": "raise MemoryError",
    "orphaner": (
        "import os, time; print(f'child {pid}' if (pid := os.fork()) else time.sleep(1e6), "
        "flush=True); os._exit(1)"
    ),
    "escapee": (
        "import os, time; print(f'child {pid}' if (pid := os.fork()) else os.setsid() or "
        "time.sleep(600), flush=True)"
    ),
    "scribbler": SCRIBBLE.format(files="range(3, 1024)"),
    "small_scribbler": SCRIBBLE.format(files="range(3, 64)"),
    "sticky": "import torch; torch.ones = None; raise RuntimeError('sticky')",
    "slow": "import time; time.sleep(0.3)",
}
STRATEGIES = {  # only rank 1 misbehaves
    "rank_killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "rank_raises": "raise ValueError('no plan')",
    "rank_sleeps": "import time; time.sleep(1e6)",
    "rank_hungry": "raise MemoryError",
    "rank_hoards": f"import torch; prepared.hoard = [prepared, torch.ones({HOARD_BYTES}, dtype=torch.uint8)]",
}
MIDWAY = {  # as a rank's local kernel: what rank 1 does in a call, while its peers wait for its next message
    "midway_hungry": "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')",
    "midway_raises": "raise KeyError('no key')",
    "midway_sleeps": "time.sleep(1e6)",
    "midway_killed_while_timed": "next(calls) > 2 and os.kill(os.getpid(), signal.SIGKILL)",
}
PLAYERS = {  # in a play-off: what happens in a timed call, or where another is prepared beside it
    "play_raises": "next(calls) > 5 and fail(KeyError('no key'))",
    "play_hungry": "next(calls) > 5 and fail(MemoryError())",
    "play_killed": "next(calls) > 5 and os.kill(os.getpid(), signal.SIGKILL)",
    "play_sleeps": "next(calls) > 5 and time.sleep(1e6)",
    "play_wrong": "next(calls) > 1 and factors.append(0.5)",
    "room_a": "make_room()",
    "room_b": "make_room()",
    "room_c": "make_room()",
}
PLAYER = """
import itertools, os, signal, sys, time, weakref
from longca.kernels.backends.naive import Naive, NaivePrepared
from longca.kernels.contract import Forward
live = sys.__dict__.setdefault("players_for_tests", weakref.WeakSet())
def fail(error):
    raise error
class Prepared(NaivePrepared):
    def forward(self, q, k, v):
        calls, factors = self.__dict__.setdefault("calls", itertools.count(1)), []
        make_room = lambda: len(live) > 2 and fail(MemoryError())
        live.add(self)
        {what}
        found = super().forward(q, k, v)
        return Forward(found.out * factors[0], found.lse) if factors else found
class Player(Naive):
    def prepare(self, problem):
        return Prepared(problem)
"""
KERNEL = """
from longca.kernels.backends.naive import Naive
class Misbehaving(Naive):
    def prepare(self, problem):
        {what}
        return super().prepare(problem)
"""
MIDWAY_KERNEL = """
import itertools, os, signal, time, torch, torch.distributed
from longca.kernels.backends.naive import Naive, NaivePrepared
class Prepared(NaivePrepared):
    def forward(self, q, k, v):
        calls = self.__dict__.setdefault("calls", itertools.count(1))
        if torch.distributed.get_rank() == 1:
            {what}
        return super().forward(q, k, v)
class Misbehaving(Naive):
    def prepare(self, problem):
        return Prepared(problem)
"""
ORDERS = {  # of the blocks of keys that add to dq, which is float32, as atomics or turns let them
    "random_order": "torch.randperm(16).tolist()",
    "fixed_order": "range(16)",
}
ORDERED_KERNEL = """
import torch
from longca.kernels.backends.naive import Naive, NaivePrepared
class Prepared(NaivePrepared):
    def backward(self, forward, dout):
        q, k, v, out, probs = forward.saved
        _, dk, dv = super().backward(forward, dout)
        dscores = (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * probs * self.problem.scale
        blocks = [block @ keys for block, keys in zip(dscores.chunk(16, -1), k.chunk(16, -2), strict=True)]
        dq = torch.zeros_like(q)
        for number in {what}:
            dq += blocks[number]
        return dq, dk, dv
class Ordered(Naive):
    def prepare(self, problem):
        return Prepared(problem)
"""
STRATEGY = """
from longca.cp.strategies.ulysses import Ulysses
class Misbehaving(Ulysses):
    def prepare(self, problem, kernel, comm):
        prepared = super().prepare(problem, kernel, comm)
        if comm.rank == 1:
            {what}
        return prepared
"""


def write_plugins(folder: Path) -> Path:
    """All of them below `folder`, which is then one for LONGCA_PLUGINS."""
    files = (
        ("kernels", KERNEL, KERNELS),
        ("kernels", PLAYER, PLAYERS),
        ("kernels", MIDWAY_KERNEL, MIDWAY),
        ("kernels", ORDERED_KERNEL, ORDERS),
        ("strategies", STRATEGY, STRATEGIES),
    )
    for kind, template, bodies in files:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, what in bodies.items():
            (folder / kind / f"{name}.py").write_text(template.format(what=what or "pass"))
    return folder


def kernel_cell(kernel: str, seqlen: int = 32, **fields: object) -> Cell:
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": "causal",
            "seqlen": seqlen,
            "num_q_heads": 2,
            "num_kv_heads": 1,
            "head_dim": 8,
            "dtype": "fp32",
            "direction": "fwd",
            **fields,
        }
    )


def cp_cell(strategy: str, world: int = 2, kernel: str = "naive", **fields: object) -> Cell:
    return kernel_cell(kernel, kind="cp", strategy=strategy, world=world, **{"num_kv_heads": 2, **fields})
