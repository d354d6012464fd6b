"""Ranks on two GPUs that disagree: no host waits for its GPU for ever, and all raise the same error."""

import time

import pytest
import torch

from longca.core.errors import UserError
from longca.cp.comm.backend import Comm
from longca.cp.context import PeerLost, context_parallel
from longca.masks import build_mask
from tests.helpers.cp.ranks import on_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here"),
]
TOKENS = 1024
HEADS = 4
HEAD_DIM = 64
WAYS = [("ulysses", "nccl"), ("ring_p2p", "nccl"), ("ring_p2p", "symmetric")]


def disagreeing(comm: Comm, strategy: str, messages: str) -> tuple[list[str], float]:
    """Rank 1 gives a tensor that it cannot use, after messages of rank 0 have left.

    Rank 0 copies its result to the host, and no other thread can launch anything meanwhile.
    """
    mask = build_mask("causal", seqlen=TOKENS)
    cp = context_parallel(
        mask,
        None,
        strategy,
        num_q_heads=HEADS,
        head_dim=HEAD_DIM,
        messages=messages,
        timeout=30.0,  # type: ignore[arg-type]
    )
    assert cp._comm.can_release, cp._comm.messages_note
    q, k, v = torch.randn(3, cp.num_tokens, HEADS, HEAD_DIM, device=comm.device, dtype=torch.bfloat16)
    cp.attention(q, k, v)
    torch.cuda.synchronize()
    start_s = time.monotonic()
    errors = []
    for wrong in (comm.rank == 1, False, False):
        try:
            cp.attention(q, k[:, :1] if wrong else k, v).cpu()
        except (UserError, PeerLost) as error:
            errors.append(f"{type(error).__name__}: {error}")
        torch.cuda.synchronize()
    cp.close()
    return errors, time.monotonic() - start_s


@pytest.mark.parametrize(("strategy", "messages"), WAYS)
def test_a_gpu_is_released_and_every_rank_raises_the_same(strategy: str, messages: str):
    (first, first_s), (other, other_s) = on_ranks(disagreeing, 2, strategy, messages, device_type="cuda")
    assert first[0] == other[0] and first[0].startswith("UserError: Rank 1: Argument 'k' of attention is")
    assert all("cannot be used any more" in error for error in [*first[1:], *other[1:]])
    assert max(first_s, other_s) < 20.0
