"""Values of the emulator: numbers in registers, pointers, and buffers of shared memory."""

import math
import types
from collections.abc import Callable
from typing import Any

import torch

LAYOUT = types.SimpleNamespace(name="any layout")


class DType:
    def __init__(self, name: str, torch_dtype: torch.dtype) -> None:
        self.name = name
        self.torch = torch_dtype
        self.element_ty = self
        self.itemsize = torch_dtype.itemsize

    def __repr__(self) -> str:
        return self.name


DTYPES = {
    name: DType(name, dtype)
    for name, dtype in {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "int16": torch.int16,
        "int32": torch.int32,
        "int64": torch.int64,
        "int1": torch.bool,
        "uint32": torch.int64,
    }.items()
}
OF_TORCH = {dtype.torch: dtype for name, dtype in DTYPES.items() if name != "uint32"}


def raw(value: Any) -> Any:
    return value.x if isinstance(value, Tensor) else value


class Tensor:
    """A tensor in registers, or a scalar that was computed."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    shape = property(lambda self: list(self.x.shape))
    dtype = property(lambda self: OF_TORCH[self.x.dtype])
    type = property(lambda self: types.SimpleNamespace(layout=LAYOUT, element_ty=self.dtype))

    def to(self, dtype: DType, bitcast: bool = False) -> "Tensor":
        if bitcast:
            return Tensor(self.x.view(dtype.torch))
        if dtype.name == "uint32":
            return Tensor(self.x.long() & 0xFFFFFFFF)
        if dtype.name == "int16":
            return Tensor(((self.x.long() + 32768) % 65536 - 32768).to(torch.int16))
        return Tensor(self.x.to(dtype.torch))

    def reshape(self, shape: list[int]) -> "Tensor":
        return Tensor(self.x.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> "Tensor":
        return Tensor(self.x.permute(order))

    def split(self) -> "tuple[Tensor, Tensor]":
        return Tensor(self.x[..., 0]), Tensor(self.x[..., 1])

    def expand_dims(self, axis: int) -> "Tensor":
        return Tensor(self.x.unsqueeze(axis))

    def __getitem__(self, key: Any) -> "Tensor":
        return Tensor(self.x[key])

    def __bool__(self) -> bool:
        assert self.x.numel() == 1, "a branch on more than one value"
        return bool(self.x)

    def __index__(self) -> int:
        return int(self.x)

    def __hash__(self) -> int:
        return id(self)


def _binary(name: str, function: Callable[[Any, Any], Any]) -> None:
    setattr(Tensor, f"__{name}__", lambda self, other: Tensor(torch.as_tensor(function(self.x, raw(other)))))
    setattr(
        Tensor,
        f"__r{name}__",
        lambda self, other: Tensor(torch.as_tensor(function(torch.as_tensor(other), self.x))),
    )


def _truncated(a: torch.Tensor, b: Any) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


for _name, _function in {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "floordiv": _truncated,
    "mod": lambda a, b: torch.fmod(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}.items():
    _binary(_name, _function)


class Pointer:
    """Pointers into a tensor of global memory."""

    def __init__(self, memory: torch.Tensor, offset: Any = 0) -> None:
        self.memory = memory
        self.offset = offset

    dtype = property(lambda self: types.SimpleNamespace(element_ty=OF_TORCH[self.memory.dtype]))

    def __add__(self, other: Any) -> "Pointer":
        return Pointer(self.memory, self.offset + raw(other))

    def __sub__(self, other: Any) -> "Pointer":
        return Pointer(self.memory, self.offset - raw(other))

    def to(self, _: DType) -> "Pointer":
        return self


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's memory from its first element on, where strides count."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    length = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((length,), (1,))


class SharedMemory:
    """A buffer, or a view of one: the places of its elements in memory."""

    def __init__(self, memory: torch.Tensor, places: torch.Tensor, dtype: DType) -> None:
        self.memory = memory
        self.places = places
        self.dtype = dtype
        self.shape = list(places.shape)
        self.type = types.SimpleNamespace(layout=LAYOUT)

    def _view(self, places: torch.Tensor) -> "SharedMemory":
        return SharedMemory(self.memory, places, self.dtype)

    def index(self, number: Any) -> "SharedMemory":
        assert 0 <= int(number) < self.shape[0], f"stage {int(number)} of {self.shape[0]}"
        return self._view(self.places[int(number)])

    def slice(self, start: int, length: int) -> "SharedMemory":
        return self._view(self.places[start : start + length])

    def reshape(self, shape: list[int]) -> "SharedMemory":
        return self._view(self.places.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> "SharedMemory":
        return self._view(self.places.permute(order))

    def _reinterpret(self, dtype: DType, shape: list[int], _layout: Any) -> "SharedMemory":
        start = int(self.places.min())
        places = places_of(dtype, shape)
        assert dtype is self.dtype and places.numel() == self.places.numel()
        return self._view(places + start)

    def load(self, _layout: Any = None) -> Tensor:
        return Tensor(self.memory[self.places])

    def store(self, value: Tensor) -> None:
        values = raw(value)
        assert not values.is_floating_point() or value.dtype is self.dtype, (
            f"{value.dtype} stored as {self.dtype}"
        )
        self.memory[self.places] = values.to(self.memory.dtype).expand(self.places.shape)

    def spoil(self) -> None:
        self.memory[self.places] = math.nan


def places_of(dtype: DType, shape: list[int]) -> torch.Tensor:
    """The addresses of the elements of a buffer: rows of more than 128 bytes in columns of 128 bytes, within
    each stage."""
    width = 128 // dtype.itemsize
    if len(shape) < 3 or shape[-1] <= width:
        return torch.arange(math.prod(shape)).reshape(shape)
    stages, *rows, columns = shape
    places = torch.arange(math.prod(shape)).reshape([stages, columns // width, *rows, width])
    return places.movedim(1, -2).reshape(shape)
