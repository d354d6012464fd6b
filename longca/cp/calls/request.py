"""The request of a rank: the arguments of `context_parallel`, checked on each rank and compared between ranks
before planning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import yaml

from longca.core import Registry, Scalar, UserError, one_kernel, truth, whole_number
from longca.cp.calls.ranks import all_or_none
from longca.cp.contract import HeadStrategy
from longca.cp.runtime.fixed_attention import FixedOrder
from longca.kernels import Problem
from longca.masks import Mask

if TYPE_CHECKING:
    import torch

    from longca.core import CallSpec, Messages
    from longca.cp.comm.backend import Comm
    from longca.kernels import Kernel

AUTO = "auto"
KERNELS = ("band", "naive")
"""the local kernels that "auto" chooses among: the first that runs here and does the masks with these heads
and this dtype; `band` runs on GPUs only"""
DTYPES = ("bfloat16", "float16", "float32")
MESSAGES = (AUTO, "nccl", "symmetric")
CHECKS = ("first", "always")
REDUCTIONS = ("fast", "fixed")
_WITH_PARAMS = re.compile(r"(\w+)\s*[(\[](.*)[)\]]")


@dataclass(frozen=True)
class CpRequest:
    """All that a plan depends on beside the masks. It is the same on every rank but for the device's
    number."""

    strategy: str
    params: tuple[tuple[str, Scalar], ...]
    kernel: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    needs_backward: bool
    messages: Messages | Literal["auto"]
    check: str
    reduction: str = "fast"

    def problem(self, mask: Mask) -> Problem:
        return Problem(
            mask,
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            self.dtype,
            self.device,
            self.needs_backward,
            records_costs=False,
        )

    def call_spec(self, mask: Mask) -> CallSpec:
        return self.problem(mask).call_spec

    def strategies(self) -> list[HeadStrategy]:
        """The strategy asked for, or all that "auto" chooses among, with sums in the order asked for."""
        if self.strategy != AUTO:
            strategies = [load_strategy(self.strategy, dict(self.params))]
        else:
            strategies = [
                strategy
                for strategy in Registry("strategy").load_all()
                if isinstance(strategy, HeadStrategy) and not strategy.baseline
            ]
        return list(map(FixedOrder, strategies)) if self.reduction == "fixed" else strategies

    def load_kernel(self) -> Kernel:
        return Registry("kernel").load(self.kernel)

    def compared(self) -> dict[str, str]:
        """The arguments that ranks must have in common, by name."""
        params = ", ".join(f"{name}={value}" for name, value in self.params)
        return {
            "strategy": f"{self.strategy}({params})" if params else self.strategy,
            "kernel": self.kernel,
            "num_q_heads": str(self.num_q_heads),
            "num_kv_heads": str(self.num_kv_heads),
            "head_dim": str(self.head_dim),
            "dtype": str(self.dtype),
            "device": self.device.type,
            "backward": str(self.needs_backward),
            "messages": self.messages,
            "check": self.check,
            "reduction": self.reduction,
        }


def agreed_request(
    comm: Comm, masks: Any, strategy: Any, arguments: Mapping[str, Any]
) -> tuple[CpRequest, tuple[Mask, ...]]:
    """The checked request and masks, which are the same on all ranks. All ranks call it together.

    Args:
        arguments: those of `context_parallel` by name: kernel, num_q_heads, num_kv_heads, head_dim, dtype,
            backward, messages, check, reduction.

    Raises:
        UserError: on all ranks alike, where an argument cannot be used on one of them, or differs between
        them.
    """

    def checked() -> tuple[CpRequest, tuple[Mask, ...]]:
        request = _request(comm.device, strategy, **arguments)
        given = checked_masks(masks, arguments)
        return replace(request, kernel=_kernel(request, given)), given

    request, agreed = all_or_none(comm, checked)
    compare(comm, {**request.compared(), "mask": described(agreed)})
    return request, agreed


def compare(comm: Comm, mine: Mapping[str, str]) -> None:
    """Raises UserError on all ranks where they do not all say the same, and names the argument."""
    of_ranks = comm.gather(dict(mine))
    for name, value in of_ranks[0].items():
        for rank, other in enumerate(of_ranks):
            if other[name] != value:
                raise UserError(
                    f"Argument '{name}' differs between ranks",
                    why=f"rank 0 has {value}, rank {rank} has {other[name]}",
                    todo="Give the same on every rank; where it is drawn, give the same seed"
                    if name == "mask"
                    else "Give the same on every rank",
                )


def described(masks: Sequence[Mask]) -> str:
    """Masks for an error, by name, length and digest: equal texts mean equal masks."""
    return ", ".join(f"{mask.name or 'a mask'} of {mask.seqlen_q} tokens ({mask.digest})" for mask in masks)


def load_strategy(name: str, params: Mapping[str, Scalar]) -> HeadStrategy:
    loaded = Registry("strategy").load(name)
    if not isinstance(loaded, HeadStrategy):
        raise UserError(
            f"Strategy '{name}' cannot be called with any mask",
            why="it is a peer that studies compare with",
            todo='Take another one, or strategy="auto"; `longca list strategies` shows all',
        )
    return loaded.with_params(params)


def apart(strategy: Any, kernel: Any) -> tuple[Any, Any]:
    """The strategy without the kernel that it may name, as in "usp+band", and the kernel. Raises UserError:
    the argument `kernel` names another one."""
    name = strategy[0] if isinstance(strategy, tuple) and strategy else strategy
    if not isinstance(name, str):
        return strategy, kernel
    given = () if kernel == AUTO else (str(kernel),)
    name, named = one_kernel(name, given)
    return (name, *strategy[1:]) if isinstance(strategy, tuple) else name, named or kernel


def parse_strategy(strategy: Any) -> tuple[str, tuple[tuple[str, Scalar], ...]]:
    """(name, parameters) from "usp", "usp(heads=2)" or ("usp", {"heads": 2}).

    Raises:
        UserError: it is none of these, or there is no such strategy or parameter.
    """
    name = strategy
    params = {}
    if isinstance(strategy, tuple) and len(strategy) == 2 and isinstance(strategy[1], Mapping):
        name = strategy[0]
        params = dict(strategy[1])
    if isinstance(name, str) and (match := _WITH_PARAMS.fullmatch(name.strip())):
        name = match[1]
        pairs = [part.partition("=") for part in match[2].split(",") if part.strip()]
        try:
            params |= {key.strip(): yaml.safe_load(value) for key, _, value in pairs}
        except yaml.YAMLError:
            raise UserError(
                f"Argument 'strategy' is '{strategy}'",
                why="a value in it cannot be read",
                todo='Write values as in "usp(heads=2)"',
            ) from None
    if not isinstance(name, str):
        raise UserError(
            f"Argument 'strategy' is {strategy!r}",
            todo='Give a name, as "usp", "usp(heads=2)" or ("usp", {"heads": 2})',
        )
    if name == AUTO:
        if params:
            raise UserError(
                "Argument 'strategy' is \"auto\" with parameters", todo="Name the strategy that they are for"
            )
        return AUTO, ()
    return name, tuple(sorted(load_strategy(name, params).resolve(params).items()))


def checked_masks(masks: Any, arguments: Mapping[str, Any]) -> tuple[Mask, ...]:
    """One mask or several as a tuple. Raises UserError where they cannot share a sharding."""
    checked = (
        (masks,) if isinstance(masks, Mask) else tuple(masks) if isinstance(masks, (list, tuple)) else ()
    )
    if not checked or not all(isinstance(mask, Mask) for mask in checked):
        raise UserError(
            f"Argument 'mask' is of type {type(masks).__name__}",
            todo="Give a longca.Mask, as from longca.build_mask, or a list of them",
        )
    for mask in checked:
        if mask.seqlen_q != mask.seqlen_k:
            raise UserError(
                f"Argument 'mask' has {mask.seqlen_q} queries and {mask.seqlen_k} keys",
                why="tokens are divided among ranks, and each is a query and a key",
                todo="Give a square mask; for the last queries of a longer context, "
                "mask.cut((first, last), (0, keys)) of the square mask of all keys",
            )
        if mask.seqlen_q != checked[0].seqlen_q:
            raise UserError(
                f"Argument 'mask' has masks of {checked[0].seqlen_q} and {mask.seqlen_q} tokens",
                why="they share one sharding",
                todo="Give masks of one length, or call context_parallel for each length",
            )
        num_kv_heads = arguments["num_kv_heads"] or arguments["num_q_heads"]
        if num_kv_heads % mask.num_groups:
            raise UserError(
                f"Argument 'mask' differs among {mask.num_groups} head groups, and there are {num_kv_heads} "
                f"KV heads",
                todo="Build it with num_kv_heads= of the model",
            )
    return checked


def _request(
    device: torch.device,
    strategy: Any,
    *,
    kernel: Any,
    num_q_heads: Any,
    num_kv_heads: Any,
    head_dim: Any,
    dtype: Any,
    backward: Any,
    messages: Messages | Literal["auto"],
    check: str,
    reduction: str,
) -> CpRequest:
    import torch

    num_kv_heads = num_q_heads if num_kv_heads is None else num_kv_heads
    num_q_heads, num_kv_heads, head_dim = (
        whole_number(f"Argument '{name}'", number)
        for name, number in (
            ("num_q_heads", num_q_heads),
            ("num_kv_heads", num_kv_heads),
            ("head_dim", head_dim),
        )
    )
    if num_q_heads % num_kv_heads:
        raise UserError(
            f"Argument 'num_kv_heads' is {num_kv_heads}",
            why=f"{num_q_heads} query heads cannot be shared evenly among them",
            todo="Give a divisor of num_q_heads",
        )
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in (known := [getattr(torch, name) for name in DTYPES]):
        raise UserError(
            f"Argument 'dtype' is {dtype!r}",
            todo="Give " + ", ".join(map(str, known[:-1])) + f" or {known[-1]}",
        )
    for argument, value, known in (
        ("messages", messages, MESSAGES),
        ("check", check, CHECKS),
        ("reduction", reduction, REDUCTIONS),
    ):
        if value not in known:
            raise UserError(
                f"Argument '{argument}' is {value!r}", todo=f"Give {' or '.join(map(repr, known))}"
            )
    strategy, kernel = apart(strategy, kernel)
    name, params = parse_strategy(strategy)
    return CpRequest(
        name,
        params,
        kernel,
        num_q_heads,
        num_kv_heads,
        head_dim,
        dtype,
        device,
        truth("Argument 'backward'", backward),
        messages,
        check,
        reduction,
    )


def _kernel(request: CpRequest, masks: Sequence[Mask]) -> str:
    """The name of the local kernel. Raises UserError where it cannot run here."""
    name = request.kernel
    device_type = request.device.type
    if not isinstance(name, str):
        raise UserError(
            f"Argument 'kernel' is {name!r}", todo='Give a name, or "auto"; `longca list kernels` shows all'
        )
    if name == AUTO:
        kernels = {
            one: Registry("kernel").load(one) for one in KERNELS if device_type == "cuda" or one != "band"
        }
        able = [
            kernel_name
            for kernel_name, kernel in kernels.items()
            if not any(kernel.supports(request.call_spec(mask), mask.traits, device_type) for mask in masks)
        ]
        chosen = next(
            kernel_name for kernel_name in able if kernels[kernel_name].available(device_type) is None
        )
        if device_type == "cuda" and chosen != able[0]:
            warnings.warn(
                f"kernel '{able[0]}' is unavailable, and '{chosen}' computes instead, slowly: "
                f"{kernels[able[0]].available(device_type)}",
                stacklevel=2,
            )
        return chosen
    kernel = Registry("kernel").load(name)
    if kernel.family == "control":
        raise UserError(
            f"Kernel '{name}' is a control and no attention", todo='Give another one, or kernel="auto"'
        )
    reason = kernel.available(device_type)
    if reason is not None:
        raise UserError(
            f"Kernel '{name}' is unavailable here", why=reason, todo='Give another one, or kernel="auto"'
        )
    return name
