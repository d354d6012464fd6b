"""The contract of attention kernels. One file in `backends/` is one kernel.

Shapes: T tokens, H query heads, G KV heads, D head dim. Public tensors are q_THD, k_TGD, v_TGD, out_THD, lse_TH.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from longca.core.cell import CallSpec, Cell, Dtype
from longca.core.plugin import Plugin
from longca.core.record import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

UNIT_ROWS = 128  # granularity of the rows of a `Contribution`


@dataclass(frozen=True)
class Problem:
    """One attention call: everything that is known before its tensors exist."""

    mask: Mask
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    needs_backward: bool
    records_costs: bool = True
    """what preparing costs is measured. Else no kernel plans twice, calls itself or waits for its device to tell it"""

    @property
    def scale(self) -> float:
        """Factor on q·k: 1 / sqrt(D)."""
        return self.head_dim ** -0.5

    @property
    def call_spec(self) -> CallSpec:
        """The facts with which `Kernel.supports` is asked about this call."""
        import torch

        dtypes: dict[torch.dtype, Dtype] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
        return CallSpec(self.num_q_heads, self.num_kv_heads, self.head_dim, dtypes[self.dtype], "bwd" if self.needs_backward else "fwd")


@dataclass(frozen=True)
class Forward:
    """The result of a forward call, in the kernel's own layout."""

    out: torch.Tensor
    lse: torch.Tensor | None = None  # natural log of the row sums of exp(scale·q·k), float32; −inf for empty rows
    saved: Any = None  # all that this kernel's backward needs


@dataclass(frozen=True)
class Contribution:
    """Rows of one kernel call among several with other keys each, for kernels that merge the results of these calls as they store.

    | is_first | is_last | forward_onto reads | and writes          |
    |----------|---------|--------------------|---------------------|
    | yes      | no      | nothing            | (total, LSE)        |
    | no       | no      | (total, LSE)       | (total, LSE)        |
    | no       | yes     | (total, LSE)       | (out, LSE)          |
    | yes      | yes     | nothing            | (out, LSE)          |
    """

    is_first: bool
    """no earlier call has these queries"""
    is_last: bool
    """no later call has them"""
    rows: tuple[tuple[int, int], ...] | None
    """ranges (start, end) of whole units of `UNIT_ROWS` queries, the last one perhaps cut at the last row; None for all rows"""


class Prepared:
    """A kernel, prepared for one problem: layout, indices and compilation are done. Only its calls are timed."""

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

    def expect(self, contributions: Sequence[Contribution]) -> None:
        """Prepares for later calls with these contributions, where the kernel `merges`."""

    def forward_onto(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, total: torch.Tensor, lse: torch.Tensor,
                     out: torch.Tensor, contributions: Sequence[Contribution]) -> None:
        """Attention of some rows to these keys, merged with (total, LSE), which cover other keys; where the kernel `merges`.

        Args:
            total, lse: T × H × D and T × H, float32, contiguous; not read for rows whose contribution `is_first`.
            out: T × H × D, contiguous, in the dtype of q: for rows whose contribution `is_last`; for others the result goes to `total`.
            contributions: the rows to compute. Other rows stay as they are.
        """
        raise NotImplementedError

    def backward(self, forward: Forward, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) of one forward result; never accumulates into `.grad`. The base calls `raw_backward`, with `saved` = (q, k, v)."""
        q, k, v = forward.saved
        assert forward.lse is not None
        return self.raw_backward(q, k, v, forward.out, forward.lse, dout)

    def raw_backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                     dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and an LSE that may cover more keys than these. Context parallelism needs it.

        Args:
            lse: in the kernel's own form, as `forward` returns it and `lse_to_layout` makes it.
        """
        raise NotImplementedError

    def backward_onto(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor,
                      total: torch.Tensor, dq: torch.Tensor, contributions: Sequence[Contribution]
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) of `raw_backward`; its dq is added to `total`, which covers other keys. Where the kernel `merges`.

        Args:
            total: T × H × D, float32, contiguous; not read for rows whose contribution `is_first`.
            dq: T × H × D, contiguous, in the dtype of q: for rows whose contribution `is_last`; for others the sum goes to `total`.
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
    transposes: ClassVar[bool] = False  # its layout is not tokens × heads × D, so that every tensor is copied on its way
    deterministic: ClassVar[bool] = False  # the same inputs surely give the same gradients, bit for bit
    merges: ClassVar[bool] = False
    """its prepared form can merge its results with those over other keys as it stores them: `forward_onto` and `backward_onto`"""

    def available(self, device_type: str) -> str | None:
        """None if it can run on this machine's device of that type ("cpu", "cuda"), else the reason why not."""
        return missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        """None if it does this call, else the reason why not. Pure: it decides by these facts, never by the mask's name.

        Args:
            traits: of the call's mask, its lengths included.
            device_type: "cpu" or "cuda".
        """
        raise NotImplementedError

    def in_parts(self, call: CallSpec, device_type: str) -> str | None:
        """None if it can attend to some of a row's keys now and to others later, else the reason why not. Pure.

        Context parallelism over keys needs this: the kernel returns its LSE, and for a backward it has a `raw_backward`.
        """
        return None if self.returns_lse else "it returns no LSE, by which results over parts of the keys are put together"

    def stored_bytes(self, call: CallSpec, traits: Traits) -> int:
        """Forecast of what it stores for each pair of tokens: scores, a dense mask. Pure. 0 for a kernel whose memory is linear in them."""
        return 0

    def prepare(self, problem: Problem) -> Prepared:
        """Does everything that need not be timed. Raises the backend's own errors."""
        raise NotImplementedError

    def work(self, cell: Cell) -> Work | None:
        """The work of one call of a control, by construction. None for attention, whose work follows from the mask."""
        return None


def missing_modules(modules: tuple[str, ...]) -> str | None:
    """The reason why these modules cannot be imported; None if they are all installed. Imports neither them nor their parents."""
    missing = [name for name in modules if not _is_installed(name)]
    return f"module '{missing[0]}' is not installed" if missing else None


def _is_installed(name: str) -> bool:
    """Tells whether a module is installed. `importlib.util.find_spec` alone would import the parents of a dotted name."""
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
    """The reason why code generated at run time cannot be compiled; None if it can.

    Triton builds its launchers in C, torch.compile its CPU code in C++.
    """
    import os
    import shutil
    import sys

    cxx = ("clang++",) if sys.platform == "darwin" else ("g++",)  # torch looks for no other unless CXX names it
    chosen, usual = ("CC", ("gcc", "clang")) if device_type == "cuda" else ("CXX", cxx)
    candidates = [os.environ[chosen]] if chosen in os.environ else usual
    found = any(shutil.which(candidate) for candidate in candidates)
    return None if found else f"no compiler: neither {' nor '.join(candidates)} is on the PATH"


def missing_for_triton(modules: tuple[str, ...], device_type: str) -> str | None:
    """The reason why a kernel that Triton compiles for NVIDIA GPUs cannot run on a device of that type; None if it can."""
    if device_type != "cuda":
        return "runs on NVIDIA GPUs only"
    return missing_modules(modules) or missing_compiler(device_type)
