"""A stand-in for Triton's compiler and launchers: kernels are not compiled, and each launch is written down
with all its arguments.

Tensors are on the CPU. What a kernel finds in memory at its start, where that matters, is checked and then
spoilt, as the kernel would.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

STREAM = 7
IN_ONE = hasattr(nvidia, "make_kernel_signature")  # since Triton 3.7: the kernel's own arguments are one
# what the first 32 bits must be where a kernel begins: of its counter, of the sums of the fused kernel and of
# its progress
FOUND = {"counter_ptr": 0, "dq_desc": 0, "dk_desc": 0, "dv_desc": 0, "progress_ptr": 0}


class Launched:
    """Every launch since the last `clear`."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.through_jit = 0
        """launches for which Triton looked for the build"""
        self.descriptors = 0
        """TMA descriptors that were made"""
        self.kept: list[Tensor] = []  # so that no address is used twice
        self.counters: list[int] = []
        """addresses, of all launches"""

    def clear(self) -> None:
        self.launches = []
        self.through_jit = 0
        self.descriptors = 0

    def descriptor(
        self,
        address: int,
        swizzle: int,
        elem_size: int,
        elem_type: int,
        block: str,
        shape: Sequence[int],
        strides: Sequence[int],
        padding: int,
    ) -> tuple[Any, ...]:
        """A TMA descriptor as the driver would make it."""
        self.descriptors += 1
        return "address", address, swizzle, elem_size, elem_type, block, tuple(shape), tuple(strides), padding

    def named(self, tensors: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
        """The launches, with addresses as (tensor, offset) or, elsewhere, by the order in which they
        appear."""
        ranges = [
            (
                name,
                x.data_ptr(),
                x.data_ptr() + x.untyped_storage().nbytes() - x.storage_offset() * x.element_size(),
            )
            for name, x in tensors.items()
            if x.numel()
        ]
        others: dict[int, int] = {}

        def name(arg: Any) -> Any:
            if isinstance(arg, tuple) and arg and arg[0] == "address":
                for known, start, end in ranges:
                    if start <= arg[1] < end:
                        return known, arg[1] - start, *arg[2:]
                return "new", others.setdefault(arg[1], len(others)), arg[1] % 16, *arg[2:]
            return tuple(map(name, arg)) if isinstance(arg, tuple) else arg

        return [name(launch) for launch in self.launches]


class _Build:
    """A build of a kernel that is none. Its launcher is Triton's own, around one that writes down what the
    driver would get."""

    def __init__(self, source: Any, options: Mapping[str, Any], launched: Launched, has_tma: bool) -> None:
        self.function = 11
        self.packed_metadata = (options["num_warps"], 1, 0)
        self._launched = launched
        self._args: list[tuple[str, str]] = []  # names and types, with those that Triton makes of descriptors
        flags = [("", "i1")] * (2 if IN_ONE else 1)
        metas = []  # without TMA a build says nothing of descriptors, and gets their tensors' addresses
        for name, kind in zip(source.fn.arg_names, source.signature.values(), strict=True):
            if kind.startswith("tensordesc"):
                shape = [("", "i64")] * 2 * (kind[: kind.index("]")].count(",") + 1)
                self._args += [(name, kind), *shape] if has_tma else [(name, "*"), *shape, *flags, *shape]
                if has_tma:
                    swizzle = list(source.signature.values()).index(
                        kind
                    )  # alike where descriptors are of one kind
                    metas.append(
                        {
                            "swizzle": swizzle,
                            "elem_size": 2,
                            "elem_type": 1,
                            "block_size": kind,
                            "fp4_padded": False,
                        }
                    )
            else:
                self._args.append((name, kind))
        constants = sorted(source.constants.items())
        attributes = sorted(source.attrs.items())
        types = str(list(source.signature.values()))
        self._what = (
            source.fn.__name__,
            types,
            str(constants),
            str(attributes),
            str(sorted(options.items(), key=str)),
        )
        self.run = _Launcher(nvidia.wrap_handle_tensordesc(self._launch, dict(source.signature), metas))

    def launch_metadata(self, *_: Any) -> None:
        return None

    def _launch(self, *args: Any) -> None:
        if IN_ONE:
            *head, annotations, signature, own = args
            assert (annotations, signature) == (_Launcher.arg_annotations, _Launcher.kernel_signature)
            *grid, stream, function, cooperative, pdl, metadata, _, _, _, scratch, profile_scratch = head
        else:
            head, own = args[:13], args[13:]
            *grid, stream, function, cooperative, pdl, scratch, profile_scratch, metadata, _, _, _ = head
        assert (len(grid), stream, function, metadata) == (3, STREAM, self.function, self.packed_metadata)
        assert (cooperative, pdl, scratch, profile_scratch) == (*_Launcher.OPTIONS, None, None)
        actual = [self._plain(arg, kind) for arg, (_, kind) in zip(own, self._args, strict=True)]
        for (name, _), arg in zip(self._args, actual, strict=True):
            if name == "counter_ptr":
                self._launched.counters.append(arg[1])
            if name in FOUND:
                self._found(arg[1], FOUND[name])
        self._launched.launches.append((*self._what, tuple(grid), *actual))

    @staticmethod
    def _plain(arg: Any, kind: str) -> Any:
        """An argument as the driver gets it."""
        if kind.startswith("*"):
            return "address", arg if isinstance(arg, int) else arg.data_ptr()
        assert not isinstance(arg, Tensor)
        return arg

    @staticmethod
    def _found(address: int, value: int) -> None:
        place = ctypes.c_int32.from_address(address)
        assert place.value == value, f"{place.value} where {value} must be"
        place.value = 5


class _Launcher:
    """Triton's wrapper of a launcher."""

    OPTIONS = "cooperative", "pdl"
    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = OPTIONS
    if IN_ONE:
        arg_annotations, kernel_signature = "annotations", "signature"

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *args: Any) -> None:
        head = x, y, z, stream, function, *self.OPTIONS
        if IN_ONE:
            told, own = args[:4], args[4:]
            self.launch(*head, *told, None, None, self.arg_annotations, self.kernel_signature, own)
        else:
            self.launch(*head, None, None, *args)


