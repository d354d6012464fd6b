"""A machine that seems to have a Hopper GPU."""

import pytest
import torch


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longca.kernels.backends.band.missing_for_triton", lambda needs, device_type: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
