"""The attention of a sharded model's layers, each under the mask of its type."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from longca.core import UserError
from longca.cp import ContextParallel


class LayerContext:
    """The attention of a sharded model's layers for one batch."""

    def __init__(self, cp: ContextParallel, layer_types: tuple[str, ...]) -> None:
        self._cp = cp
        self._layer_types = layer_types

    def attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """(1, L, H, D): attention of this rank's queries to all keys that the layer's mask shows.

        Args:
            module: the layer, which knows its type by its number.
            q: (1, L, H, D); k, v: (1, L, G, D).
            sinks: (H,), whose gradient on this rank is a part: the sum over ranks is the gradient.
        """
        head_dim = q.shape[-1]
        factor = scale * head_dim**0.5  # the context scales by 1 / √D
        q = q if abs(factor - 1) < 1e-9 else q * factor
        return self._cp.attention(q[0], k[0], v[0], mask=self._number(module), sinks=sinks)[None]

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
