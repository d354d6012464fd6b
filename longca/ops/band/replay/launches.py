"""The launches of band attention's calls: recorded at the first call, replayed with other addresses
afterwards.

A call starts one to seven kernels. Their grids, scalars, table addresses, TMA boxes and builds depend only on
the plan and on the sizes, strides and dtypes of the inputs. So the first call runs normally, with a
`Recorder` that records every launch and every allocation. Later, the `Recording` passes the same arguments
with the new addresses to Triton's launchers:

    first call      checks → launch functions → Triton's JIT → launcher      noted by a Recorder
    later calls     addresses ───────────────────────────────→ launcher      by Recording.replay

TMA descriptors are cached by address, since allocators reuse memory, and creating them is a third of the host
time.

Triton has separate builds of a kernel for addresses that are multiples of 16 bytes. A recording uses these
builds and does not replay a call with an unaligned address, which is then dispatched normally.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longca.ops.band.replay.launcher import RecordedLaunch, unknown_launchers

ALIGNMENT = 16  # bytes: Triton's builds depend on whether an address is a multiple of it
MOST_RECORDINGS = 64  # of a plan
COUNTERS = 1024
COUNTER_BYTES = 16
MOST_STREAMS = 8
PIECE = 64  # numbers: pieces of an allocation begin at multiples of it
NEW = "new"
ZEROS = "zeros"
# of all kernels: the default up to Triton 3.9, which warns if it is not set
OPTIONS = {"enable_fp_fusion": True}


class Launches:
    """Starts kernels and allocates their memory immediately, without recording."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def multiprocessors(self) -> int:
        """Of the device."""
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def empty(self, *shape: int) -> Tensor:
        """float32, contiguous."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """float32, contiguous."""
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    def counter(self) -> Tensor:
        """A counter, int32 (1,), 0, which one kernel may change."""
        return torch.zeros(1, dtype=torch.int32, device=self.device)

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Allocations inside of this context are not used after it."""
        yield

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> None:
        """Starts a kernel; arguments are in the order of its parameters."""
        kernel[grid](*args, **OPTIONS, **options)


class Recorder(Launches):
    """Does the same, and records it."""

    def __init__(self, inputs: Sequence[Tensor], tables: Iterable[Tensor]) -> None:
        """
        Args:
            inputs: distinct tensor objects whose addresses change between calls.
            tables: tensors with constant addresses.
        """
        super().__init__(inputs[0].device)
        self._inputs = {id(x): index for index, x in enumerate(inputs)}
        self._tables = {id(table): table for table in tables}
        # address of the storage → allocation, offset in bytes, and the tensor
        self._buffers: dict[int, tuple[int, int, Tensor]] = {}
        self._steps: list[Any] = []
        self._stages: list[dict[str, _Allocation]] = [{}]
        self._next = len(inputs)  # place of the next allocation among all addresses
        self._whole = unknown_launchers() is None

    def recording(self) -> Recording | None:
        """The recorded call; None if it cannot be repeated."""
        return (
            Recording(self.device, self._next, self._steps, list(self._tables.values()))
            if self._whole
            else None
        )

    def empty(self, *shape: int) -> Tensor:
        return self._piece(NEW, super().empty(*shape))

    def zeros(self, *shape: int) -> Tensor:
        return self._piece(ZEROS, super().zeros(*shape))

    def counter(self) -> Tensor:
        return self._note(super().counter(), _Counter(self._place(), self.device))

    @contextmanager
    def stage(self) -> Iterator[None]:
        self._stages.append({})
        before = set(self._buffers)
        yield
        self._steps += [_Free(allocation.place) for allocation in self._stages.pop().values()]
        for address in self._buffers.keys() - before:
            del self._buffers[address]

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> None:
        build = kernel[grid](*args, **OPTIONS, **options)
        changing = []
        constants = list(args)
        for index, arg in enumerate(args):
            base = getattr(arg, "base", arg)
            if isinstance(base, Tensor):
                source = self._source_of(base)
                self._whole &= id(base) not in self._inputs or base.data_ptr() % ALIGNMENT == 0
                constants[index] = source[1]
                if source[0] >= 0:
                    changing.append((index, *source, None if base is arg else arg))
        if build is None:  # by the interpreter
            self._whole = False
        else:
            self._steps.append(RecordedLaunch(build, grid, constants, changing))

    def _source_of(self, x: Tensor) -> tuple[int, int]:
        """(place among the addresses, offset in bytes), or (−1, address) of a table and of nothing."""
        if id(x) in self._inputs:
            return self._inputs[id(x)], 0
        if id(x) in self._tables or x.numel() == 0:
            return -1, x.data_ptr()
        # a KeyError means that it was not allocated by the methods above
        index, offset, buffer = self._buffers[x.untyped_storage().data_ptr()]
        return index, offset + x.data_ptr() - buffer.data_ptr()

    def _piece(self, kind: str, x: Tensor) -> Tensor:
        """Records a part of the stage's allocation of this kind."""
        if x.numel() == 0:
            return x
        stage = self._stages[-1]
        if kind not in stage:
            stage[kind] = _Allocation(self._place(), kind, self.device)
            self._steps.append(stage[kind])
        return self._note(x, stage[kind])

    def _note(self, x: Tensor, step: _Allocation | _Counter) -> Tensor:
        if isinstance(step, _Allocation):
            offset = step.add(x.numel())
        else:
            offset = 0
            self._steps.append(step)
        self._buffers[x.untyped_storage().data_ptr()] = step.place, offset, x
        return x

    def _place(self) -> int:
        self._next += 1
        return self._next - 1


