"""The launch of band attention's kernels: on the device of their tensors, and of parts without keys."""

import importlib.util
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


def test_kernels_start_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from longca.masks import build_mask
    from longca.ops.band import launch as band_launch
    from longca.ops.band.api import plan_band_attention

    q = torch.zeros(8, 2, 64)
    lse = torch.zeros(8, 2)
    current = []
    started = []

    @contextmanager
    def device_of(x: torch.Tensor):
        current.append(x)
        yield
        current.clear()

    def start(*_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        assert len(current) == 1 and current[0] is q
        started.append(True)
        return lse, lse

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for name in ("forward", "preprocess", "backward_dkdv", "backward_dq"):
        monkeypatch.setattr(band_launch, name, start)
    plan = plan_band_attention(
        build_mask("causal", seqlen=8), num_q_heads=2, num_kv_heads=2, head_dim=64, device="cpu"
    )
    band_launch.launch_forward(q, q, q, plan, 1.0, out=q, lse=lse, initial=None)
    band_launch.launch_backward(
        q, q, q, q, lse, q, None, plan, 1.0, targets=[band_launch.DqTarget(plan, q)], dk=q, dv=q
    )
    assert len(started) >= 4 and not current


def test_without_keys_a_part_of_dq_is_what_is_carried() -> None:
    """And other rows are not touched."""
    import torch

    from longca.ops.band.launch import launch_backward
    from longca.ops.band.plan import BandPlan, DqTarget

    q = torch.ones(300, 2, 64)
    lse = torch.zeros(300, 2)
    keys = torch.empty(0, 2, 64)
    units = torch.tensor([128], dtype=torch.int32)
    carried = torch.full(q.shape, 3.0)
    onto = torch.full(q.shape, 7.0)
    fresh = torch.full(q.shape, 7.0)
    plan = BandPlan(300, 0, 2, 2, 64, q.device, {})
    parts = [DqTarget(replace(plan, units=units), onto, carried), DqTarget(plan, fresh)]
    launch_backward(q, keys, keys, q, lse, q, None, plan, 1.0, targets=parts, dk=keys, dv=keys)
    assert (
        (onto[128:256] == 3).all()
        and (onto[:128] == 7).all()
        and (onto[256:] == 7).all()
        and (fresh == 0).all()
    )
