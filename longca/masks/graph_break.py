"""Functions at which `torch.compile` breaks its graph, and which run uncompiled.

Masks are numpy arrays, and kernels are chosen and planned from them, which cannot be traced.
`torch.compiler.disable` marks such functions, but loads `torch._dynamo`, which takes a second, and this
package must not load torch. So it is applied only once dynamo is loaded; nothing is compiled before that.
"""

import sys
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

DYNAMO = "torch._dynamo"
REASON = (
    "longca's masks and its choice of kernels cannot be traced: call them outside of fullgraph=True, "
    "or give a plan to longca.ops.band.api.band_attention, which needs no graph break"
)


def breaks_graph(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which runs outside of graphs, with all functions that it calls. The overhead is small,
    and larger once dynamo is loaded.

    Functions that autograd calls need this, too: in a compiled step that calls `loss.backward()`, dynamo
    would compile them.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if DYNAMO in sys.modules:
            return sys.modules[__name__].run_untraced(function, *args, **named)
        return function(*args, **named)

    return call


def methods_break_graph(owner: C) -> C:
    """A class whose public methods, constructors and cached properties run outside of graphs."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            setattr(owner, name, classmethod(breaks_graph(member.__func__)))
        elif isinstance(member, cached_property):
            member.func = breaks_graph(member.func)
        elif callable(member):
            setattr(owner, name, breaks_graph(member))
    return owner


def __getattr__(name: str) -> Any:
    """Makes `run_untraced` at its first use, when dynamo is loaded."""
    if name != "run_untraced":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

    def run_untraced(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    globals()[name] = sys.modules["torch"].compiler.disable(run_untraced, reason=REASON)
    return globals()[name]
