"""All builds of band attention's kernels that masks of bands can ask for, and their compilation side by
side.

A build depends on the heads that share a tile, on the head dim, on dtypes, and on the variant of a kernel:
never on a mask's or a sequence's length. So they are few, and calls of any later mask find them compiled:

    kernel           its variants
    forward          alone; the first, a middle and the last of several calls over disjoint keys
    combine          the same, where row tiles are split
    preprocess       heads of a pack, with the copies that TMA needs or without
    dK and dV        one
    dQ               as the forward pass
    fused            for each order of additions to dQ; the first addends stored, or added to zeros
    finish           dQ as the forward pass, of all rows or of some
    add partials     as dQ, where row tiles are split
    merge            for results of the call's dtype and of float32, of calls in parts

Block masks have builds for their sizes of blocks: `blocks_like` names masks whose builds are wanted, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longca.masks import Mask, build_mask
from longca.ops.band.config import BandKernel, choose_tiles
from longca.ops.band.launch import start_backward, start_forward
from longca.ops.band.merge import merge_parts
from longca.ops.band.plan import BandPlan, of_rows, plan_band_attention
from longca.ops.band.replay.launches import ALIGNMENT, OPTIONS, Launches
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.schedule import TileSchedule

TOKENS = 256  # of the calls whose builds are listed: their launches never start
MOST_THREADS = 16


@dataclass(frozen=True)
class CallForm:
    """What builds depend on beside the variant."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    needs_backward: bool = True
    in_parts: bool = False
    """calls over parts of the keys, whose results are merged: context parallelism over keys"""
    deterministic: bool = True


@dataclass(frozen=True)
class KernelBuild:
    """A launch whose build is wanted."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, int]

    def compile(self, device: torch.device) -> None:
        """Compiles the build, or finds it in Triton's cache, and loads it onto the device."""
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            build = self.kernel.warmup(*self.args, grid=(1,), **OPTIONS, **self.options)
            # its launcher is compiled, too, and its code loaded, at the first use of `run`
            getattr(build, "run", None)


class BuildList(Launches):
    """Lists what calls would start, and starts nothing."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.builds: list[KernelBuild] = []

    @property
    def multiprocessors(self) -> int:
        return 1  # of no device: nothing starts

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: int) -> None:
        self.builds.append(KernelBuild(kernel, args, options))


def builds_of(
    form: CallForm,
    device: torch.device,
    blocks_like: Sequence[Mask] = (),
    capability: tuple[int, int] | None = None,
) -> list[KernelBuild]:
    """The builds that calls of this form can ask for under any mask of bands; equal ones may be listed more
    than once.

    Args:
        blocks_like: block masks, for whose sizes of blocks builds are listed, too.
        capability: compute capability of the GPU; by default that of the device.
    """
    if capability is None and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
    builds = BuildList(device)
    for plan in _plans(form, device, blocks_like, capability):
        _list_forward(builds, form, plan)
        if form.needs_backward:
            _list_backward(builds, form, plan)
        if form.in_parts:
            _list_merges(builds, form, plan)
    return builds.builds


def compile_builds(builds: Sequence[KernelBuild], device: torch.device) -> int:
    """Compiles builds side by side, and returns how many different ones there are."""
    if device.type == "cuda" and device.index is None:  # other threads have another current device
        device = torch.device("cuda", torch.cuda.current_device())
    different = list({_key(build): build for build in builds}.values())
    # Triton's compiler and the assembler leave Python to other threads for most of their time
    with ThreadPoolExecutor(min(MOST_THREADS, max(len(different), 1)), "longca-builds") as threads:
        _make_caches(different, device)
        list(threads.map(lambda build: build.compile(device), different))
    return len(different)


def _make_caches(builds: Sequence[KernelBuild], device: torch.device) -> None:
    """Makes each kernel's table of builds, which two threads would make twice, and lose what is in one."""
    for kernel in {build.kernel for build in builds}:
        if hasattr(kernel, "device_caches"):
            kernel.device_caches[device.index or 0]


def _key(build: KernelBuild) -> Any:
    """Equal for launches of one build."""
    params = zip(build.kernel.params, build.args, strict=True)
    return (
        build.kernel,
        tuple(
            arg if param.is_constexpr else type(arg) if param.do_not_specialize else _kind(arg)
            for param, arg in params
        ),
        tuple(sorted(build.options.items())),
    )


