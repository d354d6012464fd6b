"""Merging by LSE: against one softmax over all keys, and where rows have no keys."""

import pytest
import torch

from longca.cp.runtime.accumulate import merge, no_keys


def attention(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) for scores L × H × keys and v keys × D; rows of −inf have no keys."""
    return scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("order", [range(4), reversed(range(4))])
def test_parts_are_the_whole(order):
    generator = torch.Generator().manual_seed(0)
    scores = (
        torch.randn(6, 2, 20, generator=generator, dtype=torch.float64) * 30
    )  # exp overflows float32 without a base
    v = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    scores[0] = scores[1, :, 5:] = scores[2, :, :15] = -torch.inf
    expected, expected_lse = attention(scores, v)
    out, lse = no_keys(expected, torch.float64)
    for part in order:
        keys = slice(5 * part, 5 * part + 5)
        merge(out, lse, *attention(scores[..., keys], v[keys]))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    assert (out[0] == 0).all()
    assert (lse[0] == -torch.inf).all()


@pytest.mark.parametrize("mark", [torch.inf, -torch.inf])
@pytest.mark.parametrize("running", [-torch.inf, 1.5])
def test_a_part_without_keys_changes_nothing(mark: float, running: float):
    out = torch.full((3, 2, 4), 0.0 if running == -torch.inf else 7.0)
    lse = torch.full((3, 2), running)
    merge(out, lse, torch.zeros(3, 2, 4, dtype=torch.bfloat16), torch.full((3, 2), mark))
    assert (lse == running).all()
    assert (out == (0.0 if running == -torch.inf else 7.0)).all()


def test_many_parts_in_bfloat16_cost_one_rounding():
    """Sums in bfloat16 would be off by six times as much at 96 parts as at 2."""
    generator = torch.Generator().manual_seed(1)

    def error(num_parts: int) -> float:
        parts = torch.randn(num_parts, 500, 1, 4, generator=generator)
        out, lse = no_keys(parts[0])
        for part in parts:
            merge(out, lse, part.bfloat16(), torch.zeros(500, 1))
        return float((out - parts.mean(0)).norm() / parts.mean(0).norm())

    assert error(96) < 1.2 * error(2)
