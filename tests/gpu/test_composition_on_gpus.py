"""Context parallelism beside FSDP2, tensor parallelism, checkpointing and inference, on two GPUs, and on four if there
are."""  # noqa: E501

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from examples import prefill
from examples.train_composed import Options
from longca.cp.comm.backend import Comm
from longca.cp.context import context_parallel
from longca.masks import Mask
from tests.cp.calls.test_differentiable import PAIRS, WAYS, gradients
from tests.examples.test_train_composed import trained
from tests.helpers.cp.ranks import on_ranks

WORLD = 4 if torch.cuda.device_count() >= 4 else 2
WIDE = Options(
    tokens=2048, num_q_heads=8, num_kv_heads=2, head_dim=128, dtype="bfloat16", rate=1e-3, device="cuda"
)
COMPOSED = [
    replace(WIDE, tensor=2, checkpoint="reentrant"),
    replace(WIDE, data=2, checkpoint="non-reentrant"),
    replace(WIDE, strategy="ring_p2p", checkpoint="reentrant"),
    replace(WIDE, strategy="ulysses"),
]
PROMPT = prefill.Options(tokens=4096, num_q_heads=8, head_dim=128)
HEADS = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 128}
T = 2048
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here"),
]


def test_composed_training_is_that_of_one_gpu():
    [[expected]] = on_ranks(trained, 1, [WIDE], timeout_s=300.0, device_type="cuda")
    for of_rank in on_ranks(trained, WORLD, COMPOSED, timeout_s=300.0, device_type="cuda"):
        for options, actual in zip(COMPOSED, of_rank, strict=True):
            np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=1e-2, err_msg=str(options))
            for name in expected.keys() - {"losses", "late"}:
                apart = (actual[name] - expected[name]).norm() / expected[name].norm()
                assert apart < 0.05, (options, name)


def all_ways(comm: Comm) -> list[tuple[str, bool]]:
    """Whether each way of checkpointing has the bits of none, under each strategy and kind of messages; after
    a first call in inference mode."""
    results = []
    masks = [Mask.from_documents([900, 20, T - 920]), Mask.from_windows(T, (300, 0))]
    for messages in ("nccl", "symmetric"):
        for strategy in ("ring_allgather", "ring_p2p", "ulysses"):
            with torch.inference_mode():
                cp = context_parallel(masks, strategy=strategy, messages=messages, **HEADS)
                contexts = [cp, cp.with_mask([Mask.from_documents([T]), masks[1]])]
                for context in contexts:
                    q = torch.ones(
                        context.num_tokens, 4, 128, dtype=torch.bfloat16, device=cp.positions.device
                    )
                    context.attention(q, q[:, :2], q[:, 2:])
            torch.nn.Embedding(T, 2, device=cp.positions.device)(cp.positions).sum().backward()
            by_way = {name: gradients(contexts, way, 128, torch.bfloat16)[0] for name, way in WAYS.items()}
            results += [
                (f"{strategy}, {messages}, {way}", torch.equal(by_way[name], by_way[way]))
                for name, way in PAIRS
            ]
            cp.close()
    return results


def test_checkpointing_changes_no_bit_and_contexts_of_inference_mode_train():
    for results in on_ranks(all_ways, WORLD, timeout_s=300.0, device_type="cuda"):
        assert [name for name, same in results if not same] == []
        assert len(results) == 24


def each(comm: Comm, all_options: list[prefill.Options]) -> list[dict[str, Any]]:
    return [prefill.prefill(options, dist.group.WORLD) for options in all_options]


def test_a_prompt_in_chunks_is_as_one_chunk_on_one_gpu():
    chunked = [replace(PROMPT, chunk=chunk, strategy="ring_allgather") for chunk in (1024, 700)]
    [[expected]] = on_ranks(each, 1, [replace(PROMPT, chunk=4096)], timeout_s=300.0, device_type="cuda")
    for results in on_ranks(each, WORLD, chunked, timeout_s=300.0, device_type="cuda"):
        for actual in results:
            assert abs(actual["loss"] - expected["loss"]) < 2e-3 and actual["next"] == expected["next"]
