"""Signatures of functions that users write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
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
