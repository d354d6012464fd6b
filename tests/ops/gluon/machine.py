"""Emulated SM: warp scheduler and in-flight asynchronous operations.

Warp-specialized partitions of all programs run in a random interleaving. Asynchronous operations complete
late or early, at random:

- A TMA load spoils its buffer when it starts, and fills it some turns later. A premature read, or a load into
    a buffer that is still read, gives NaN.
- A warp-group matmul reads its buffers when it starts, or only at the wait for it. Its result cannot be used
    before.
- Barriers report arrivals without a waiter; a deadlock ends with a list of all waiters.

Layouts of registers are not modelled, nor is time.
"""

import math
import random
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from tests.ops.gluon.values import OF_TORCH, SharedMemory, Tensor, flat


class Stuck(Exception):
    """Everybody waits."""


class World:
    """The partitions of all programs, which take turns, and what is under way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Condition()
        self.threads: list[Partition] = []
        self.turn: Partition | None = None
        self.under_way: list[Callable[[], None]] = []
        self.failed: BaseException | None = None

    def run(self, partitions: "list[Partition]") -> None:
        self.threads = list(partitions)
        for partition in partitions:
            partition.thread.start()
        with self.lock:
            self._next()
            while self.threads and self.failed is None:
                self.lock.wait()
        if self.failed is not None:
            raise self.failed
        while self.under_way:
            self.under_way.pop()()

    def _next(self) -> None:
        """Lets something asynchronous happen, perhaps, and gives the turn to somebody who can go on."""
        while True:
            ready = [
                partition
                for partition in self.threads
                if partition.blocked_by is None or partition.blocked_by()
            ]
            if self.under_way and (not ready or self.random.random() < 0.3):
                self.under_way.pop(self.random.randrange(len(self.under_way)))()
                continue
            if (
                self.threads and not ready and self.failed is None
            ):  # those that end because of it must not say it anew
                waiting = "; ".join(
                    f"{partition.name} for {partition.waits_for}" for partition in self.threads
                )
                self.failed = Stuck(f"everybody waits: {waiting}")
            self.turn = self.random.choice(ready) if ready else None
            self.lock.notify_all()
            return


class Partition:
    """Some warps of a program with a role."""

    current = threading.local()

    def __init__(
        self,
        world: World,
        program: "Program",
        name: str,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        num_warps: int,
    ) -> None:
        self.world = world
        self.program = program
        self.name = name
        self.num_threads = 32 * num_warps
        self.blocked_by: Callable[[], bool] | None = None
        self.waits_for = "its turn"
        self.matmuls: list[Matmul] = []
        self.reductions: list[Callable[[], None]] = []
        self.thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        Partition.current.it = self
        world = self.world
        try:
            with world.lock:
                self._await_turn()
            function(*arguments)
            assert not self.matmuls, f"{self.name} ends with matmuls under way"
        except BaseException as error:
            if world.failed is None:
                world.failed = error
        with world.lock:
            world.threads.remove(self)
            try:
                world._next()
            except BaseException as error:
                world.failed = world.failed or error
            world.lock.notify_all()

    def _await_turn(self) -> None:
        while self.world.turn is not self:
            if self.world.failed is not None:
                raise SystemExit
            self.world.lock.wait()

    def pause(self, until: Callable[[], bool] | None = None, what: str = "its turn") -> None:
        """Lets others go on, until something is true."""
        with self.world.lock:
            self.blocked_by = until
            self.waits_for = what
            self.world._next()
            self._await_turn()
            self.blocked_by = None


def me() -> Partition:
    return Partition.current.it


class Program:
    """One of the programs of a launch, and its barriers."""

    def __init__(self, number: int, num_programs: int) -> None:
        self.number = number
        self.num_programs = num_programs
        self.mbarriers: dict[tuple[int, int], MBarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.partitions: list[tuple[Callable[..., None], tuple[Any, ...], int]] = []
        self.memories: list[torch.Tensor] = []  # of barriers, which are told apart by them

    current: "Program"


class MBarrier:
    """A barrier in shared memory: a phase ends after so many arrivals and bytes."""

    def __init__(self, count: int, number: int) -> None:
        self.count = count
        self.pending = count
        self.bytes = 0
        self.phase = 0
        self.number = number

    def __str__(self) -> str:
        return (
            f"mbarrier {self.number} in phase {self.phase}, with {self.pending} arrivals and "
            f"{self.bytes} bytes to come"
        )

    def arrive(self, count: int, more_bytes: int = 0) -> None:
        self.pending -= count
        self.bytes += more_bytes
        assert self.pending >= 0, "more arrivals at a barrier than it counts"
        self.check()

    def check(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.count, self.phase + 1


class NamedBarrier:
    """A barrier of the hardware: a round ends when so many threads have arrived."""

    def __init__(self) -> None:
        self.arrived = 0
        self.rounds = 0

    def arrive(self, threads: int, total: int) -> None:
        self.arrived += threads
        assert self.arrived <= total, "more threads at a named barrier than meet there"
        if self.arrived == total:
            self.arrived, self.rounds = 0, self.rounds + 1


class Matmul:
    """A matmul under way: its accumulator, until it is waited for."""

    def __init__(self, a: Any, b: SharedMemory, acc: Any, use_acc: bool) -> None:
        self.a = a
        self.b = b
        self.acc = acc
        self.use_acc = use_acc
        self.value = None
        self.operands = (
            self._read() if me().world.random.random() < 0.5 or not isinstance(b, SharedMemory) else None
        )
        self.shape = [a.shape[0], b.shape[1]]

    def _read(self) -> tuple[torch.Tensor, torch.Tensor]:
        a = self.a.load().x if isinstance(self.a, SharedMemory) else self.a.x
        return a.float(), self.b.load().x.float()

    def finish(self) -> None:
        a, b = self.operands or self._read()
        before = self.acc.value if isinstance(self.acc, Matmul) else self.acc
        self.value = Tensor(a @ b + (before.x if self.use_acc else 0))


class Descriptor:
    """A tensor as TMA sees it, in boxes. What is outside of it is 0."""

    def __init__(
        self, base: torch.Tensor, shape: list[int], strides: list[int], block_shape: list[int], layout: Any
    ) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.box = list(block_shape)
        self.layout = layout
        self.dtype = OF_TORCH[base.dtype]
        self.block_type = types.SimpleNamespace(
            shape=self.box, nbytes=math.prod(self.box) * base.element_size()
        )

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, block_shape: list[int], layout: Any) -> "Descriptor":
        return cls(tensor, list(tensor.shape), list(tensor.stride()), block_shape, layout)

    def box_at(self, coordinates: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(offsets of a box, which of them are inside)"""
        first = sum(c * s for c, s in zip(coordinates, self.strides, strict=True)) * self.base.element_size()
        assert first % 16 == 0, f"a box at {coordinates} begins {first} bytes from the start"
        axes = [torch.arange(c, c + size) for c, size in zip(coordinates, self.box, strict=True)]
        grids = torch.meshgrid(*axes, indexing="ij")
        inside = torch.stack([(g >= 0) & (g < n) for g, n in zip(grids, self.shape, strict=True)]).all(0)
        return sum(g * s for g, s in zip(grids, self.strides, strict=True)), inside

    def read(self, box: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        places, inside = box
        return torch.where(inside, flat(self.base)[torch.where(inside, places, 0)], 0)
