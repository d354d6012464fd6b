"""What an attention kernel must say and do. One file in `backends/` is one kernel.

Shapes: T tokens, H query heads, G KV heads, D head dim. Public tensors are q_THD, k_TGD, v_TGD, out_THD, lse_TH.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from longca.core.cell import Cell
from longca.core.plugin import Plugin
from longca.core.record import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from longca.kernels.contribution import Contribution
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits


@dataclass(frozen=True)
class Problem:
    """One attention call: everything that is known before the tensors are."""

    mask: Mask
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    needs_backward: bool

    @property
    def scale(self) -> float:
        """Factor on q·k: 1 / sqrt(D)."""
        return self.head_dim ** -0.5


@dataclass(frozen=True)
class Forward:
    """Result of a forward call, in the kernel's own layout."""

    out: torch.Tensor
    lse: torch.Tensor | None = None  # natural log of the row sums of exp(scale·q·k), float32; −inf for empty rows
    saved: Any = None  # whatever this kernel's backward needs


class Prepared:
    """A kernel made ready for one problem: layout, indices and compiling are done. Only these calls are timed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs: dict[str, float] = {}  # plan_ms, compile_ms, metadata_bytes
        self.notes: list[str] = []

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        """A public tensor in the kernel's own layout, contiguous there. Untimed."""
        return x_THD

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        """Back to T × heads × D. Untimed."""
        return x

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        """The kernel's LSE as float32 T × H. Untimed."""
        return lse

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        """A float32 T × H LSE in the kernel's own form, for `raw_backward`."""
        return lse_TH.contiguous()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """Attention in the kernel's layout. With `needs_backward`, `saved` must let `backward` run many times."""
        raise NotImplementedError

    def expect(self, visits: Sequence[Contribution]) -> None:
        """That these are to come, where the kernel `merges`: what has to be made for them is made here."""

    def forward_onto(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, total: torch.Tensor, lse: torch.Tensor,
                     out: torch.Tensor, visits: Sequence[Contribution]) -> None:
        """Attention of some rows to these keys, merged with what (total, LSE) have of other keys, where the kernel `merges`.

        Args:
            total, lse: T × H × D and T × H, float32, contiguous.
            out: T × H × D, contiguous, of the dtype of q: for rows which a visit ends. Those of no visit stay as they are.
        """
        raise NotImplementedError

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) of one forward result; never accumulates into `.grad`. Here: by `raw_backward`, `saved` being (q, k, v)."""
        q, k, v = forward.saved
        assert forward.lse is not None
        return self.raw_backward(q, k, v, forward.out, forward.lse, dout)

    def raw_backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                     dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and LSE that may cover more keys than these, as context parallelism needs.

        Args:
            lse: in the kernel's own form, as `forward` returns it and `lse_to_layout` makes it.
        """
        raise NotImplementedError

    def backward_onto(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor,
                      total: torch.Tensor, dq: torch.Tensor, visits: Sequence[Contribution]) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) of `raw_backward`, whose dq is added to that of other keys, likewise.

        Args:
            total: T × H × D, float32, contiguous.
            dq: T × H × D, contiguous, of the dtype of q.
        """
        raise NotImplementedError


class Kernel(Plugin):
    """An attention operator on one device."""

    family: ClassVar[Literal["dense", "sparse", "both", "control"]] = "dense"
    paper_row: ClassVar[str | None] = None  # its name in the study's tables
    needs: ClassVar[tuple[str, ...]] = ("torch",)  # modules
    url: ClassVar[str] = ""  # of what it calls: https://…
    summary: ClassVar[str] = ""  # one line for lists, of 120 characters at most
    returns_lse: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    """what it prepares merges with results over other keys as it stores, by `forward_onto` and `backward_onto`"""

    def available(self, device_type: str) -> str | None:
        """None if it can run on this machine's device of this type ("cpu", "cuda"), else the reason why not."""
        return missing_modules(self.needs)

    def supports(self, cell: Cell, traits: Traits, device_type: str) -> str | None:
        """None if it does this cell, else why not. Pure; decides by traits, never by the mask's name."""
        raise NotImplementedError

    def in_parts(self, cell: Cell, device_type: str) -> str | None:
        """None if it can attend to some of a row's keys now and to others later, as context parallelism over keys needs: it gives its
        LSE, and has a `raw_backward`. Else why not. Pure.
        """
        return None if self.returns_lse else "it returns no LSE, by which results over parts of the keys are put together"

    def prepare(self, problem: Problem) -> Prepared:
        """Do all work that is not timed: layouts, indices, compiling. Raises any error of the backend."""
        raise NotImplementedError

    def work(self, cell: Cell) -> Work | None:
        """The work of one call of a control. None for attention: its work follows from the mask."""
        return None


def missing_modules(modules: tuple[str, ...]) -> str | None:
    """The reason why these modules cannot be imported; None if they can. Neither they nor their parents are imported."""
    missing = [name for name in modules if not _is_installed(name)]
    return f"module '{missing[0]}' is not installed" if missing else None


def _is_installed(name: str) -> bool:
    """True if a module is installed. For a dotted name its parents are not imported, as `importlib.util.find_spec` would do."""
    import importlib.util
    from importlib.machinery import PathFinder

    top, *below = name.split(".")
    spec = importlib.util.find_spec(top)
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is not None


def missing_compiler(device_type: str) -> str | None:
    """The reason why code cannot be compiled at run time; None if it can. Triton builds launchers in C, torch.compile CPU code in C++."""
    import os
    import shutil
    import sys

    cxx = ("clang++",) if sys.platform == "darwin" else ("g++",)  # torch looks for no other unless CXX names it
    chosen, usual = ("CC", ("gcc", "clang")) if device_type == "cuda" else ("CXX", cxx)
    candidates = [os.environ[chosen]] if chosen in os.environ else usual
    found = any(shutil.which(candidate) for candidate in candidates)
    return None if found else f"no compiler: neither {' nor '.join(candidates)} is on the PATH"


def missing_for_triton(modules: tuple[str, ...], device_type: str) -> str | None:
    """The reason why a kernel that Triton compiles for NVIDIA GPUs cannot run on a device of this type; None if it can."""
    if device_type != "cuda":
        return "runs on NVIDIA GPUs only"
    return missing_modules(modules) or missing_compiler(device_type)
