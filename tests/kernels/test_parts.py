"""Kernels that attend in parts: their LSE in and out of their own form."""

import importlib

import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import AS_RELEASED, FIXED_ORDER
from longca.kernels.contract import Prepared, Problem
from longca.masks import Mask, build_mask
from tests.helpers.kernels.cases import Case

NUM_TOKENS = 6
HEADS = 4
NUM_KV_HEADS = 2


def problem(mask: str = "causal", **params: int) -> Problem:
    return Problem(
        build_mask(mask, seqlen=NUM_TOKENS, **params),
        HEADS,
        NUM_KV_HEADS,
        128,
        torch.bfloat16,
        torch.device("cpu"),
        True,
    )


def bare(module: str, name: str, **attributes: object) -> Prepared:
    """A prepared kernel without its device: what its layouts need is set by hand."""
    prepared = object.__new__(getattr(importlib.import_module(f"longca.kernels.backends.{module}"), name))
    prepared.problem = problem()
    for attribute, value in attributes.items():
        setattr(prepared, attribute, value)
    return prepared


SEGMENTS = torch.tensor([0, 2, NUM_TOKENS], dtype=torch.int32)
FORMS = {  # what each takes an LSE as
    "band": (bare("band", "BandPrepared"), (NUM_TOKENS, HEADS)),
    "band_atomic": (bare("band", "BandPrepared"), (NUM_TOKENS, HEADS)),
    "naive": (bare("naive", "NaivePrepared"), (NUM_KV_HEADS, HEADS // NUM_KV_HEADS, NUM_TOKENS)),
    "cudnn_flex": (bare("cudnn_flex", "CudnnFlexPrepared"), (1, HEADS, NUM_TOKENS)),
    "cudnn_bsa": (bare("cudnn_bsa", "CudnnBsaPrepared"), (1, HEADS, NUM_TOKENS)),
    "flashmask": (bare("flashmask", "FlashMaskPrepared"), (HEADS, NUM_TOKENS)),
    "fa2_sparse": (bare("fa2_sparse", "Fa2SparsePrepared"), (HEADS, NUM_TOKENS)),
    "vsa": (bare("vsa", "VsaPrepared"), (1, HEADS, NUM_TOKENS, 1)),
    "vsa_triton": (bare("vsa_triton", "VsaTritonPrepared"), (1, HEADS, NUM_TOKENS)),
    "fa4": (bare("fa4", "Fa4MaskedPrepared"), (1, HEADS, NUM_TOKENS)),
    "fa1": (
        bare("fa1", "Fa1Prepared", _is_token=torch.arange(16) < SEGMENTS.diff()[:, None]),
        (2, HEADS, 16),
    ),
    **{
        f"{name}, {'packed' if bounds is not None else 'one segment'}": (
            bare(name, f"{kind}Prepared", cu_seqlens=bounds),
            shape,
        )
        for name, kind, shapes in (
            ("fa2", "Fa2", ((1, HEADS, NUM_TOKENS), (HEADS, NUM_TOKENS))),
            ("fa3", "Fa3", ((1, HEADS, NUM_TOKENS), (HEADS, NUM_TOKENS))),
            ("torch_flash", "TorchFlash", ((1, HEADS, NUM_TOKENS), (HEADS, NUM_TOKENS))),
            ("cudnn", "Cudnn", ((1, HEADS, NUM_TOKENS, 1), (NUM_TOKENS, HEADS, 1))),
            ("cudnn_graph", "CudnnGraph", ((1, HEADS, NUM_TOKENS), (NUM_TOKENS, HEADS))),
        )
        for bounds, shape in zip((None, SEGMENTS), shapes, strict=True)
    },
}


@pytest.mark.parametrize("name", FORMS)
def test_an_lse_comes_back_as_it_was(name: str) -> None:
    prepared, shape = FORMS[name]
    lse = torch.randn(NUM_TOKENS, HEADS)
    own = prepared.lse_to_layout(lse)
    assert own.shape == shape and own.is_contiguous() and own.dtype == torch.float32
    torch.testing.assert_close(prepared.lse_from_layout(own), lse)


def test_every_kernel_with_a_backward_in_parts_is_here() -> None:
    shipped = Registry("kernel", [])
    kernels = {name: shipped.load(name) for name in shipped.names()}
    given = {name.partition(",")[0] for name in FORMS}
    assert {
        name.removesuffix(FIXED_ORDER)  # these are prepared as those without it
        for name, kernel in kernels.items()
        if kernel.returns_lse and not name.startswith(AS_RELEASED)
    } - given == {"flex", "flashinfer", "ffa"}  # they have none, and those as released are never run in parts


def test_the_whole_of_a_rectangle_is_a_segment() -> None:
    wide = Mask(4, 10, (build_mask("full", seqlen=10).cut((0, 4), (0, 10)).bands,)).traits
    assert wide.full and not wide.num_segments
    asked = Case(problem().mask, HEADS, HEADS, head_dim=128)
    for name in ("fa2", "fa3", "fa4", "torch_flash", "cudnn", "cudnn_graph", "fa1"):
        reason = (
            Registry("kernel").load(name).supports(asked.cell(name, "bwd", "bf16").call_spec, wide, "cuda")
        )
        assert (reason is None) == (name != "fa1"), (name, reason)
