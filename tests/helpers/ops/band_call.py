"""Inputs of the public call of band attention, and refusals of it."""

from collections.abc import Callable, Sequence

import torch

from longca.masks.band import INF, as_bands
from longca.masks.mask import Mask
from longca.ops.band.api import BandPlan, plan_band_attention

MASK = Mask(
    70, 90, (as_bands([(0, 50, 0, 70, -INF, 7), (50, 60, 30, 90, -INF, INF)]),)
)  # the last rows see nothing
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64


class Setting:
    """Inputs on one device, and how near results have to be."""

    def __init__(self, device: str, dtype: torch.dtype, compiler: str, whole: bool) -> None:
        self.device = device
        self.dtype = dtype
        self.compiler = compiler
        self.whole = whole
        self.tolerance = {torch.float32: 2e-5, torch.bfloat16: 1.5e-2}[dtype]
        generator = torch.Generator().manual_seed(3)
        shapes = [(70, HEADS), (90, KV_HEADS), (90, KV_HEADS), (70, HEADS)]
        self.inputs = [
            torch.randn(*shape, HEAD_DIM, generator=generator).to(device, dtype) for shape in shapes
        ]

    def plan(self, mask: Mask = MASK, needs_backward: bool = True) -> BandPlan:
        return plan_band_attention(
            mask,
            num_q_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            device=self.device,
            needs_backward=needs_backward,
        )

    def leaves(self) -> list[torch.Tensor]:
        return [x.clone().requires_grad_() for x in self.inputs[:3]]

    def near(self, result: torch.Tensor, right: torch.Tensor) -> None:
        error = torch.linalg.vector_norm(result.double() - right.double()) / torch.linalg.vector_norm(
            right.double()
        ).clamp(min=1)
        assert error <= self.tolerance, float(error)


def check_refusals(says: Sequence[tuple[str, Callable[[], object]]]) -> None:
    for what, call in says:
        try:
            call()
        except ValueError as error:
            assert what in str(error), f"{what!r} is not in {error}"
        else:
            raise AssertionError(f"nothing was said: {what}")