@contextmanager
def recorded_launches(capability: tuple[int, int] | None) -> Iterator[Launched]:
    """Plans are for a GPU of this compute capability, or portable, and calls take tensors of the CPU."""
    from longca.ops.band import checks, merge, plan
    from longca.ops.band.sm90 import bwd_dkdv, bwd_dq, bwd_fused, forward, launch
    from longca.ops.band.triton import backward as portable_backward
    from longca.ops.band.triton import forward as portable_forward
    from longca.ops.band.triton import preprocess

    launched = Launched()
    choose = plan.choose_tiles
    run = triton.JITFunction.run
    hopper = bwd_dkdv, bwd_dq, bwd_fused, forward, launch
    modules = *hopper, portable_backward, portable_forward, preprocess, merge
    kernels = {
        kernel
        for module in modules
        for kernel in vars(module).values()
        if isinstance(kernel, triton.JITFunction)
    }

    def keep(make: Any) -> Any:
        def made(*args: Any, **how: Any) -> Tensor:
            launched.kept.append(make(*args, **how))
            return launched.kept[-1]

        return made

    def count(self: triton.JITFunction, *args: Any, **how: Any) -> Any:
        launched.through_jit += 1
        return run(self, *args, **how)

    active = SimpleNamespace(
        utils=SimpleNamespace(
            fill_tma_descriptor=launched.descriptor, fill_tma_descriptor_tiled=launched.descriptor
        ),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: STREAM,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", active)
        patch.setattr(
            "triton.compiler.compile",
            lambda source, target, options: _Build(source, options, launched, capability != (8, 0)),
        )
        patch.setattr(triton.JITFunction, "run", count)
        patch.setattr(checks, "INTERPRETED", True)
        patch.setattr(plan, "choose_tiles", lambda head_dim, _, **how: choose(head_dim, capability, **how))
        patch.setattr(
            torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132)
        )
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for name in ("empty", "zeros", "full"):
            patch.setattr(torch, name, keep(getattr(torch, name)))
        for kernel in kernels:
            patch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        yield launched
