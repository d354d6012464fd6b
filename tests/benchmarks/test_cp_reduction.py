"""The inputs and digests by which fixed and fast orders of sums are compared: they know no sharding, and miss
no element."""

from argparse import Namespace
from typing import Any, cast

import pytest
import torch

from benchmarks.cp import reduction
from benchmarks.cp.reduction import digest, inputs_at

OPTIONS = Namespace(heads=(4, 2), head_dim=16)
TOKENS = 50


class Ranks:
    """Collects the numbers of ranks that come one after another: the last one's digest is that of all."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def gather(self, number: int) -> list[int]:
        self.numbers.append(number)
        return self.numbers


def test_tokens_have_the_same_inputs_and_digest_under_every_sharding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reduction, "MAX_NUMBERS", 400)  # chunks of a few rows, and of fewer at the end
    order = torch.randperm(TOKENS)
    whole = inputs_at(torch.arange(TOKENS), OPTIONS, torch.bfloat16)
    expected = digest(cast(Any, Ranks()), whole, torch.arange(TOKENS))
    ranks = Ranks()
    for positions in (order[:7], order[7:40], order[40:40], order[40:]):
        own = inputs_at(positions, OPTIONS, torch.bfloat16)
        assert all(torch.equal(x, of_all[positions]) for x, of_all in zip(own, whole, strict=True))
        actual = digest(cast(Any, ranks), own, positions)
    assert actual == expected and len(expected) == 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_digest_sees_each_bit_and_each_exchange(dtype: torch.dtype):
    positions = torch.arange(TOKENS)
    tensors = [x.contiguous() for x in inputs_at(positions, OPTIONS, dtype)[1:3]]
    digests = {digest(cast(Any, Ranks()), tensors, positions)}
    for tensor, row in ((0, 0), (0, TOKENS - 1), (1, 7)):
        changed = [x.clone() for x in tensors]
        bits = changed[tensor].view(torch.int16)  # of half an element by float32
        bits[row, 1, -1] ^= 1
        digests.add(digest(cast(Any, Ranks()), changed, positions))
    digests.add(digest(cast(Any, Ranks()), tensors[::-1], positions))
    digests.add(digest(cast(Any, Ranks()), [x.flip(0) for x in tensors], positions))
    assert len(digests) == 6


def test_inputs_look_normal_and_unrelated():
    inputs = inputs_at(torch.arange(4096), OPTIONS, torch.float32)
    for x in inputs:
        assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    q, k, v, dout = (x[:, :2].flatten() for x in inputs)
    for x, y in ((q, k), (k, v), (v, dout), (q, dout), (q[:-1], q[1:]), (k[:-32], k[32:])):
        assert abs((x * y).mean()) < 0.02
