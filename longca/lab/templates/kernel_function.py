"""Attention in plain torch, as a function. Replace the body of `forward` with your own kernel.

    longca bench NAME.py -m causal -s 1K        # right? how fast, beside the others?

`forward` gets, with B = 1, H query heads, G KV heads, T tokens and D the head dim:

    q          (1, H, T, D), contiguous, in the dtype and on the device that are measured
    k, v       (1, G, T, D), likewise; query heads n·H/G to (n + 1)·H/G − 1 share KV head n
    mask       what `prepare` returned; without `prepare` a longca.masks.Mask

and returns `out`, of the shape of q, or `(out, lse)`, lse being (1, H, T), the natural logarithm of the sum
of exp(q·k / sqrt(D)). Rows that see no key have out 0 and lse −inf. Other orders of the axes: LAYOUT = "BTHD"
(as FlashAttention), "HTD" or "THD".
"""

import torch


def prepare(mask, device):
    """Called once, untimed: convert the mask to the kernel's format.

    mask.bands      (n, 6) whole numbers: query i of q0..q1 sees key j of k0..k1 where lo ≤ j − i ≤ hi
    mask.traits     facts: full, causal, window, num_segments, empty_rows, per_head …
    mask.params     what was drawn: the lengths of documents under "documents", for masks that have them
    mask.dense()    bool (T, T), True where query (row) sees key (column); (groups, T, T) if heads have masks of their own
    """  # noqa: E501
    visible = torch.from_numpy(mask.dense()).to(device)
    return visible if visible.dim() == 2 else visible.unflatten(0, (1, -1))


def forward(q, k, v, mask):
    """Timed. This one stores all T × T scores."""
    num_copies = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(num_copies, dim=1) for x in (k, v))
    if mask.dim() == 4:
        mask = mask.repeat_interleave(q.shape[1] // mask.shape[1], dim=1)
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # rows that see no key
    return weights.to(v.dtype) @ v


# Backward goes through `forward` by autograd. A kernel with a backward of its own defines
#
#     def backward(dout, q, k, v, out, lse, mask): ...; return dq, dk, dv
#
# lse is None where forward returns none. `longca bench NAME.py -d both` checks and times it.
