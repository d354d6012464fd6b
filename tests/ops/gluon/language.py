"""The language: Gluon's functions as far as the kernels use them, and their launch."""

import math
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tests.ops.gluon.machine import Descriptor, Matmul, MBarrier, NamedBarrier, Partition, Program, World, me
from tests.ops.gluon.values import DTYPES, LAYOUT, DType, Pointer, SharedMemory, Tensor, flat, places_of, raw


def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Tensor:
    where = torch.as_tensor(pointer.offset)
    if mask is None:
        return Tensor(pointer.memory[where])
    mask = torch.as_tensor(raw(mask))
    where, mask, other = torch.broadcast_tensors(where, mask, torch.as_tensor(raw(other)))
    if not mask.any():
        return Tensor(other.to(pointer.memory.dtype).clone())
    return Tensor(
        torch.where(mask, pointer.memory[torch.where(mask, where, 0)], other.to(pointer.memory.dtype))
    )


def store(pointer: Pointer, value: Any, mask: Any = True) -> None:
    where, value, mask = torch.broadcast_tensors(
        torch.as_tensor(pointer.offset), torch.as_tensor(raw(value)), torch.as_tensor(raw(mask))
    )
    pointer.memory[where[mask]] = value[mask].to(pointer.memory.dtype)


def atomic_add(pointer: Pointer, value: Tensor, mask: Tensor, sem: str = "") -> Tensor:
    before = load(pointer, mask)
    store(pointer, before + value, mask)
    return before


def inline_asm_elementwise(
    asm: str, constraints: str, args: list[Any], dtype: DType, is_pure: bool, pack: int
) -> Any:
    if asm.startswith("cvt.rn."):
        of = torch.bfloat16 if "bf16" in asm else torch.float16
        low, high = (raw(x).to(of).view(torch.int16).int() for x in args)
        return Tensor((low & 0xFFFF) | (high << 16))
    if "mul.f32" in asm:
        return args[0] * args[1]
    if asm == "mov.b32 $0, 0;":
        return args[0] * 0
    if asm.startswith("bmsk"):
        start, width = (raw(x).long() for x in args)
        bits = ((1 << width.clamp(max=32)) - 1) << start.clamp(max=32) & 0xFFFFFFFF
        return Tensor(torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int())
    if asm.startswith("bar."):
        barrier = me().program.named.setdefault(int(args[0]), NamedBarrier())
        rounds = barrier.rounds
        barrier.arrive(me().num_threads, int(args[1]))
        me().pause(
            *(
                (lambda: barrier.rounds > rounds, f"named barrier {int(args[0])}")
                if asm.startswith("bar.sync")
                else ()
            )
        )
        return args[0]
    if "st.volatile" in asm:
        return args[0]
    if "st.release" in asm:
        for reduction in me().reductions:
            reduction()
        me().reductions.clear()
        store(args[0], args[1])
        me().pause()
        return args[1]
    assert "ld.relaxed" in asm, asm
    if len(args) == 1:
        me().pause()
        return load(args[0])
    me().pause(lambda: bool(load(args[0]) <= args[1]), "another work tile's progress")
    return args[1]


def allocate_shared_memory(dtype: DType, shape: list[int], layout: Any) -> SharedMemory:
    memory = torch.zeros(math.prod(shape), dtype=dtype.torch)
    return SharedMemory(memory, places_of(dtype, shape), dtype)


def warpgroup_mma(a: Any, b: SharedMemory, acc: Any, use_acc: bool = True, is_async: bool = False) -> Matmul:
    matmul = Matmul(a, b, acc, use_acc)
    me().matmuls.append(matmul)
    me().pause()
    return matmul


def warpgroup_mma_wait(num_outstanding: int = 0, deps: Any = ()) -> Any:
    matmuls = me().matmuls
    while len(matmuls) > num_outstanding:
        matmuls.pop(0).finish()
    me().pause()
    values = tuple(x.value if isinstance(x, Matmul) else x for x in deps)
    assert all(value is not None for value in values), "a result of a matmul that is under way"
    return values[0] if len(values) == 1 else values


def _mbarrier(bar: SharedMemory) -> MBarrier:
    return me().program.mbarriers[id(bar.memory), int(bar.places.flatten()[0])]


