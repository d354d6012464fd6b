"""Band attention in Triton's interpreter, where Triton is there: each part in a process of its own, since the switch is global."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
PARTS = ("patterns", "hand_made", "heads", "random_bands", "split_lines", "carried", "public", "adapter")
ON_A_CPU = """
import torch
from longca.masks import build_mask
from longca.ops.band_attention import band_attention
q = torch.zeros(8, 2, 64, dtype=torch.bfloat16)
band_attention(q, q, q, build_mask("causal", seqlen=8))
"""


def run(*arguments: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": str(int(interpret)), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, env=env, check=False)


@pytest.mark.parametrize("part", PARTS)
def test_in_the_interpreter(part: str) -> None:
    done = run("-m", "tests.ops.band_interpreted", part, interpret=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_refuses_a_cpu() -> None:
    done = run("-c", ON_A_CPU, interpret=False)
    assert "ValueError: band attention runs on NVIDIA GPUs, and q is on cpu" in done.stderr


@pytest.mark.parametrize("kernels", ["forward", "backward", "portable"])
def test_compiles_for_hopper(kernels: str) -> None:
    done = run("-m", "tests.ops.band_compiled", kernels, interpret=False)
    assert done.returncode == 0, done.stdout + done.stderr
