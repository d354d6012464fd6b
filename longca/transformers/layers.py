"""The attention of a sharded model's layers, each under the mask of its type."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from longca.core import UserError
from longca.cp import ContextParallel


class PlannedHeads(NamedTuple):
    """The heads that a context is planned for."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int


class LayerContext:
    """The attention of a sharded model's layers for one batch."""

    def __init__(self, cp: ContextParallel, layer_types: tuple[str, ...], planned: PlannedHeads) -> None:
        self._cp = cp
        self._layer_types = layer_types
        self._planned = planned

    def attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """(1, L, H, Dv): attention of this rank's queries to all keys that the layer's mask shows.

        Args:
            module: the layer, which knows its type by its number.
            q: (1, L, H, D); k: (1, L, G, D); v: (1, L, G, Dv).
            sinks: (H,), whose gradient on this rank is a part: the sum over ranks is the gradient.

        Raises:
            UserError: the layer has other heads than planned, and cannot be brought to them.
        """
        num_heads, num_kv_heads, head_dim = self._planned
        own = PlannedHeads(q.shape[2], k.shape[2], max(q.shape[3], v.shape[3]))
        if own.num_q_heads != num_heads or num_kv_heads % own.num_kv_heads or own.head_dim > head_dim:
            raise UserError(
                f"{type(module).__name__} has {_text(own)}",
                why=f"the plan is for {_text(self._planned)}",
                todo="Give num_q_heads, num_kv_heads and head_dim to longca.transformers.shard: the most of "
                "any layer",
            )
        factor = scale * head_dim**0.5  # the context scales by 1 / √D
        q = q if abs(factor - 1) < 1e-9 else q * factor
        if own.num_kv_heads < num_kv_heads:
            k, v = (x.repeat_interleave(num_kv_heads // own.num_kv_heads, dim=2) for x in (k, v))
        width = v.shape[3]
        q, k, v = (
            nn.functional.pad(x, (0, head_dim - x.shape[3])) for x in (q, k, v)
        )  # zeros change nothing
        out = self._cp.attention(q[0], k[0], v[0], mask=self._number(module), sinks=sinks)[None]
        return out[..., :width]

    def _number(self, module: Any) -> int:
        """The index of the layer's mask."""
        if len(self._layer_types) == 1:
            return 0
        number = getattr(module, "layer_idx", None)
        kinds = getattr(getattr(module, "config", None), "layer_types", None)
        if number is None or kinds is None or kinds[number] not in self._layer_types:
            raise UserError(
                f"{type(module).__name__} does not say which of {len(self._layer_types)} masks is its own",
                todo="Train this model on one rank",
            )
        return self._layer_types.index(kinds[number])


def _text(heads: PlannedHeads) -> str:
    return f"{heads.num_q_heads} query heads, {heads.num_kv_heads} KV heads and head dim {heads.head_dim}"
