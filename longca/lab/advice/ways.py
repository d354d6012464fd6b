"""The ways that a question asks for: strategies, each perhaps with parameters and a kernel, in the words that
answers have for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import Registry, UserError, check_name, one_kernel

if TYPE_CHECKING:
    from longca.core import Scalar
    from longca.cp import Strategy

_PARAMS = re.compile(r"(\w+)\s*(?:\[(.*)\]|\((.*)\))")


@dataclass(frozen=True)
class Way:
    """One strategy over one kernel."""

    strategy: str
    params: tuple[tuple[str, Scalar], ...] | None
    """of the strategy; None for each size of its head groups"""
    kernel: str


@dataclass(frozen=True)
class AskedWays:
    """The kernels, strategies and ways that are compared, as asked for."""

    kernels: tuple[str, ...]
    strategies: tuple[str, ...]
    ways: tuple[Way, ...] = ()
    """() for all strategies over all kernels"""


def asked_ways(
    strategies: Sequence[str] | None, kernels: Sequence[str] | None, usual_kernels: Collection[str]
) -> AskedWays:
    """The ways that "usp", "usp[heads=2]" and "usp+band" name; without any, each strategy of this project.

    Args:
        kernels: those of all strategies that name none; None for the usual ones.

    Raises:
        UserError: there is no such strategy or parameter, or a strategy names a kernel that `kernels` lacks.
    """
    for argument, names in (("kernels", kernels), ("strategies", strategies)):
        if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
            raise UserError(f"Argument '{argument}' is {names!r}", todo="Give a list of names")
    given = tuple(kernels or ())
    taken = given or tuple(usual_kernels)
    if not strategies:
        every = (name for name in Registry("strategy").names() if not _load(name).baseline)
        return AskedWays(taken, tuple(every))
    parsed = [_parsed(text, given) for text in strategies]
    ways = tuple(
        Way(name, params, each)
        for name, params, kernel in parsed
        for each in ((kernel,) if kernel else taken)
    )
    names = tuple(dict.fromkeys(name for name, _, _ in parsed))
    if all(params is None and not kernel for _, params, kernel in parsed):
        return AskedWays(taken, names)
    return AskedWays(tuple(dict.fromkeys(way.kernel for way in ways)), names, ways)


def _parsed(text: str, kernels: Sequence[str]) -> tuple[str, tuple[tuple[str, Scalar], ...] | None, str]:
    """(strategy, its parameters, kernel); None and "" stand for what is not named."""
    name, kernel = one_kernel(text, kernels) if isinstance(text, str) else (text, "")
    match = _PARAMS.fullmatch(name) if isinstance(name, str) else None
    check_name("strategy", match[1] if match else name, Registry("strategy").names())
    if not match:
        return name, None, kernel
    pairs = [pair.partition("=") for pair in (match[2] or match[3] or "").split(",") if pair.strip()]
    given = {key.strip(): value.strip() for key, _, value in pairs}
    return match[1], tuple(_load(match[1]).resolve(given).items()), kernel


def _load(name: str) -> Strategy:
    return Registry("strategy").load(name)
