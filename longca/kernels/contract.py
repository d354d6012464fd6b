"""The contract of attention kernels. One file in `backends/` is one kernel.

Shapes: T tokens, H query heads, G KV heads, D head dim. Public tensors are q_THD, k_TGD, v_TGD, out_THD,
    lse_TH.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from longca.core import Answer, CallSpec, Dtype, Plugin, Work
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from longca.masks import LazyMask, Mask, Traits

# what kernels of segments take of masks with more keys than queries, by whether they align windows there
MORE_KEYS = (
    "; with more keys than queries, only one in which all see all",
    "; with more keys than queries, only one window over all tokens",
)
UNIT_ROWS = 128  # granularity of the rows of a `Contribution`


@dataclass(frozen=True)
class Problem:
    """One attention call without its tensors."""

    mask: Mask
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    needs_backward: bool
    records_costs: bool = True
    """True if the cost of preparation is measured. Otherwise kernels must not plan twice, call themselves, or
    wait for the device"""
    planned_kv_heads: int | None = None
    """KV heads of the whole call of which this one has some, for kernels that `keeps_bits_of_heads`; None:
    those of this call"""

    @property
    def scale(self) -> float:
        """Factor on q·k: 1 / sqrt(D)."""
        return self.head_dim**-0.5

    @property
    def call_spec(self) -> CallSpec:
        """The properties of this call for `Kernel.supports`."""
        import torch

        dtypes: dict[torch.dtype, Dtype] = {
            torch.bfloat16: "bf16",
            torch.float16: "fp16",
            torch.float32: "fp32",
        }
        return CallSpec(
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            dtypes[self.dtype],
            "bwd" if self.needs_backward else "fwd",
        )


@dataclass(frozen=True)
class Forward:
    """The result of a forward call, in the kernel's own layout."""

    out: torch.Tensor
    # natural log of the row sums of exp(scale·q·k), float32; −inf for empty rows
    lse: torch.Tensor | None = None
    saved: Any = None  # inputs of this kernel's backward


@dataclass(frozen=True)
class Contribution:
    """Rows of one of several kernel calls over disjoint keys, for kernels that merge results in their
    epilogue.

    | is_first | is_last | forward_onto reads | and writes          |
    |----------|---------|--------------------|---------------------|
    | yes      | no      | nothing            | (total, LSE)        |
    | no       | no      | (total, LSE)       | (total, LSE)        |
    | no       | yes     | (total, LSE)       | (out, LSE)          |
    | yes      | yes     | nothing            | (out, LSE)          |
    """

    is_first: bool
    """True if no earlier call contains these queries"""
    is_last: bool
    """True if no later call contains them"""
    rows: tuple[tuple[int, int], ...] | None
    """ranges (start, end) of whole units of `UNIT_ROWS` queries, the last one perhaps cut at the last row;
    None for all rows"""


class Prepared:
    """A kernel prepared for one problem: indices are built and code is compiled. Only its calls are timed."""

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
        """A float32 T × H LSE in the kernel's own layout, for `raw_backward`."""
        return lse_TH.contiguous()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        """Attention in the kernel's layout. With `needs_backward`, `saved` must let `backward` run many
        times."""
        raise NotImplementedError

    def expect(self, contributions: Sequence[Contribution]) -> None:
        """Prepares later calls with these contributions, for kernels that `merges`."""

    def forward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> None:
        """Attention of some rows to these keys, merged with (total, LSE) over other keys; for kernels that
        `merges`.

        Args:
            total, lse: T × H × D and T × H, float32, contiguous; not read for rows whose contribution
                `is_first`.
            out: T × H × D, contiguous, in the dtype of q: for rows whose contribution `is_last`; for others
                the result goes to `total`.
            contributions: the rows to compute. Other rows are unchanged.
        """
        raise NotImplementedError

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) of one forward result; never accumulates into `.grad`. The default calls
        `raw_backward`, with `saved` = (q, k, v)."""
        q, k, v = forward.saved
        assert forward.lse is not None
        return self.raw_backward(q, k, v, forward.out, forward.lse, dout)

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and an LSE that may cover more keys. Context parallelism needs it.

        Args:
            lse: in the kernel's own layout, as returned by `forward` and `lse_to_layout`.
        """
        raise NotImplementedError

    def backward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
        total: torch.Tensor,
        dq: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) of `raw_backward`; its dq is added to `total`, which covers other keys. For kernels that
        `merges`.

        Args:
            total: T × H × D, float32, contiguous; not read for rows whose contribution `is_first`.
            dq: T × H × D, contiguous, in the dtype of q: for rows whose contribution `is_last`; for others
                the sum goes to `total`.
        """
        raise NotImplementedError


class Kernel(Plugin):
    """An attention operator on one device."""

    family: ClassVar[Literal["dense", "sparse", "both", "control"]] = "dense"
    needs: ClassVar[tuple[str, ...]] = ("torch",)  # modules
    url: ClassVar[str] = ""  # of the called package: https://…
    summary: ClassVar[str] = ""  # one line for lists, of 120 characters at most
    returns_lse: ClassVar[bool] = False
    transposes: ClassVar[bool] = False  # its layout is not tokens × heads × D, so every tensor is copied
    deterministic: ClassVar[bool] = False
    """True if equal inputs always give bit-identical gradients. Each backward cell is held to it: several
    calls must have the same bits"""
    keeps_bits_of_heads: ClassVar[bool] = False
    """True if the bits of a head's results do not depend on the other heads of its call, where
    `Problem.planned_kv_heads` is the same and all heads share one mask"""
    merges: ClassVar[bool] = False
    """True if the epilogue can merge results with those over other keys: `forward_onto` and
    `backward_onto`"""

    def available(self, device_type: str) -> Answer:
        """None if the kernel can run on this machine's device of that type ("cpu", "cuda"), else the reason
        why not."""
        return missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> Answer:
        """None if the kernel supports this call, else the reason why not. Pure: it depends only on these
        arguments, never on the mask's name.

        Args:
            traits: traits of the mask, including lengths.
            device_type: "cpu" or "cuda".
        """
        raise NotImplementedError

    def in_parts(self, call: CallSpec, device_type: str) -> Answer:
        """None if the kernel can process the keys of a row in several calls, else the reason why not. Pure.

        Context parallelism over keys requires it: the kernel returns its LSE and, for a backward, has a
        `raw_backward`.
        """
        return (
            None
            if self.returns_lse
            else "it returns no LSE, by which results over parts of the keys are put together"
        )

    def predicted_backward_us(self, call: CallSpec, mask: Mask) -> float | None:
        """Microseconds that a backward call under a mask is predicted to take, to compare calls with each
        other; None if the kernel predicts none. Pure."""
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Predicted bytes that a call holds at its peak, besides its inputs, result and gradients: LSE,
        tables, sums, workspaces. Pure. A `LazyMask` is built only where its traits do not tell.

        The default is that of most kernels: an LSE; backward, two more statistics of rows, dQ in float32,
        and dK and dV in float32 if heads share keys.
        """
        sizes = CallSizes(call, mask.traits)
        return sizes.lse + (sizes.flash_sums() if sizes.is_backward else 0)

    def prepare(self, problem: Problem) -> Prepared:
        """Does all untimed work. Raises the backend's own errors."""
        raise NotImplementedError

    def warm(
        self, calls: Sequence[tuple[CallSpec, bool]], device: torch.device, masks: Sequence[Mask] = ()
    ) -> int:
        """Compiles, side by side, all code that later calls of these kinds can need under any mask. Returns
        the number of builds; 0 for kernels that compile at their first call of each kind, or nothing.

        Args:
            calls: (call, True if it covers only a part of each row's keys, so that results are merged).
            masks: masks of later calls, for kernels whose code depends on more than the call.
        """
        return 0

    def work(self, call: CallSpec, seqlen: int) -> Work | None:
        """The nominal work of one call of a control over `seqlen` tokens. None for attention, whose work
        follows from the mask."""
        return None


