"""What band attention's backward pass knows of a row beside its query: two numbers, found once for all steps.

`base` (the LSE to base 2, +inf for rows without keys, whose weights are then 0) and `delta` (rowsum of dout · out, less the LSE's own
gradient) are float32 (packs, tokens, P), with tokens past the last one, so that no step needs bounds. Shapes as in `triton.forward`.
"""

import torch
import triton
import triton.language as tl

from longca.ops.band.triton.forward import LOG2_E

CHUNK = 64  # rows of a program


@triton.jit
def _prepare(out_ptr, dout_ptr, lse_ptr, dlse_ptr, base_ptr, delta_ptr, seqlen_q, num_tokens, out_token, out_head, dout_token, dout_head,
             lse_token, lse_head, dlse_token, dlse_head, DLSE: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CHUNK: tl.constexpr):
    pack = tl.program_id(1)
    row, dim = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = (row // P).to(tl.int64), pack * P + row % P
    inside = token < seqlen_q
    out = tl.load(out_ptr + token[:, None] * out_token + head[:, None] * out_head + dim[None, :], mask=inside[:, None], other=0.0)
    dout = tl.load(dout_ptr + token[:, None] * dout_token + head[:, None] * dout_head + dim[None, :], mask=inside[:, None], other=0.0)
    lse = tl.load(lse_ptr + token * lse_token + head * lse_head, mask=inside, other=float("-inf"))
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    if DLSE:  # a score's share in the LSE is its weight
        delta -= tl.load(dlse_ptr + token * dlse_token + head * dlse_head, mask=inside, other=0.0)
    place = pack.to(tl.int64) * num_tokens * P + row
    tl.store(base_ptr + place, tl.where(lse == float("-inf"), float("inf"), lse * LOG2_E), mask=row < num_tokens * P)
    tl.store(delta_ptr + place, tl.where(lse == float("-inf"), 0.0, delta), mask=row < num_tokens * P)


def prepare(out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor, dlse: torch.Tensor | None,
            pack: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(base, delta)."""
    seqlen_q, num_heads, head_dim = out.shape
    num_tokens = seqlen_q + 256  # more than any step is long
    base, delta = torch.empty(2, num_heads // pack, num_tokens, pack, dtype=torch.float32, device=out.device)
    _prepare[(triton.cdiv(num_tokens * pack, CHUNK), num_heads // pack)](
        out, dout, lse, base if dlse is None else dlse, base, delta, seqlen_q, num_tokens, out.stride(0), out.stride(1), dout.stride(0),
        dout.stride(1), lse.stride(0), lse.stride(1), *((0, 0) if dlse is None else dlse.stride()), dlse is not None, head_dim, pack, CHUNK)
    return base, delta
