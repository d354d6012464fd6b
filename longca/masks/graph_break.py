"""Functions at which `torch.compile` breaks its graph, and which run as they are.

Masks are numpy arrays, and kernels are chosen and planned by them: none of that can be traced. `torch.compiler.disable`
is the tool for such functions. It loads `torch._dynamo`, which takes a second, and this package never loads torch: so it
is applied once dynamo is loaded. Before that, nothing is compiled.
"""

import sys
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

DYNAMO = "torch._dynamo"
REASON = ("longca's masks and its choice of kernels cannot be traced: call them outside of fullgraph=True, "
          "or give a plan to longca.ops.band.api.band_attention, which needs no graph break")


def breaks_graph(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run outside of graphs with all that it calls. This costs little, and more once dynamo is loaded.

    Functions that autograd calls need it too: in a compiled step that calls `loss.backward()`, dynamo would compile
    them.
    """
    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if DYNAMO in sys.modules:
            return sys.modules[__name__].run_untraced(function, *args, **named)  # type: ignore[no-any-return]
        return function(*args, **named)

    return call


def methods_break_graph(owner: C) -> C:
    """A class whose public methods, constructors and kept properties run outside of graphs."""
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
