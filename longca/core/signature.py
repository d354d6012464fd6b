"""Functions and methods that users write: their signatures, and those that are missing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def refused_signature(
    function: Callable[..., Any], num_arguments: int, keywords: Iterable[str] = ()
) -> str | None:
    """The parameters, as "(q, k)", of a function that cannot be called with this number of arguments and
    these keywords; None if it can.

    Also None for functions without a signature, such as C functions.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*range(num_arguments), **dict.fromkeys(keywords))
    except TypeError:
        return str(signature)
    return None


def undefined_methods(plugin: type, contract: type, instead: Mapping[str, str]) -> list[str]:
    """The names of the public methods that a class inherits and must define: their code raises
    NotImplementedError, and nothing else.

    Args:
        instead: method → another one of the contract. The first may be missing where the other is defined.
    """
    return [
        name
        for name, method in inspect.getmembers(plugin, inspect.isfunction)
        if not name.startswith("_") and method.__code__.co_names == ("NotImplementedError",)
        if name not in instead or getattr(plugin, instead[name]) is getattr(contract, instead[name])
    ]


def unable_without_methods(plugin: Any, contract: type, instead: Mapping[str, str]) -> None:
    """Have the `available` of a plug-in's class give a reason where it leaves methods undefined, after a
    reason of its own. A class without `available` stays as it is."""
    own = getattr(plugin, "available", None)
    undefined = undefined_methods(plugin, contract, instead)
    if own is None or not undefined or hasattr(own, "says_undefined"):
        return
    reason = f"its class {plugin.__name__} defines no {' and no '.join(undefined)}"

    @functools.wraps(own)
    def available(self: Any, device_type: str) -> str | None:
        return own(self, device_type) or reason

    available.says_undefined = True  # type: ignore[attr-defined]
    plugin.available = available
