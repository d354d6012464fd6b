"""Refusals of band attention before a kernel runs."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


def test_refuses_a_cpu() -> None:
    import torch

    from longca.masks import build_mask
    from longca.ops.band.api import band_attention

    q = torch.zeros(8, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="band attention runs on NVIDIA GPUs, and q is on cpu"):
        band_attention(q, q, q, build_mask("causal", seqlen=8))