def missing_modules(modules: tuple[str, ...]) -> str | None:
    """The reason why these modules cannot be imported; None if all are installed. Imports neither them nor
    their parents."""
    missing = [name for name in modules if not _is_installed(name)]
    return f"module '{missing[0]}' is not installed" if missing else None


def _is_installed(name: str) -> bool:
    """True if a module is installed. `importlib.util.find_spec` alone would import the parents of a dotted
    name."""
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
    """The reason why generated code cannot be compiled; None if it can.

    Triton compiles its launchers in C, torch.compile its CPU code in C++.
    """
    import os
    import shutil
    import sys

    # torch tries no other compiler unless CXX names it
    cxx = ("clang++",) if sys.platform == "darwin" else ("g++",)
    chosen, usual = ("CC", ("gcc", "clang")) if device_type == "cuda" else ("CXX", cxx)
    candidates = [os.environ[chosen]] if chosen in os.environ else usual
    is_there = any(shutil.which(candidate) for candidate in candidates)
    return None if is_there else f"no compiler: neither {' nor '.join(candidates)} is on the PATH"


def missing_for_triton(modules: tuple[str, ...], device_type: str) -> str | None:
    """The reason why a kernel that Triton compiles for NVIDIA GPUs cannot run on a device of that type; None
    if it can."""
    if device_type != "cuda":
        return "runs on NVIDIA GPUs only"
    return missing_modules(modules) or missing_compiler(device_type)


def unfit_mask(traits: Traits, *, tails: bool = False) -> str | None:
    """The reason why a mask is neither a row of segments under one window nor a full rectangle; None if it
    is.

    Args:
        tails: the kernel aligns a window at the bottom right, so it takes queries that are the last of more
            tokens under one window.
    """
    if traits.num_segments or traits.full or (tails and traits.tail_window):
        return None
    if traits.per_head:
        return (
            "heads have masks of their own; it takes one mask for all, of segments of tokens under one window"
        )
    return (
        "the mask is more than segments of tokens under one window (causal, sliding or none), and it "
        "takes no other"
    ) + ("" if traits.seqlen_q >= traits.seqlen_k else MORE_KEYS[tails])


def unfit_device(device_type: str, *architectures: str) -> str | None:
    """The reason why a kernel for these GPU architectures ("sm_90"; "sm_80+" with all newer ones) cannot run
    here; None if it can."""
    if device_type != "cuda":
        return "it runs on NVIDIA GPUs only"
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return "module 'torch' is not installed"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU here"
    found = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if any(found == one or (one.endswith("+") and int(found[3:]) >= int(one[3:-1])) for one in architectures):
        return None
    return f"it needs a GPU of {' or '.join(architectures)}, and this one is {found}"


def unfit_build(call: CallSpec, head_dims: tuple[int, ...], dtypes: tuple[str, ...]) -> str | None:
    """The reason why a kernel built only for these head dims and dtypes does not support the call; None if it
    does."""
    if call.head_dim in head_dims and call.dtype in dtypes:
        return None
    return f"this build has head dim {_listed(head_dims)} in {_listed(dtypes)} only"


def _listed(values: tuple[object, ...]) -> str:
    return " and ".join(str(value) for value in values)
