"""Evaluation of a user's `mask_mod` with torch's semantics: pair by pair, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from longca.lowering.mask_mod import MaskMod

MOST_ELEMENTS = 1 << 21  # of the largest tensor of one evaluation; all its tensors take some 100 MB
PROBED = 4, 8  # edges of two squares of pairs, from which the growth of this tensor is measured


def is_noop(mask_mod: object) -> bool:
    """True for the `mask_mod` of a BlockMask that was made without one: all pairs of a block are visible."""
    from torch.nn.attention.flex_attention import noop_mask

    return mask_mod is noop_mask


class PairTest:
    """A `mask_mod` with its batch entry and head, evaluated by torch's own `create_mask`.

    torch maps it by `vmap` over b, h, q and kv, so a `mask_mod` that reduces over a captured table does so
    for each pair. Many tiles of pairs are evaluated at once.
    """

    def __init__(
        self, mask_mod: MaskMod, batch: int, head: int, seqlens: tuple[int, int], device: torch.device
    ) -> None:
        """
        Args:
            seqlens: numbers of queries and keys; indices beyond them are never passed to the test.
        """
        self._mask_mod = mask_mod
        self._batch = batch
        self._head = head
        self._seqlens = seqlens
        self._device = device

    def most_pairs(self) -> int:
        """The largest number of pairs, at least 1, whose evaluation creates no tensor of more than
        `MOST_ELEMENTS`.

        Raises:
            ValueError: torch cannot evaluate the `mask_mod` in this way.
        """
        small, large = (self._largest_tensor(edge) for edge in PROBED)
        per_pair = -(-(large - small) // (PROBED[1] ** 2 - PROBED[0] ** 2))
        return max(MOST_ELEMENTS // max(per_pair, 1), 1)

    def visible(self, corners: np.ndarray, height: int, width: int) -> np.ndarray:
        """Bool (n, height, width): the visible pairs of n tiles.

        Beyond the last query and key the result repeats theirs.

        Args:
            corners: int64 (n, 2), the first query and the first key of each tile.

        Raises:
            ValueError: torch cannot evaluate the `mask_mod` in this way.
        """
        import torch
        from torch.nn.attention.flex_attention import create_mask

        first_q, first_k = torch.from_numpy(corners).to(self._device).unbind(1)
        last_q, last_k = (seqlen - 1 for seqlen in self._seqlens)

        def visible(
            tile: torch.Tensor, h: torch.Tensor, row: torch.Tensor, col: torch.Tensor
        ) -> torch.Tensor:
            q_idx = (first_q[tile] + row).clamp(max=last_q)
            kv_idx = (first_k[tile] + col).clamp(max=last_k)
            return self._mask_mod(tile * 0 + self._batch, h + self._head, q_idx, kv_idx)

        try:
            with torch.no_grad():
                answer = create_mask(visible, len(corners), 1, height, width, device=self._device)
        except Exception as error:  # a user's function may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            if "sliced BlockMask" in reason:
                raise ValueError(
                    "it is a slice, and torch takes the mask_mod out of a slice: give the whole BlockMask "
                    "and name the entry, as from_block_mask(block_mask, batch=1, head=0)"
                ) from None
            raise ValueError(
                f"its mask_mod cannot be evaluated pair by pair, as torch does it: {reason}"
            ) from None
        if answer.dtype != torch.bool or answer.ndim != 4:
            given = f"{answer.dtype}" + (
                f" of the shape {tuple(answer.shape[4:])}" if answer.ndim > 4 else ""
            )
            raise ValueError(f"its mask_mod must give one bool for each pair, and it gives {given}")
        return answer[:, 0].cpu().numpy()

    def _largest_tensor(self, edge: int) -> int:
        """Elements of the largest tensor during the evaluation of a square of pairs."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Sizes(TorchDispatchMode):
            largest = 0

            def __torch_dispatch__(
                self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                result = function(*args, **(kwargs or {}))
                for tensor in result if isinstance(result, (list, tuple)) else (result,):
                    if isinstance(tensor, torch.Tensor):
                        self.largest = max(self.largest, tensor.numel())
                return result

        with Sizes() as sizes:
            self.visible(np.zeros((1, 2), dtype=np.int64), edge, edge)
        return sizes.largest
