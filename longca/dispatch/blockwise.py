"""Attention in plain torch with bounded memory, one block of query rows at a time: the fallback if no other
operator runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longca.dispatch.autocast import autocast_disabled
from longca.dispatch.derivatives import differentiable_once
from longca.lowering import all_finite, confined_product, dense_mask
from longca.masks import Mask, breaks_graph
from longca.masks.band import K0, K1
from longca.ops import sinks_gradient

# of a block, over all heads: 4 MiB in float32 stay in a CPU's cache
MOST_SCORES = {"cpu": 1 << 20, "cuda": 1 << 26}
FEWEST_ROWS = 16  # of a block, even if that exceeds the limit of scores


def blockwise_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(out (Tq, H, D), LSE (Tq, H)), differentiable in q, k, v and sinks by both. Rows that see no key: out
    0, LSE −inf, or the sink; gradients 0.

    It computes in float32, or in float64 for float64 inputs, and skips keys that no row of a block sees. Its
    gradients are deterministic if torch's matrix products are.

    Args:
        q: (Tq, H, D); k, v: (Tk, G, D), H a multiple of G.
        sinks: (H,), a logit for each query head, of any dtype: see `longca.ops.sinks`.
    """
    return _Blockwise.apply(q, k, v, sinks, mask, scale)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, mask: Mask, scale: float
    ) -> tuple[Tensor, Tensor]:
        exact = _exact(q)
        product = _product_for(q, k, v)
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -math.inf, dtype=exact, device=q.device)
        if sinks is not None:
            lse[:] = sinks
        for block in _blocks(mask, q):
            scores = block.scores(q, k, scale)
            of_rows = scores.logsumexp(-1)
            if sinks is not None:
                by_row = lse[block.rows].unsqueeze(-1)  # as long as they are those of the sinks alone
                of_rows = torch.logaddexp(of_rows, block.of_rows(by_row, k.shape[1]).squeeze(-1))
            probabilities = _probabilities(scores, of_rows)
            out[block.rows] = block.joined(
                product(probabilities, block, block.heads(v[block.keys]), False), k.shape[1]
            ).to(q.dtype)
            lse[block.rows] = block.joined(of_rows.unsqueeze(-1), k.shape[1]).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, lse, sinks)
        ctx.mask = mask
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @breaks_graph
    @differentiable_once
    def backward(ctx, *grad_outputs: Tensor | None):
        dout, dlse = grad_outputs
        q, k, v, out, lse, sinks = ctx.saved_tensors
        with autocast_disabled(q.device):
            dsinks = None
            if ctx.needs_input_grad[3]:
                dsinks = sinks_gradient(out, lse, dout, dlse, sinks).to(sinks.dtype)
            grads = blockwise_gradients(q, k, v, out, lse, dout, dlse, ctx.mask, ctx.scale)
            return *grads, dsinks, None, None