class Recording:
    """The launches of one call, for inputs of known sizes, strides and dtypes."""

    def __init__(
        self, device: torch.device, num_addresses: int, steps: Sequence[Any], kept: Sequence[Tensor]
    ) -> None:
        from triton import knobs
        from triton.runtime import driver

        self._driver = driver
        self._hooks = knobs.runtime
        self._device = device
        self._num_addresses = num_addresses
        self._steps = steps
        self._kept = kept  # their addresses are in the steps

    def replay(self, inputs: Sequence[Tensor], counters: Counters) -> bool:
        """Replays the call with other inputs in the order of the recorded ones. Returns False, and starts
        nothing, if it cannot."""
        addresses = [x.data_ptr() for x in inputs]
        bits = 0
        for address in addresses:
            bits |= address
        if bits % ALIGNMENT or self._hooked():
            return False
        active: Any = self._driver.active
        index = self._device.index
        if index is not None and index != active.get_current_device():
            with torch.cuda.device(index):
                return self.replay(inputs, counters)
        run = _Run(addresses, self._num_addresses, active.get_current_stream(index or 0), counters)
        for step in self._steps:
            step(run)
        return True

    def _hooked(self) -> bool:
        """True if launches are hooked, for example by a profiler: Triton must then start kernels itself."""
        hooks = self._hooks.launch_enter_hook, self._hooks.launch_exit_hook
        return any(hook is not None and getattr(hook, "calls", True) for hook in hooks)


class Calls:
    """The recordings of a plan's calls by their keys. Beyond `MOST_RECORDINGS`, the oldest one is dropped."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, Recording] = {}
        self.identity = object()
        """identifies the plan in keys of other plans; unique as long as a key contains it"""
        self.counters = Counters()

    def __reduce__(self) -> tuple[type[Calls], tuple[()]]:
        return Calls, ()  # a copy of a plan records its own

    def __len__(self) -> int:
        return len(self._recordings)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._recordings

    def replay(self, key: Hashable, inputs: Sequence[Tensor]) -> bool:
        """Replays the call that was recorded under this key. Returns False if there is none, or if it cannot
        be replayed with these addresses."""
        recording = self._recordings.get(key)
        return recording is not None and recording.replay(inputs, self.counters)

    def start(
        self,
        key: Hashable | None,
        inputs: Sequence[Tensor],
        tables: Iterable[Tensor],
        call: Callable[..., None],
    ) -> None:
        """Runs a call normally, and records it under this key, unless the key is None or already recorded.

        Args:
            call: call(launches, *inputs). All its device work goes through the launches.
        """
        if key is None or key in self._recordings:
            call(Launches(inputs[0].device), *inputs)
            return
        inputs = [x.detach() for x in inputs]  # distinct objects
        recorder = Recorder(inputs, tables)
        call(recorder, *inputs)
        recording = recorder.recording()
        if recording is not None:
            while len(self._recordings) >= MOST_RECORDINGS:
                self._recordings.pop(next(iter(self._recordings)), None)
            self._recordings[key] = recording


class Counters:
    """Zeroed counters for kernels, each used once: one fill clears `COUNTERS` of them, since each fill is a
    launch."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}  # addresses of a stream's
        self._kept: dict[int, list[Tensor]] = {}

    def take(self, run: _Run, device: torch.device) -> int:
        """The address of an unused counter."""
        # a graph needs zeroed counters at every replay, so it contains the fill
        if torch.cuda.is_current_stream_capturing():
            run.memory.append(torch.zeros(1, dtype=torch.int32, device=device))
            return run.memory[-1].data_ptr()
        try:
            return self._free[run.stream].pop()
        except (KeyError, IndexError):
            return self._more(run.stream, device).pop()

    def _more(self, stream: int, device: torch.device) -> list[int]:
        if len(self._free) >= MOST_STREAMS:
            # memory returns to its stream, after the kernels that use it
            self._free = {}
            self._kept = {}
        block = torch.zeros(COUNTERS * COUNTER_BYTES // 4, dtype=torch.int32, device=device)
        # and the last one: a thread may be about to use it
        self._kept[stream] = [*self._kept.get(stream, [])[-1:], block]
        free = self._free[stream] = [block.data_ptr() + COUNTER_BYTES * number for number in range(COUNTERS)]
        return free


class _Run:
    """One replay: addresses of inputs and allocations, and the memory behind the latter."""

    __slots__ = ("addresses", "counters", "memory", "stream", "tensors")

    def __init__(self, addresses: list[int], num_addresses: int, stream: int, counters: Counters) -> None:
        self.addresses = addresses + [0] * (num_addresses - len(addresses))
        self.stream = stream
        self.counters = counters
        self.tensors: dict[int, Tensor] = {}
        self.memory: list[Tensor] = []


class _Allocation:
    """All allocations of one kind in a stage, in one block of memory."""

    def __init__(self, place: int, kind: str, device: torch.device) -> None:
        self.place = place
        self._size = 0
        self._make = torch.zeros if kind == ZEROS else torch.empty
        self._how = {"dtype": torch.float32, "device": device}

    def add(self, size: int) -> int:
        """Reserves that many further elements, and returns their offset in bytes."""
        offset = self._size
        self._size += -(-size // PIECE) * PIECE
        return 4 * offset

    def __call__(self, run: _Run) -> None:
        x = run.tensors[self.place] = self._make(self._size, **self._how)
        run.addresses[self.place] = x.data_ptr()


class _Free:
    def __init__(self, place: int) -> None:
        self._place = place

    def __call__(self, run: _Run) -> None:
        del run.tensors[self._place]


class _Counter:
    def __init__(self, place: int, device: torch.device) -> None:
        self.place = place
        self._device = device

    def __call__(self, run: _Run) -> None:
        run.addresses[self.place] = run.counters.take(run, self._device)
