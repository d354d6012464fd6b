"""Digests of tensors: those of parts add up, and one bit changes them."""

import pytest
import torch

from longca.lab.bench.check.digest import content_digest

pytestmark = pytest.mark.long


def test_digests_of_parts_add_up_and_find_one_bit() -> None:
    x = torch.randn(50, 3, 8).bfloat16()
    order = torch.randperm(50)
    parts = sum(content_digest(x[part], part) for part in order.split(7)) % (1 << 64)
    assert parts == content_digest(x) and content_digest(x.clone()) == parts
    x.view(torch.int16)[20, 1, 3] ^= 1
    assert content_digest(x) != parts
    assert content_digest(x.flip(0)) != content_digest(x)
