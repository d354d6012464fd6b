"""Headers of calls, and digests of what each rank gives to `shard`."""

import pytest
import torch

from longca.cp.calls.ranks import PART_LENGTHS, Header, ShardCalls, difference_of_shards
from longca.cp.comm.headers import MAX_BYTES

pytestmark = pytest.mark.long


def test_a_header_fits_into_its_place_whatever_it_says():
    long = Header("forward", 1, "m" * 9000, "", True, ["ü" * 9000, "\n" * 9000, "t"])
    packed = long.packed(MAX_BYTES)
    assert len(packed) <= MAX_BYTES
    assert Header.unpacked(packed).failure[0].startswith("ü" * min(PART_LENGTHS[-1] // 3, 20))


def test_sinks_are_compared_with_and_without_calls_of_shard():
    sinks = torch.linspace(-1, 1, 8)
    for count in (0, 1):
        texts = []
        for given in (sinks, sinks + 1e-3, sinks.flip(0)):
            calls = ShardCalls(False)
            if count and given is sinks:
                calls.add(torch.ones(4), 0)
            calls.add_sinks(given)
            texts.append(calls.taken())
        assert difference_of_shards(texts[:2]) is None
        assert "has other content on rank 2 than on rank 0" in str(difference_of_shards(texts))


def test_rounding_is_no_other_content():
    shards = [ShardCalls(False), ShardCalls(False), ShardCalls(False)]
    x = torch.arange(40.0) - 20
    for calls, given in zip(shards, (x, x + 1e-3, x.flip(0)), strict=True):
        calls.add(given, 0)
    near, nearly, far = (calls.taken() for calls in shards)
    assert difference_of_shards([near, nearly]) is None
    assert difference_of_shards([near, far]) is not None
    assert shards[0].taken() == ""
