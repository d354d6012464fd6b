"""What adds up over steps, some of which are for some rows alone: as a sum in float32, brought to the dtype once."""

from types import SimpleNamespace

import pytest
import torch

from longca.cp.local_steps import LocalStep
from longca.cp.merge import merge
from longca.cp.running import Running, RunningGradient

ROWS = 12
STEPS = [[], [(0, 12)], [(3, 9)], [(0, 12), (0, 12)], [(0, 12), (5, 12)], [(2, 4), (0, 12)], [(0, 5), (3, 9), (8, 12)],
         [(0, 12), (0, 12), (1, 2)]]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_queries(steps: list[tuple[int, int]], dtype: torch.dtype):
    running, expected = RunningGradient(torch.empty(ROWS, 2, 4, dtype=dtype)), torch.zeros(ROWS, 2, 4)
    for number, (first, behind) in enumerate(steps):
        part = drawn(behind - first, 2, 4 + number)[..., :4].to(dtype)
        running.waiting = LocalStep(first, behind, None), part, number == len(steps) - 1  # type: ignore[arg-type]
        running.add()
        expected[first:behind] += part
    assert running.result().dtype == dtype
    torch.testing.assert_close(running.result(), expected.to(dtype), rtol=0, atol=0)


def forward_onto(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, *, first: bool,
                 into: torch.Tensor | None = None) -> None:
    """A result that stands in k and v."""
    if first:
        out.zero_()
        lse.fill_(-torch.inf)
    total, of_total = out.clone(), lse.clone()
    merge(total, of_total, k, v)
    (out if into is None else into).copy_(total)
    lse.copy_(of_total)


@pytest.mark.parametrize("steps", STEPS[1:], ids=str)
def test_outputs_of_kernels_that_merge(steps: list[tuple[int, int]]):
    """They are brought to the dtype once, whatever rows the last step is for; rows of no step are 0, with an LSE of −inf."""
    call = SimpleNamespace(prepared=SimpleNamespace(forward_onto=forward_onto))
    running = Running(torch.empty(ROWS, 2, 4, dtype=torch.bfloat16), len(steps))
    out, lse = torch.zeros(ROWS, 2, 4), torch.full((ROWS, 2), -torch.inf)
    for number, (first, behind) in enumerate(steps):
        part, of_part = drawn(behind - first, 2, 4), drawn(behind - first, 2)
        step = LocalStep(first, behind, call, (behind - first) / ROWS)  # type: ignore[arg-type]
        running.merge_onto(step, out[first:behind], part, of_part, last=number == len(steps) - 1)
        merge(out[first:behind], lse[first:behind], part, of_part)
    found, of_found = running.result()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, out.bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(of_found, lse, rtol=0, atol=0)


def backward_onto(part: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, *, dq: torch.Tensor, first: bool,
                  into: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient that is given."""
    if first:
        dq.zero_()
    (dq if into is None else into).copy_(dq + part)
    return dk, dv


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_gradients_of_kernels_that_merge(steps: list[tuple[int, int]]):
    call = SimpleNamespace(backward_onto=backward_onto)
    running, expected = RunningGradient(torch.empty(ROWS, 2, 4, dtype=torch.bfloat16)), torch.zeros(ROWS, 2, 4)
    for number, (first, behind) in enumerate(steps):
        part, dk, dv = (drawn(behind - first, 2, 4 + number)[..., :4] for _ in range(3))
        step = LocalStep(first, behind, call, (behind - first) / ROWS)  # type: ignore[arg-type]
        assert running.add_onto(step, part, dk, dv, last=number == len(steps) - 1) == (dk, dv)
        expected[first:behind] += part
    assert running.result().dtype == torch.bfloat16
    torch.testing.assert_close(running.result(), expected.bfloat16(), rtol=0, atol=0)
