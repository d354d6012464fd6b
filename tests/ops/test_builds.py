"""Nothing is compiled after `compile_builds`, whatever masks come: launches of plans of random masks, whole
and in parts on ranks, by a stand-in for the compiler that counts its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.core import CallSpec, Registry
from longca.kernels import Problem
from longca.masks import build_mask
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.backward_way import BackwardWay
from tests.helpers.ops.random_calls import attend_in_parts, attend_whole, random_mask

pytestmark = pytest.mark.long

pytest.importorskip("triton")
HOPPER = (9, 0)
CPU = torch.device("cpu")
NUM_MASKS = 50


@contextmanager
def counted_builds(capability: tuple[int, int] | None) -> Iterator[tuple[Any, list[str]]]:
    """(launches, names of the kernels that were compiled, one for each build)"""
    from tests.helpers.ops.recorded_launches import FOUND, recorded_launches

    compiled: list[str] = []
    # memory that stored addends need not find zeroed, and that is freed here, is not looked at
    with patch.dict(FOUND, clear=True), recorded_launches(capability) as launched:
        import triton

        stand_in = triton.compiler.compile

        def compile(source: Any, target: Any, options: Any) -> Any:
            compiled.append(source.fn.__name__)
            return stand_in(source, target, options)

        with patch("triton.compiler.compile", compile):
            yield launched, compiled


@pytest.mark.parametrize("capability", [HOPPER, (8, 0)], ids=["hopper", "portable"])
@pytest.mark.parametrize(("heads", "head_dim"), [((8, 1), 128), ((6, 2), 64), ((3, 3), 128)])
def test_masks_of_all_kinds_compile_nothing_more(
    capability: tuple[int, int], heads: tuple[int, int], head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longca.ops.band import plan
    from longca.ops.band.builds import CallForm, builds_of, compile_builds

    rng = np.random.default_rng(sum(heads))
    # any order, whatever the rule makes of masks that are so short
    orders = [None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST]
    monkeypatch.setattr(plan, "chosen_way", lambda *_: BackwardWay(orders[rng.integers(3)]))
    with counted_builds(capability) as (launched, compiled):
        form = CallForm(*heads, head_dim, torch.bfloat16, in_parts=True)
        builds = builds_of(form, CPU, capability=capability)
        number = compile_builds(builds, CPU)
        assert number == len(compiled) <= 48, "few"
        compiled.clear()
        for _ in range(NUM_MASKS):
            problem = Problem(random_mask(rng), *heads, head_dim, torch.bfloat16, CPU, True, False)
            attend_whole(problem)
            attend_in_parts(problem, rng)
            launched.kept.clear()
            launched.clear()
        assert compiled == [], "a mask asked for another build"


def test_builds_of_block_masks_are_listed_by_example() -> None:
    from longca.ops.band.builds import CallForm, builds_of, compile_builds

    blocks = build_mask("block_sparse_uniform", seqlen=1024, block=64, density=0.5)
    with counted_builds(HOPPER) as (_, compiled):
        form = CallForm(8, 1, 128, torch.bfloat16)
        compile_builds(builds_of(form, CPU, [blocks], HOPPER), CPU)
        compiled.clear()
        other = build_mask("block_sparse_uniform", seqlen=2048, block=64, density=0.1, seed=5)
        attend_whole(Problem(other, 8, 1, 128, torch.bfloat16, CPU, True, False))
        assert compiled == []


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
