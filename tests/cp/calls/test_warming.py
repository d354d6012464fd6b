"""All code that the calls of a context can need is known before its first call."""

import pytest

from longca.core import CallSpec, Registry
from longca.masks import build_mask

pytestmark = pytest.mark.long
pytest.importorskip("triton")


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("heads", [(16, 2), (40, 8), (64, 8), (6, 6)])
def test_context_parallelism_knows_all_kernel_calls(world: int, heads: tuple[int, int]) -> None:
    """The heads of ranks and chunks of any mask are among those whose builds are compiled."""
    from longca.cp import HeadStrategy
    from longca.cp.calls.warming import local_calls

    call = CallSpec(*heads, 128, "bf16", "bwd")
    kernel = Registry("kernel").load("band")
    for strategy in Registry("strategy").load_all():
        if not isinstance(strategy, HeadStrategy) or strategy.baseline:
            continue
        known = {
            (local.num_q_heads // local.num_kv_heads, in_parts)
            for local, in_parts in local_calls([strategy], call, world)
        }
        for name in ("causal", "full", "sliding_window", "causal_document"):
            mask = build_mask(name, seqlen=16384)
            if strategy.refusal(mask, call, world, kernel, "cuda") is None:
                work = strategy.partition_call(mask, call, world, kernel, "cuda")
                asked = {
                    (len(share.q) // len(share.local_kv), work.mesh.ring > 1)
                    for chunk in work.chunks
                    for share in chunk.heads.ranks
                    if share.q
                }
                assert asked <= known, (strategy.name, name)


def test_nothing_is_warmed_without_a_gpu() -> None:
    import longca
    from longca.core import UserError

    assert longca.warm(8, 2, head_dim=128, device="cpu") == 0
    with pytest.raises(UserError, match="num_kv_heads"):
        longca.warm(8, 3, head_dim=128, device="cpu")
