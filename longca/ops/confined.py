"""Matrix products in which NaN and infinity reach only those who see them.

A hidden pair has weight 0, but 0 · NaN and 0 · inf are NaN: in a plain product one bad value of a packed
document would reach all others. Finite inputs take the plain product; to find out costs one sum over each
input.
"""

from __future__ import annotations

import torch
from torch import Tensor


def all_finite(*inputs: Tensor) -> bool:
    """False if one of the tensors has a NaN or an infinity, or if its sum overflows. On a GPU the host
    waits."""
    return all(
        bool(torch.isfinite(x.sum(dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)))
        for x in inputs
    )


def confined_product(weights: Tensor, visible: Tensor, x: Tensor) -> Tensor:
    """weights @ x, summed over visible pairs alone: with NaN and infinity of `x` where a row sees them.

    Args:
        weights: (…, n, m). Values at hidden pairs do not count, whatever they are.
        visible: bool, of the shape of `weights`.
        x: (…, m, p), of the dtype of `weights`.
    """
    weights = weights.masked_fill(~visible, 0.0)
    product = weights @ x.masked_fill(~torch.isfinite(x), 0.0)

    def meets(pairs: Tensor, values: Tensor) -> Tensor:
        """True where a row has such a pair with such a value."""
        return (pairs.to(torch.float32) @ values.to(torch.float32)) > 0

    plus = x == torch.inf
    minus = x == -torch.inf
    is_nan = torch.isnan(x)
    up = meets(weights > 0, plus) | meets(weights < 0, minus)
    down = meets(weights > 0, minus) | meets(weights < 0, plus)
    invalid = (
        torch.isnan(product)
        | meets(visible, is_nan)
        | meets(visible & (weights == 0), plus | minus)
        | (up & down)
    )
    product = product.masked_fill(up, torch.inf).masked_fill(down, -torch.inf)
    return product.masked_fill(invalid, torch.nan)
