"""The forecast of the two strategies in the style of the study, which have no plan: their steps are equal on
all ranks by construction.

    ring         step 0 │ … │ step P − 1     a step takes as long as its kernel or as the keys of the next one, whichever is longer
    all-gather   gather │ first half │ second half │ backward: reduce-scatter          nothing is overlapped

A collective over several nodes brings each shard into a node once, by one of its adapters, and spreads it
there: each adapter carries a share. A ring's hop between nodes has one adapter to itself and no more.

The forecast is for a middle rank: with padded documents all ranks have the same area, except for the padding.
"""  # noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import Registry, UserError
from longca.cp.baselines.paper_style import (
    BOTH,
    CAUSAL,
    PaddedDocuments,
    causal_mask,
    full_mask,
    gathered_mask,
)
from longca.cp.forecast import SUM_BYTES, CallForecast, DeviceModel
from longca.cp.schedule.memory import shard_bytes
from longca.cp.schedule.planner import LinkSpeeds
from longca.cp.schedule.timeline import RankTimes
from longca.masks import diagonal_segments
from longca.predict.fitted import call_amounts, whole_statistics

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.masks import Mask

RING = "paper_style_ring"
GATHER = "paper_style_allgather"
MERGE_PASSES = 6  # over float32 rows of a partial output, while it is merged at the end
FIRST = (0,)
SECOND = (1,)


def forecast_paper_style(
    strategy: str, mask: Mask, call: CallSpec, world: int, device: DeviceModel, links: LinkSpeeds
) -> CallForecast:
    """Forecasts a call in the direction of its specification.

    Raises:
        UserError: the study's schedules do not do this mask.
    """
    segments = diagonal_segments(mask)
    if segments is None or mask.num_groups > 1 or segments.window not in ((-1, -1), CAUSAL):
        raise UserError(
            f"'{strategy}' cannot do this mask",
            why="it is for full and causal attention, over the sequence or in documents",
        )
    documents = PaddedDocuments(segments.bounds, world)
    causal = segments.window == CAUSAL
    backward = call.direction == "bwd"
    # keys and values of a rank, padded
    shard = 2.0 * documents.num_rows * call.num_kv_heads * call.head_dim * call.elem_bytes
    ranks = range(world)
    byte_s = float(links.byte_s(ranks).max())
    message_s = float(links.batch_s(ranks))
    calls = (
        _ring_calls(documents, world, causal) if strategy == RING else _gather_calls(documents, world, causal)
    )
    at_boost = [(count, _call_s(part, call, device, merged=strategy == RING)) for count, part in calls]
    model = device.kernel.for_call(calls[0][1], call.num_kv_heads)
    slowdown = float(model.slowdown(sum(count * seconds for count, seconds in at_boost)))
    kernels = [(count, seconds * slowdown) for count, seconds in at_boost]
    compute = sum(count * seconds for count, seconds in kernels)
    if strategy == RING:
        hop = (2 if backward else 1) * (shard * byte_s + message_s) if world > 1 else 0.0
        hidden = sum(count * min(seconds, hop) for count, seconds in kernels) - min(kernels[-1][1], hop)
        moved = (world - 1) * (2 if backward else 1) + (1 if backward and world > 1 else 0)
        total = (
            compute
            + hop * (world - 1)
            - hidden
            + (hop / 2 if backward else 0)
            + links.overlap_slowdown * hidden
        )
        between = moved * shard * (world > links.ranks_per_node)
    else:
        moved = (world - 1) * (2 if backward else 1)
        shared = max(world - links.ranks_per_node, 0) / links.ranks_per_node * (2 if backward else 1)
        between = shared * shard
        collective_s = max(
            moved * shard / links.intra_node_bytes_per_s, between / links.inter_node_bytes_per_s
        )
        total = compute + collective_s + (moved > 0) * message_s * (2 if backward else 1)
    full = np.full((world, 1), 1.0)
    times = RankTimes(full * compute, full * compute, full * total)
    statistics = whole_statistics(mask, device.kernel.usual.shape, call.num_q_heads // call.num_kv_heads)
    kernel = Registry("kernel").load(device.kernel.usual.kernel)
    buffers = Registry("strategy").load(strategy).buffer_bytes(mask, call, world, kernel, "cuda")
    return CallForecast(
        times,
        slowdown,
        sum(count for count, _ in calls),
        statistics.waste,
        moved * shard,
        between,
        shard_bytes(documents.num_rows, call) + buffers,
    )


def _ring_calls(documents: PaddedDocuments, world: int, causal: bool) -> list[tuple[int, Mask]]:
    """(count, mask) of a middle rank's calls; the last entry is that of the last step."""
    rank = world // 2
    own = documents.held(rank)
    calls = [(1, (causal_mask if causal else full_mask)(own.lengths, own.lengths))]
    if not causal:
        return (
            [*calls, (world - 1, full_mask(own.lengths, documents.held(0).lengths))] if world > 1 else calls
        )
    if rank:
        calls.append((rank, full_mask(own.lengths, documents.held(0, FIRST).lengths)))
    if world - 1 - rank:
        calls.append(
            (
                world - 1 - rank,
                full_mask(documents.held(rank, SECOND).lengths, documents.held(world - 1, BOTH).lengths),
            )
        )
    return [(count, part) for count, part in calls if part.area]


def _gather_calls(documents: PaddedDocuments, world: int, causal: bool) -> list[tuple[int, Mask]]:
    calls = []
    for half in (0, 1):
        held = documents.held(world // 2, (half,))
        calls.append((1, gathered_mask(documents, held, causal=causal)))
    return [(count, part) for count, part in calls if part.area]


def _call_s(mask: Mask, call: CallSpec, device: DeviceModel, *, merged: bool) -> float:
    """Seconds of one kernel call at full clock, with the copies of its rows before and after it."""
    model = device.kernel.for_call(mask, call.num_kv_heads)
    elem = call.elem_bytes
    q_row = call.num_q_heads * call.head_dim
    kv_row = 2 * call.num_kv_heads * call.head_dim
    if call.direction == "bwd":
        passes = mask.seqlen_q * q_row * (3 * 2 * elem + 26) + mask.seqlen_k * kv_row * (2 + 8) * elem
    else:
        merge = MERGE_PASSES * SUM_BYTES if merged else 2 * elem
        passes = mask.seqlen_q * q_row * (2 * elem + merge) + mask.seqlen_k * kv_row * 2 * elem
    kernel = model.boosted_s(call_amounts(model, mask, call.num_q_heads, call.num_kv_heads), call.head_dim)
    return float(kernel) + passes / device.memory_bytes_per_s
