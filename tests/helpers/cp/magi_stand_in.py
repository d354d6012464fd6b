"""A stand-in for MagiAttention's public functions, by their definition on CPU: what its rows are tried over
where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist


class AttnMaskType(Enum):
    FULL, CAUSAL, INVCAUSAL, BICAUSAL = range(4)


class AttnRanges:
    @classmethod
    def from_ranges(cls, ranges: list[list[int]]) -> list[list[int]]:
        assert all(len(entry) == 2 and entry[0] <= entry[1] for entry in ranges)
        return ranges


@contextmanager
def magi_stand_in() -> Iterator[list[dict[str, Any]]]:
    """The package is there. Gives the options of all calls of its kernel."""
    calls: list[dict[str, Any]] = []

    def flex_flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q_ranges: torch.Tensor,
        k_ranges: torch.Tensor,
        attn_type_map: torch.Tensor,
        softmax_scale: float,
        **options: Any,
    ) -> tuple[torch.Tensor, Any]:
        assert {q_ranges.dtype, k_ranges.dtype, attn_type_map.dtype} == {torch.int32}
        calls.append(options)
        out, lse = attend(
            q, k, v, q_ranges.tolist(), k_ranges.tolist(), attn_type_map.tolist(), softmax_scale
        )
        return out, SimpleNamespace(lse=lse)

    functional = ModuleType("magi_attention.functional")
    api = ModuleType("magi_attention.api")
    functional.__dict__["flex_flash_attn_func"] = flex_flash_attn_func
    for entry in (AttnRanges, AttnMaskType, magi_attn_flex_key, get_position_ids, calc_attn):
        api.__dict__[entry.__name__] = entry
    names = {
        "magi_attention": ModuleType("magi_attention"),
        functional.__name__: functional,
        api.__name__: api,
    }
    with patch.dict(sys.modules, names):
        yield calls


def magi_attn_flex_key(
    q_ranges: Any,
    k_ranges: Any,
    attn_mask_type: list[AttnMaskType],
    total_seqlen_q: int,
    total_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    pad_size: int,
    chunk_size: int,
    cp_group_or_mesh: Any,
) -> Any:
    world = dist.get_world_size(cp_group_or_mesh)
    assert pad_size == 0 and total_seqlen_q == total_seqlen_k and total_seqlen_q % (world * chunk_size) == 0
    chunks = torch.arange(total_seqlen_q).view(-1, chunk_size)
    dealt = [torch.cat(list(chunks[rank::world])) for rank in range(world)]
    return SimpleNamespace(
        slices=(q_ranges, k_ranges, [entry.value for entry in attn_mask_type]),
        dealt=dealt,
        group=cp_group_or_mesh,
        rank=dist.get_rank(cp_group_or_mesh),
        scale=head_dim**-0.5,
    )


def get_position_ids(key: Any) -> torch.Tensor:
    return key.dealt[key.rank]


def calc_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    from torch.distributed.nn.functional import all_gather

    back = torch.cat(key.dealt).argsort()
    k, v = (torch.cat(list(all_gather(x.contiguous(), key.group)))[back] for x in (k, v))
    whole = q.new_zeros(len(back), *q.shape[1:]).index_copy(0, key.dealt[key.rank], q)
    out, lse = attend(whole, k, v, *key.slices, key.scale)
    return out[key.dealt[key.rank]], SimpleNamespace(lse=lse)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ranges: list,
    k_ranges: list,
    types: list[int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    visible = torch.zeros(len(q), len(k), dtype=torch.bool)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, types, strict=True):
        row = torch.arange(q1 - q0)[:, None]
        col = torch.arange(k1 - k0)
        part = ((col <= row + (k1 - k0) - (q1 - q0)) | (kind in (0, 2))) & ((col >= row) | (kind in (0, 1)))
        assert not (visible[q0:q1, k0:k1] & part).any(), "slices must not overlap"
        visible[q0:q1, k0:k1] |= part
    ratio = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float().repeat_interleave(ratio, 1)) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = (
        torch.where(visible.any(1)[:, None], scores, 0.0).softmax(-1) * visible
    )  # a row without keys is 0
    return torch.einsum("hqk,khd->qhd", weights, v.float().repeat_interleave(ratio, 1)).to(
        q.dtype
    ), scores.logsumexp(-1).T
