"""The functions that measure and time, as they are before a plug-in is loaded: a plug-in that replaces one of
them would state its own times.

A plug-in runs in the process that times it, so it can hide from this what it has done. The judge of results
has a process of its own.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

PREFIXES = ("longca.lab.bench.measure", "longca.lab.bench.check", "longca.kernels.contract")
OTHERS = {"time": None, "os": {"urandom"}, "random": {"Random", "SystemRandom"}}
"""module → the names of it that count; None for all"""


class Originals:
    """A snapshot of what the names of these modules stand for."""

    def __init__(self) -> None:
        self._known = dict(_members())

    def replaced(self) -> str | None:
        """A name that stands for something else now; None if there is none."""
        now = dict(_members())
        changed = (name for name, parts in self._known.items() if not _are_same(parts, now.get(name)))
        return next(changed, None) or next((name for name in _overrides() if name not in self._known), None)


def _members() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(name, what it stands for and, for a function, what it runs)."""
    for module_name, module in list(sys.modules.items()):
        if module is None or not (module_name in OTHERS or module_name.startswith(PREFIXES)):
            continue
        names = OTHERS.get(module_name)
        for name, value in list(vars(module).items()):
            if callable(value) and (names is None or name in names):
                yield f"{module_name}.{name}", _parts(value)
                if isinstance(value, type) and value.__module__ == module_name:
                    yield from _methods(f"{module_name}.{name}", value)
    for name in _overrides():
        yield name, _parts(vars(torch.Tensor)[name.removeprefix("torch.Tensor.")])


def _methods(name: str, owner: type) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for attribute, value in list(vars(owner).items()):
        plain = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(plain, FunctionType):
            yield f"{name}.{attribute}", _parts(plain)


def _overrides() -> list[str]:
    """The methods of tensors that torch's own class in C++ has, too."""
    return [f"torch.Tensor.{name}" for name in list(vars(torch.Tensor)) if hasattr(torch._C.TensorBase, name)]


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, FunctionType):
        return value, value.__code__, value.__defaults__, value.__kwdefaults__
    return (value,)


def _are_same(parts: tuple[Any, ...], others: tuple[Any, ...] | None) -> bool:
    return others is not None and len(parts) == len(others) and all(map(operator.is_, parts, others))