def blockwise_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor | None,
    dlse: Tensor | None,
    mask: Mask,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `blockwise_attention`, in the dtypes of q, k and v; without autograd.

    Args:
        out, lse: with the sinks, if there are any.
        dout, dlse: gradients by the output and by the LSE; None for zeros.
    """
    num_kv_heads = k.shape[1]
    product = _product_for(q, k, v, out, *(x for x in (dout, dlse) if x is not None))
    dq, dk, dv = (torch.zeros(x.shape, dtype=_exact(x), device=x.device) for x in (q, k, v))
    for block in _blocks(mask, q):
        rows = block.rows
        keys = block.keys
        lse_of_rows = block.of_rows(lse[rows].unsqueeze(-1), num_kv_heads).squeeze(-1)
        weights = _probabilities(block.scores(q, k, scale), lse_of_rows)
        by_score = torch.zeros_like(weights)
        if dout is not None:
            of_out = block.of_rows(dout[rows], num_kv_heads)
            dv[keys] += product(weights, block, of_out, True).transpose(0, 1)
            delta = (of_out * block.of_rows(out[rows], num_kv_heads)).sum(-1, keepdim=True)
            by_score += of_out @ block.heads(v[keys]).mT - delta
        if dlse is not None:
            by_score += block.of_rows(dlse[rows].unsqueeze(-1), num_kv_heads)
        # the gradient of the LSE of a row without keys is arbitrary, and so is that of a row with NaN at
        # hidden keys
        by_score = block.hide(by_score.mul_(weights).mul_(scale), 0.0)
        dq[rows] = block.joined(product(by_score, block, block.heads(k[keys]), False), num_kv_heads)
        dk[keys] += product(by_score, block, block.of_rows(q[rows], num_kv_heads), True).transpose(0, 1)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class _Block(NamedTuple):
    """A block of query rows and its range of keys. Internal tensors are (G, query heads of one KV head ·
    rows, …)."""

    rows: slice
    keys: slice
    hidden: Tensor  # bool (mask groups, rows, keys)

    def heads(self, x: Tensor) -> Tensor:
        """(keys, G, D) → (G, keys, D)."""
        return x.transpose(0, 1).to(_exact(x))

    def of_rows(self, x: Tensor, num_kv_heads: int) -> Tensor:
        """(rows, H, n) → (G, H/G · rows, n)."""
        return x.to(_exact(x)).unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)

    def joined(self, x: Tensor, num_kv_heads: int) -> Tensor:
        """The inverse of `of_rows`."""
        return x.unflatten(1, (-1, self.hidden.shape[1])).permute(2, 0, 1, 3).flatten(1, 2)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """scale·q·k, −inf where hidden."""
        num_kv_heads = k.shape[1]
        scores = (self.of_rows(q[self.rows], num_kv_heads) @ self.heads(k[self.keys]).mT).mul_(scale)
        return self.hide(scores, -math.inf)

    def hide(self, by_pair: Tensor, value: float) -> Tensor:
        """Write `value` to the hidden pairs of (G, H/G · rows, keys), in place."""
        groups, num_rows, num_keys = self.hidden.shape
        by_pair.view(groups, -1, num_rows, num_keys).masked_fill_(self.hidden[:, None], value)
        return by_pair


def _blocks(mask: Mask, q: Tensor) -> Iterator[_Block]:
    """The blocks of rows with at least one visible key."""
    num_rows, num_heads, _ = q.shape
    step = max(
        MOST_SCORES.get(q.device.type, MOST_SCORES["cuda"]) // max(num_heads * mask.seqlen_k, 1), FEWEST_ROWS
    )
    for start in range(0, num_rows, step):
        rows = start, min(start + step, num_rows)
        bands = [group for group in mask.crop(rows, (0, mask.seqlen_k)).groups if len(group)]
        if bands:
            keys = (
                min(int(group[:, K0].min()) for group in bands),
                max(int(group[:, K1].max()) for group in bands),
            )
            hidden = ~dense_mask(mask.crop(rows, keys), q.device)
            yield _Block(slice(*rows), slice(*keys), hidden.reshape(mask.num_groups, *hidden.shape[-2:]))


Product = Callable[[Tensor, _Block, Tensor, bool], Tensor]
"""(weights by pair, their block, values of keys or rows, True to sum over rows) → the sums by row or by
key"""


def _product_for(*inputs: Tensor) -> Product:
    """The plain product for finite inputs, else that which confines NaN and infinity to those who see
    them."""
    if inputs[0].is_cuda and torch.cuda.is_current_stream_capturing():  # the host cannot look
        return _plain_product
    return _plain_product if all_finite(*inputs) else _confined_product


def _plain_product(by_pair: Tensor, block: _Block, x: Tensor, over_rows: bool) -> Tensor:
    return (by_pair.mT if over_rows else by_pair) @ x


def _confined_product(by_pair: Tensor, block: _Block, x: Tensor, over_rows: bool) -> Tensor:
    visible = block.hide(torch.ones_like(by_pair, dtype=torch.bool), False)
    return confined_product(by_pair.mT, visible.mT, x) if over_rows else confined_product(by_pair, visible, x)


def _exact(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _probabilities(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores − lse); 0 in rows without keys."""
    return (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp_()