def mbarrier_init(bar: SharedMemory, count: int) -> None:
    program = Program.current
    program.mbarriers[id(bar.memory), int(bar.places.flatten()[0])] = MBarrier(count, len(program.mbarriers))
    program.memories.append(bar.memory)


def mbarrier_wait(bar: SharedMemory, phase: Any, pred: Any = True, deps: Any = ()) -> None:
    if pred:
        barrier = _mbarrier(bar)
        parity = int(phase)
        me().pause(lambda: barrier.phase % 2 != parity, f"{barrier}, parity {parity}")


def mbarrier_arrive(bar: SharedMemory, count: int = 1, pred: Any = True) -> None:
    if pred:
        _mbarrier(bar).arrive(count)
        me().pause()


def mbarrier_expect(bar: SharedMemory, num_bytes: int, pred: Any = True) -> None:
    if pred:
        _mbarrier(bar).arrive(1, num_bytes)


def async_copy_global_to_shared(
    desc: Descriptor, coordinates: list[Any], bar: SharedMemory, target: SharedMemory
) -> None:
    barrier = _mbarrier(bar)
    where = [int(c) for c in coordinates]
    box = desc.box_at(where)
    target.spoil()

    def arrives() -> None:
        target.memory[target.places] = desc.read(box).reshape(target.places.shape)
        barrier.bytes -= desc.block_type.nbytes
        barrier.check()

    me().world.under_way.append(arrives)
    me().pause()


def async_add(desc: Descriptor, coordinates: list[Any], source: SharedMemory) -> None:
    places, inside = desc.box_at([int(c) for c in coordinates])

    def add() -> None:
        flat(desc.base).index_add_(0, places[inside], source.load().x.reshape(places.shape)[inside])

    me().reductions.append(add)
    me().pause()


def async_copy_shared_to_global(desc: Descriptor, coordinates: list[Any], source: SharedMemory) -> None:
    places, inside = desc.box_at([int(c) for c in coordinates])

    def store() -> None:
        flat(desc.base)[places[inside]] = source.load().x.reshape(places.shape)[inside]

    me().reductions.append(store)
    me().pause()


def store_wait(outstanding: int) -> None:
    while len(me().reductions) > outstanding:
        me().reductions.pop(0)()


def warp_specialize(
    roles: list[tuple[Callable[..., None], tuple[Any, ...]]], warps: list[int], _registers: list[int]
) -> None:
    Program.current.partitions = [
        (function, arguments, num) for (function, arguments), num in zip(roles, [4, *warps], strict=True)
    ]


