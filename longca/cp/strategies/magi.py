"""The package MagiAttention: its own sharding, plan, messages and kernel, for any mask that all heads share.

It assigns chunks of tokens to ranks such that areas are balanced, multicasts keys to the ranks that need
them, and reduces their gradients. This strategy calls the public functions of release 1.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.cp.baselines.autograd import AutogradPrepared
from longca.cp.contract import Strategy, TokenShard
from longca.lowering import attn_slices

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import Traits

PACKAGE = "magi_attention"
# largest chunk in tokens, and least number of chunks of a rank, for balanced areas
MOST_IN_CHUNK = 2048
CHUNKS_OF_RANK = 4


class Magi(Strategy):
    label = "MagiAttention"
    summary = (
        "The package: chunks dealt by area, keys cast to the ranks that need them, its kernel FFA; "
        "any mask for all heads"
    )
    url = "https://github.com/SandAI-org/MagiAttention"
    needs = (PACKAGE,)
    kernels = ("ffa",)
    baseline = True

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if world == 1:
            return "its plan is for two ranks or more"
        if traits.per_head:
            return "heads have masks of their own; it takes one list of slices for all"
        if not _chunk(traits.seqlen_q, world):
            return f"it pads what {world} ranks × {CHUNKS_OF_RANK} chunks do not divide"
        share = traits.seqlen_q // world
        return [(call, replace(traits, seqlen_q=share, seqlen_k=share))]

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedMagi:
        return PreparedMagi(problem, comm)


def _chunk(seqlen: int, world: int) -> int:
    """Tokens of a chunk: the largest power of two that gives each rank enough whole chunks; 0 if there is
    none."""
    share, rest = divmod(seqlen, world)
    sizes = (1 << power for power in range(MOST_IN_CHUNK.bit_length() - 1, -1, -1))
    return (
        0
        if rest
        else next((size for size in sizes if share % size == 0 and share // size >= CHUNKS_OF_RANK), 0)
    )


class PreparedMagi(AutogradPrepared):
    def __init__(self, problem: Problem, comm: Comm) -> None:
        import importlib

        self._api: Any = importlib.import_module(f"{PACKAGE}.api")
        types = ("FULL", "CAUSAL", "INVCAUSAL", "BICAUSAL")
        slices = attn_slices(problem.mask)
        chunk = _chunk(problem.mask.seqlen_q, comm.world)
        ranges = self._api.AttnRanges.from_ranges
        self._key = self._api.magi_attn_flex_key(
            q_ranges=ranges(slices.q_ranges.tolist()),
            k_ranges=ranges(slices.k_ranges.tolist()),
            attn_mask_type=[
                getattr(self._api.AttnMaskType, types[number]) for number in slices.types.tolist()
            ],
            total_seqlen_q=problem.mask.seqlen_q,
            total_seqlen_k=problem.mask.seqlen_k,
            num_heads_q=problem.num_q_heads,
            num_heads_kv=problem.num_kv_heads,
            head_dim=problem.head_dim,
            pad_size=0,
            chunk_size=chunk,
            cp_group_or_mesh=comm.torch_group,
        )
        positions = self._api.get_position_ids(self._key).cpu().numpy().astype("int64")
        super().__init__(problem, TokenShard(positions))
        self.notes.append(f"its plan, in chunks of {chunk} tokens")

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, _ = self._api.calc_attn(q, k, v, self._key)
        return out.to(q.dtype)
