"""Packages that bring their own rings over `flash_attn`: where they are installed, the packages themselves,
over a kernel for CPUs."""

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from longca.cp.baselines import flash_attn_shim as flash_attn_stand_in
from longca.cp.baselines.flash_attn_shim import load
from longca.cp.comm.backend import Comm
from tests.helpers.cp.case import Case
from tests.helpers.cp.flash_on_cpu import attend, flash_on_cpu, gradients
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.rings_over_flash import MASKS, WORLD

CASES = [
    Case(mask, 64 + 32 * i, *((4, 4), (4, 1), (8, 4))[(i + j) % 3], torch.bfloat16, name, seed=i)
    for name, masks in MASKS.items()
    if find_spec(name)
    for j, mask in enumerate(masks)
    for i in (0, 1, 2)
]


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    with flash_on_cpu():
        return [case.run(comm, "torch_flash") for case in cases]


@cache
def results() -> dict[Case, tuple[dict, ...]]:
    return dict(zip(CASES, zip(*on_ranks(run_all, WORLD, CASES), strict=True), strict=True))


@pytest.mark.skipif(not CASES, reason="none of the packages is installed")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_one_device(case: Case):
    parts = list(results()[case])
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


def test_the_stand_in_is_found_by_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "rings_over_flash"
    package.mkdir()
    (package / "__init__.py").write_text("import adapters_for_something_else")
    (package / "comm.py").write_text("state = []")
    (package / "ring.py").write_text(
        "from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward\nfrom .comm "
        "import state"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)
    module = load("rings_over_flash", "torch_flash")
    assert module("ring")._flash_attn_forward is flash_attn_stand_in._flash_attn_forward
    assert module("ring") is module("ring")
    assert module("comm").state is module("ring").state
    assert sys.modules == before
    if find_spec("flash_attn") is None:
        with pytest.raises(ModuleNotFoundError, match="flash_attn"):
            load("rings_over_flash", "fa2")("ring")


def test_what_a_package_must_not_find_stays_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "flashinfer.py").write_text("")
    package = tmp_path / "rings_that_look_around"
    package.mkdir()
    (package / "looks.py").write_text(
        "try:\n    import flashinfer\nexcept ImportError:\n    flashinfer = None"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)
    assert load("rings_that_look_around", "fa2")("looks").flashinfer is None
    assert sys.modules == before


def test_dense_flash_is_what_it_should_be():
    """The kernel that the packages are tried over, against softmax itself."""
    generator = torch.Generator().manual_seed(0)
    q, dout = (torch.randn(1, 5, 4, 8, generator=generator) for _ in range(2))
    k, v = (torch.randn(1, 7, 2, 8, generator=generator) for _ in range(2))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in leaves),
        attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(2),
        enable_gqa=True,
    ).transpose(1, 2)
    bounds = (None, None, 5, 7)
    scale = 8**-0.5
    out, lse = attend(q, k, v, bounds, True, (-1, -1), scale)
    torch.testing.assert_close(out, expected)
    grads = gradients(dout, q, k, v, out, lse, bounds, True, (-1, -1), scale)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, leaves, dout))