class Kernel:
    """A jitted function: called from others as it is, or launched."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.fn(*arguments, **named)

    def __get__(self, instance: Any, _: Any = None) -> Any:
        return self if instance is None else types.MethodType(self.fn, instance)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **_options: Any) -> None:
            world = World(settings["seed"])
            given = [Pointer(flat(x)) if isinstance(x, torch.Tensor) else x for x in arguments]
            partitions = []
            programs = []
            for number in range(grid[0]):
                Program.current = Program(number, grid[0])
                self.fn(*given)
                programs.append(Program.current)
                partitions += [
                    Partition(
                        world, Program.current, f"program {number}, role {role}", function, parts, warps
                    )
                    for role, (function, parts, warps) in enumerate(Program.current.partitions)
                ]
            world.run(partitions)
            for program in programs:
                left = {name: barrier.arrived for name, barrier in program.named.items() if barrier.arrived}
                assert not left, f"threads are left at named barriers: {left}"

        return launch


settings = {"seed": 0}


def jit(fn: Callable[..., None] | None = None, **_options: Any) -> Any:
    return Kernel(fn) if fn is not None else Kernel


class Constexpr:
    def __new__(cls, value: Any) -> Any:
        return value


def emulate() -> None:
    """Puts the emulator in the place of Gluon, for whoever imports it from now on."""
    import triton.experimental
    import triton.language.core as core
    from triton.runtime.jit import mangle_type

    mangle_type(torch.zeros(1))  # Triton's own interpreter finds its kinds of descriptors now, or never

    def of(function: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda *args, **named: Tensor(torch.as_tensor(function(*(raw(x) for x in args), **named)))

    def reduced(function: Callable[..., torch.Tensor]) -> Callable[..., Tensor]:
        return lambda x, axis: Tensor(function(raw(x), axis)) if raw(x).ndim else x

    def broadcast(function: Callable[..., torch.Tensor]) -> Callable[..., Tensor]:
        return of(lambda *args: function(*(torch.as_tensor(x) for x in args)))

    language = types.ModuleType("triton.experimental.gluon.language")
    for name, dtype in DTYPES.items():
        setattr(language, name, dtype)
    for name in (
        "SliceLayout",
        "BlockedLayout",
        "NVMMADistributedLayout",
        "DotOperandLayout",
        "SwizzledSharedLayout",
    ):
        setattr(language, name, lambda *args, **named: LAYOUT)
    language.NVMMASharedLayout = type(
        "NVMMASharedLayout",
        (),
        {"__init__": lambda self, *args: None, "get_default_for": staticmethod(lambda *args: LAYOUT)},
    )
    language.constexpr = Constexpr
    language.tensor = Tensor
    language.shared_memory_descriptor = SharedMemory
    language.dtype = DType
    language.load = load
    language.store = store
    language.atomic_add = atomic_add
    language.inline_asm_elementwise = inline_asm_elementwise
    language.allocate_shared_memory = allocate_shared_memory
    language.warp_specialize = warp_specialize
    language.static_range = range
    language.thread_barrier = lambda: None
    language.convert_layout = lambda x, layout: x
    language.arange = lambda start, end, layout=None: Tensor(torch.arange(start, end, dtype=torch.int32))
    language.zeros = lambda shape, dtype, layout=None: Tensor(torch.zeros(shape, dtype=dtype.torch))
    language.full = lambda shape, value, dtype, layout=None: Tensor(
        torch.full(shape, value, dtype=dtype.torch)
    )
    language.where = broadcast(lambda c, a, b: torch.where(c, a, b))
    language.maximum, language.minimum = broadcast(torch.maximum), broadcast(torch.minimum)
    language.thread_barrier = lambda: None
    language.exp, language.exp2, language.log, language.log2 = (
        of(torch.exp),
        of(torch.exp2),
        of(torch.log),
        of(torch.log2),
    )
    language.sum, language.max = reduced(torch.sum), reduced(torch.amax)
    language.join = lambda a, b: Tensor(torch.stack([a.x, b.x], -1))
    language.program_id = lambda axis: me().program.number
    language.num_programs = lambda axis: me().program.num_programs
    tma = types.SimpleNamespace(
        async_copy_global_to_shared=async_copy_global_to_shared,
        store_wait=store_wait,
        async_copy_shared_to_global=async_copy_shared_to_global,
        tensor_descriptor=Descriptor,
    )
    hopper = types.ModuleType("triton.experimental.gluon.language.nvidia.hopper")
    hopper.mbarrier = types.SimpleNamespace(
        init=mbarrier_init,
        wait=mbarrier_wait,
        arrive=mbarrier_arrive,
        expect=mbarrier_expect,
        MBarrierLayout=lambda: LAYOUT,
    )
    hopper.tma = tma
    hopper.warpgroup_mma = warpgroup_mma
    hopper.warpgroup_mma_wait = warpgroup_mma_wait
    hopper.fence_async_shared = lambda cluster=False: None
    gluon = types.ModuleType("triton.experimental.gluon")
    gluon.jit = jit
    gluon.constexpr_function = lambda fn: fn
    gluon.language = language
    host = types.ModuleType("triton.experimental.gluon.nvidia.hopper")
    host.TensorDescriptor = Descriptor
    internals = types.ModuleType("triton.experimental.gluon.language._core")
    internals.builtin = lambda fn: {"async_add": async_add}[fn.__name__]
    core._aggregate = lambda cls: cls
    triton.experimental.gluon = gluon
    sys.modules |= {
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language": language,
        "triton.experimental.gluon.language._core": internals,
        "triton.experimental.gluon.language.nvidia": types.ModuleType("nvidia"),
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
        "triton.experimental.gluon.nvidia": types.ModuleType("nvidia"),
        "triton.experimental.gluon.nvidia.hopper": host,
    }
