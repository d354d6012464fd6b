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
        running.add(slice(first, behind), part, last=number == len(steps) - 1)
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
    """The last step alone brings them to the dtype, whatever rows it is for; rows of no step are 0, with an LSE of −inf."""
    call = SimpleNamespace(prepared=SimpleNamespace(forward_onto=forward_onto))
    running = Running(torch.empty(ROWS, 2, 4, dtype=torch.bfloat16), len(steps))
    out, lse = torch.zeros(ROWS, 2, 4), torch.full((ROWS, 2), -torch.inf)
    for number, (first, behind) in enumerate(steps):
        part, of_part = drawn(behind - first, 2, 4), drawn(behind - first, 2)
        running.merge_onto(LocalStep(first, behind, call), out[first:behind], part, of_part, last=number == len(steps) - 1)  # type: ignore[arg-type]
        merge(out[first:behind], lse[first:behind], part, of_part)
    found, of_found = running.result()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, out.bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(of_found, lse, rtol=0, atol=0)
