"""The preprocess of band attention's backward pass: two numbers of each row, computed once for all blocks.

`lse_log2` (LSE · log2 e, +inf for rows without keys, whose P is then 0) and `delta` (rowsum of dout · out,
less the gradient by the LSE) are float32 (packs, copies, tokens, PACK), with tokens past the last one, so
that no block needs bounds. Shapes as in `triton.forward`.

TMA reads from multiples of 16 bytes only (else: "illegal instruction"), and blocks begin at any token. Where
16 bytes are several tokens, there are as many copies for it, each of which begins a token later than the one
before (`sm90.bwd_dkdv.stats_offset`).
"""

import torch
import triton
import triton.language as tl

from longca.ops.band.replay.launches import Launches
from longca.ops.band.triton.forward import LOG2_E

CHUNK = 64  # rows of a program
MULTIPLE = 4  # numbers: 16 bytes


# nothing that depends on the mask or on the share of heads: each kind of number would be a build
@triton.jit(do_not_specialize=["seqlen_q", "num_tokens", "lse_token", "dlse_token"])
def _preprocess(out_ptr, dout_ptr, lse_ptr, dlse_ptr, lse_log2_ptr, delta_ptr, seqlen_q, num_tokens,
                out_token, out_head, dout_token,
                dout_head, lse_token, lse_head, dlse_token, dlse_head, DLSE: tl.constexpr, D: tl.constexpr,
                PACK: tl.constexpr,
                COPIES: tl.constexpr, CHUNK: tl.constexpr):
    pack = tl.program_id(1)
    row, dim = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, D)
    token, head = (row // PACK).to(tl.int64), pack * PACK + row % PACK
    inside = token < seqlen_q
    out = tl.load(
        out_ptr + token[:, None] * out_token + head[:, None] * out_head + dim[None, :],
        mask=inside[:, None],
        other=0.0,
    )
    dout = tl.load(
        dout_ptr + token[:, None] * dout_token + head[:, None] * dout_head + dim[None, :],
        mask=inside[:, None],
        other=0.0,
    )
    lse = tl.load(lse_ptr + token * lse_token + head * lse_head, mask=inside, other=float("-inf"))
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    if DLSE:  # the LSE's derivative by S is P
        delta -= tl.load(dlse_ptr + token * dlse_token + head * dlse_head, mask=inside, other=0.0)
    lse_log2, delta = (
        tl.where(lse == float("-inf"), float("inf"), lse * LOG2_E),
        tl.where(lse == float("-inf"), 0.0, delta),
    )
    for copy in tl.static_range(COPIES):
        offset = (pack.to(tl.int64) * COPIES + copy) * num_tokens * PACK + row - copy * PACK
        held = (row >= copy * PACK) & (row < (num_tokens + copy) * PACK)
        tl.store(lse_log2_ptr + offset, lse_log2, mask=held)
        tl.store(delta_ptr + offset, delta, mask=held)


def preprocess(launches: Launches, out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor,
               dlse: torch.Tensor | None,
               pack: int, *, for_tma: bool = False) -> torch.Tensor:
    """lse_log2 and delta of all rows, for `pack` heads that share a tile: (2, packs, copies, tokens, PACK).

    Args:
        for_tma: with the copies that TMA needs; else there is one.
    """
    seqlen_q, num_heads, head_dim = out.shape
    copies = max(MULTIPLE // pack, 1) if for_tma else 1
    # more than any block is long; as builds depend on it, all statistics begin at multiples of 16 bytes
    num_tokens = (seqlen_q + 256) // MULTIPLE * MULTIPLE
    stats = launches.empty(2, num_heads // pack, copies, num_tokens, pack)
    lse_log2, delta = stats
    launches.launch(
        _preprocess, (triton.cdiv((num_tokens + copies - 1) * pack, CHUNK), num_heads // pack), out, dout,
                    lse,
        lse_log2 if dlse is None else dlse, lse_log2, delta, seqlen_q, num_tokens, out.stride(0),
                    out.stride(1), dout.stride(0),
        dout.stride(1), lse.stride(0), lse.stride(1), *(0, 0) if dlse is None else dlse.stride(),
                    dlse is not None, head_dim, pack, copies,
        CHUNK)
    return stats