def _kind(arg: Any) -> Any:
    """The properties of an argument that select a build: its dtype, a box of TMA, or those of a number."""
    if isinstance(arg, Tensor):
        return arg.dtype
    if isinstance(arg, int):
        return arg == 1, arg % ALIGNMENT == 0
    base = getattr(arg, "base", None)
    return (base.dtype, tuple(arg.block_shape)) if isinstance(base, Tensor) else type(arg)


def _plans(
    form: CallForm, device: torch.device, blocks_like: Sequence[Mask], capability: tuple[int, int] | None
) -> Iterator[BandPlan]:
    """Small plans with all tiles and all variants of schedules that masks can have."""
    heads: dict[str, Any] = {
        "num_q_heads": form.num_q_heads,
        "num_kv_heads": form.num_kv_heads,
        "head_dim": form.head_dim,
        "needs_backward": form.needs_backward,
    }
    mask = build_mask("causal", seqlen=TOKENS)
    orders = (None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST) if form.deterministic else (AddOrder.ANY,)
    tiles = [choose_tiles(form.head_dim, capability, dq_order=order) for order in orders]
    for known in {str(each): each for each in tiles}.values():
        plan = plan_band_attention(mask, **heads, device=device, tiles=known)
        variants = [
            list(_variants(schedule, stores=(True, False) if config.stores_first else (False,)))
            for schedule, config in plan.kernels.values()
        ]
        for schedules in itertools.zip_longest(*variants):
            yield replace(
                plan,
                kernels={
                    kernel: (schedule or of_kernel[0], config)
                    for schedule, of_kernel, (kernel, (_, config)) in zip(
                        schedules, variants, plan.kernels.items(), strict=True
                    )
                },
            )
    for blocks in blocks_like:
        yield plan_band_attention(blocks, **heads, device=device, deterministic=form.deterministic)


def _variants(schedule: TileSchedule, stores: Sequence[bool]) -> Iterator[TileSchedule]:
    """The schedule with row tiles that are split or whole, and with partial blocks or without.

    Args:
        stores: whether first addends are stored.
    """
    for slots, masks, stored in itertools.product(
        (1, 0), (schedule.partial_masks, schedule.partial_masks[:0]), stores
    ):
        yield replace(schedule, num_slots=slots, partial_masks=masks, stores_first=stored)


def _tensors(form: CallForm, plan: BandPlan) -> tuple[Tensor, Tensor, Tensor]:
    """(queries, keys, LSE)"""
    how = {"dtype": form.dtype, "device": plan.device}
    return (
        torch.empty(plan.seqlen_q, form.num_q_heads, form.head_dim, **how),
        torch.empty(plan.seqlen_k, form.num_kv_heads, form.head_dim, **how),
        torch.empty(plan.seqlen_q, form.num_q_heads, dtype=torch.float32, device=plan.device),
    )


def _results(form: CallForm) -> list[tuple[torch.dtype, bool]]:
    """(dtype of a result, whether it is added to an initial one): of a call alone; in parts, also of the
    first, a middle and the last one."""
    if not form.in_parts:
        return [(form.dtype, False)]
    return [(form.dtype, False), (torch.float32, False), (torch.float32, True), (form.dtype, True)]


def _list_forward(builds: BuildList, form: CallForm, plan: BandPlan) -> None:
    q, k, lse = _tensors(form, plan)
    for dtype, has_initial in _results(form):
        initial = (q.float(), lse) if has_initial else ()
        start_forward(plan, 1.0, builds, q, k, k, q.to(dtype), lse, *initial)


def _list_merges(builds: BuildList, form: CallForm, plan: BandPlan) -> None:
    """Lists merges of results that no epilogue merged."""
    q, _, lse = _tensors(form, plan)
    for dtype in (form.dtype, torch.float32):
        merge_parts(q.float(), lse, q.to(dtype), lse, builds)


def _list_backward(builds: BuildList, form: CallForm, plan: BandPlan) -> None:
    q, k, lse = _tensors(form, plan)
    parts = [plan]
    if form.in_parts and plan.seqlen_q > TOKENS // 2 and BandKernel.DQ not in plan.kernels:
        parts.append(of_rows(plan, [(0, TOKENS // 2)]))
    for part, (dtype, has_initial) in itertools.product(parts, _results(form)):
        others = (q.to(dtype), *((q.float(),) if has_initial else ()))
        start_backward(plan, 1.0, False, [(part, has_initial)], builds, q, k, k, q, lse, q, k, k, *others)
