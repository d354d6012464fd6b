"""Triton's launchers for recorded launches: all assumptions of replay beyond Triton's public API.

- `kernel[grid](…)` returns its build, which has `function`, `packed_metadata` and `run`, the launcher.
- `run(*grid, stream, function, packed_metadata, launch metadata, two hooks, *arguments)` starts it, and makes
    TMA descriptors anew.
- Where a build takes TMA descriptors, `run.launch` is a closure over `launcher`, which takes descriptors that
  are made, and over `tensordesc_meta`, from which `make_tensordesc_arg` makes each. The launcher's own
  arguments differ by version:

      3.6        *grid, stream, function, cooperative, pdl, two scratch buffers, packed metadata, launch metadata, two hooks, *arguments
      3.7 – 3.9  *grid, stream, function, cooperative, pdl, packed metadata, launch metadata, two hooks, two scratch buffers,
                 annotations, signature, arguments

With another version nothing is recorded, and every call runs as written: more of the host's time, the same
kernels.
"""  # noqa: E501

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

VERSIONS = ("3.6.", "3.7.", "3.8.", "3.9.")  # of Triton whose launchers were reviewed and are tested
MOST_BOXES = 64  # of an argument of a recorded launch


def unknown_launchers() -> str | None:
    """The reason why launches are not recorded with this version of Triton; None if they are."""
    import triton  # imported here, since plans have recordings and are also made without Triton

    if triton.__version__.startswith(VERSIONS):
        return None
    return (
        f"launches are not replayed with Triton {triton.__version__}, whose launchers are unknown: calls "
        f"take the host longer"
    )


class Run(Protocol):
    """The inputs of one launch in a replay."""

    addresses: list[int]
    stream: int


class _Launcher(NamedTuple):
    """A launcher and its calling convention."""

    start: Callable[..., Any]
    fixed: tuple[Any, ...]
    """arguments between the stream and the kernel's own"""
    in_one: bool
    """the kernel's own arguments are one argument, a sequence"""
    metas: Iterator[Any]
    """the parts of each TMA descriptor; None if the launcher accepts an object with the attributes of a
    tensor"""


class RecordedLaunch:
    """One kernel with its constant arguments."""

    def __init__(
        self,
        build: Any,
        grid: tuple[int, ...],
        args: list[Any],
        changing: Sequence[tuple[int, int, int, Any]],
    ) -> None:
        """
        Args:
            changing: (place of the argument, place of its address, offset in bytes, TMA descriptor like it or
                None).
        """
        self._build = build  # since Triton 3.8 a build without references unloads its function from the GPU
        self._grid = (*grid, 1, 1)[:3]
        self._start, self._fixed, self._in_one, metas = _launcher_of(build)
        boxes = {index: (source, offset, box) for index, source, offset, box in changing if box is not None}
        places = []
        self._args = []
        self._boxes = []
        alike: dict[tuple[Any, ...], _Boxes] = {}  # a repeated descriptor is created once
        for index, arg in enumerate(args):
            places.append(len(self._args))
            if index in boxes:
                source, offset, like = boxes[index]
                meta = next(metas)
                key = source, offset, tuple(like.shape), tuple(like.strides), like.padding, str(meta)
                of_addresses = alike.setdefault(key, _Boxes(like, meta))
                self._boxes.append((len(self._args), source, offset, of_addresses))
                self._args += of_addresses.arguments()
            else:
                self._args.append(arg)
        self._addresses = [
            (places[index], source, offset) for index, source, offset, box in changing if box is None
        ]

    def __call__(self, run: Run) -> None:
        args = self._args.copy()
        addresses = run.addresses
        for index, source, offset in self._addresses:
            args[index] = addresses[source] + offset
        for index, source, offset, boxes in self._boxes:
            args[index] = boxes.at(addresses[source] + offset)
        if self._in_one:
            self._start(*self._grid, run.stream, *self._fixed, args)
        else:
            self._start(*self._grid, run.stream, *self._fixed, *args)


def _launcher_of(build: Any) -> _Launcher:
    """The inner launcher, which accepts finished TMA descriptors, so that they can be cached. Without one, or
    on a GPU without TMA, it is Triton's own launcher.
    """
    run = build.run
    metadata = build.packed_metadata
    told_nobody = (None, None, None)
    inside = (
        inspect.getclosurevars(run.launch).nonlocals
        if inspect.isfunction(getattr(run, "launch", None))
        else {}
    )
    metas = inside.get("tensordesc_meta") or (None,)
    if (
        None in metas
        or run.global_scratch_size
        or run.profile_scratch_size
        or getattr(run, "gsan_enabled", False)
    ):
        return _Launcher(run, (build.function, metadata, *told_nobody), False, itertools.repeat(None))
    start = inside["launcher"]
    options = (build.function, run.launch_cooperative_grid, run.launch_pdl)
    if not hasattr(run, "kernel_signature"):  # before Triton 3.7
        return _Launcher(start, (*options, None, None, metadata, *told_nobody), False, iter(metas))
    fixed = *options, metadata, *told_nobody, None, None, run.arg_annotations, run.kernel_signature
    return _Launcher(start, fixed, True, iter(metas))


class _Boxes:
    """TMA descriptors that differ only by their address."""

    def __init__(self, like: Any, meta: Any) -> None:
        """
        Args:
            meta: the parts of a descriptor; None if the launcher accepts an object with the attributes of a
                tensor.
        """
        self._meta = meta
        self._form = _Form(like.shape, like.strides, like.padding, getattr(like, "round_f32_to_tf32", False))
        self._kept: dict[int, Any] = {}

    def at(self, address: int) -> Any:
        """The descriptor of this address; recent ones are cached, since allocators reuse memory."""
        box = self._kept.get(address)
        if box is None:
            if len(self._kept) >= MOST_BOXES:
                self._kept.clear()
            box = self._kept[address] = self._made(address)
        return box

    def arguments(self) -> list[Any]:
        """All launcher arguments of one descriptor; the first is the descriptor itself, whose address is not
        known yet."""
        return [None] if self._meta is None else [None, *self._form.shape, *self._form.strides]

    def _made(self, address: int) -> Any:
        box = _Box(address, *self._form)
        if self._meta is None:
            return box
        from triton.backends.nvidia.driver import make_tensordesc_arg

        # Triton 3.8 also passes the other arguments of the launch, which are unused here
        rest = (None,) * (make_tensordesc_arg.__code__.co_argcount - 2)
        return make_tensordesc_arg(box, self._meta, *rest)[0]


class _Form(NamedTuple):
    """A TMA descriptor without its address and without its tensor, which would keep memory alive."""

    shape: Sequence[int]
    strides: Sequence[int]
    padding: str
    round_f32_to_tf32: bool
    """since Triton 3.7"""


class _Box:
    """The attributes that Triton's launcher reads of a TMA descriptor and of its tensor."""

    __slots__ = ("address", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        strides: Sequence[int],
        padding: str,
        round_f32_to_tf32: bool,
    ) -> None:
        self.address = address
        self.shape = shape
        self.strides = strides
        self.padding = padding
        self.round_f32_to_tf32 = round_f32_to_tf32

    @property
    def base(self) -> _Box:
        return self

    def data_ptr(self) -> int:
        return self.address
