"""Packed segments: what kernels that know nothing else of masks are called with, and why they refuse the
rest."""

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.backends.fa4 import BLOCK, element_tables
from longca.kernels.contract import Problem, unfit_build, unfit_device, unfit_mask
from longca.kernels.packed import PackedPrepared
from longca.lowering.dense import interval_table
from longca.masks import build_mask
from tests.helpers.kernels.cases import Case, hand_made_cases, pattern_cases
from tests.helpers.kernels.plain_attention import plain_attention

PACKED = ("torch_flash", "fa1", "fa2", "fa3", "fa4", "cudnn", "cudnn_graph")
REGULAR = {"full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window"}


class ByTheBook(PackedPrepared):
    """FlashAttention's meaning of its arguments, in float64: a segment at a time, left and right of the
    diagonal."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bounds = [0, self.problem.mask.seqlen_q] if self.cu_seqlens is None else self.cu_seqlens.tolist()
        q, k, v = (self.from_layout(x).double() for x in (q, k, v))
        outs = []
        lses = []
        for start, end in pairwise(bounds):
            assert end - start <= self.max_seqlen
            out, lse = self._segment(*(x[start:end] for x in (q, k, v)))
            outs.append(out)
            lses.append(lse)
        return self.to_layout(torch.cat(outs)), torch.cat(lses, 1).float()

    def _segment(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = (-1, 0) if self.causal else self.window
        ahead = torch.arange(len(q)) - torch.arange(len(q))[:, None]
        visible = ((left < 0) | (ahead >= -left)) & ((right < 0) | (ahead <= right))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.problem.scale
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("always_packed", [False, True])
def test_the_arguments_say_the_mask(always_packed: bool) -> None:
    fitting = [case for case in pattern_cases() if unfit_mask(case.mask.traits) is None]
    assert {case.mask.name for case in fitting} >= REGULAR
    for case in fitting:
        q, k, v, dout = case.inputs()
        prepared = ByTheBook(case.problem("fwd"), always_packed)
        assert (prepared.cu_seqlens is not None) == (always_packed or case.mask.traits.num_segments > 1)
        forward = prepared.forward(*(prepared.to_layout(x) for x in (q, k, v)))
        plain = plain_attention(q, k, v, dout, case.mask.dense())
        torch.testing.assert_close(prepared.from_layout(forward.out), plain.out)
        assert forward.lse is not None
        torch.testing.assert_close(prepared.lse_from_layout(forward.lse), plain.lse.float())
        assert prepared.costs["plan_ms"] > 0


def test_other_masks_are_refused_and_never_packed() -> None:
    others = [
        case for case in pattern_cases() + hand_made_cases() if unfit_mask(case.mask.traits) is not None
    ]
    assert {"prefix_lm", "shared_question", "block_sparse_uniform", "holes"} <= {
        case.mask.name for case in others
    }
    for case in others:
        with pytest.raises(ValueError, match="segments"):
            ByTheBook(case.problem("fwd"))


@pytest.mark.parametrize("name", PACKED)
def test_rows_take_what_they_know(name: str) -> None:
    kernel = Registry("kernel").load(name)
    no_windows = name in ("cudnn", "fa1")
    static = name == "fa4"
    for case in pattern_cases():
        case = Case(case.mask, case.num_q_heads, case.num_kv_heads, head_dim=128)
        reason = kernel.supports(case.cell(name, "fwd", "bf16").call_spec, case.mask.traits, "cuda")
        if name == "fa1" and case.num_kv_heads < case.num_q_heads:
            assert reason is not None and "GQA" in reason
        elif unfit_mask(case.mask.traits) is not None:
            assert (reason is None) == (
                static and not case.mask.traits.empty_rows and case.mask.traits.max_row_intervals <= 8
            ), (case, reason)
        else:
            assert (reason is not None) == (
                no_windows and case.mask.traits.window not in ((-1, -1), (-1, 0))
            ), (case, reason)
        assert kernel.supports(case.cell(name, "fwd", "fp32").call_spec, case.mask.traits, "cuda") is not None


def test_cudnn_takes_documents_forward_only() -> None:
    kernel = Registry("kernel").load("cudnn")
    case = next(case for case in pattern_cases() if case.mask.name == "causal_document")
    answers = [
        kernel.supports(case.cell("cudnn", direction, "bf16").call_spec, case.mask.traits, "cuda")
        for direction in ("fwd", "bwd")
    ]
    assert answers[0] is None and "backward" in answers[1]


@pytest.mark.parametrize(
    ("name", "seqlen", "fits"),
    [("cudnn", 262143, True), ("cudnn", 262144, False), ("fa1", 131071, True), ("fa1", 131072, False)],
)
def test_offsets_of_32_bits_are_not_overrun(name: str, seqlen: int, fits: bool) -> None:
    mask = build_mask(
        "full_document", seqlen=seqlen, num_kv_heads=64, documents=np.array([1024, seqlen - 1024]), seed=0
    )
    cell = Case(mask, 64, 64, head_dim=128).cell(name, "fwd", "bf16")
    reason = Registry("kernel").load(name).supports(cell.call_spec, mask.traits, "cuda")
    assert reason is None if fits else "32 bits" in reason


def test_reasons_of_devices_and_builds() -> None:
    assert unfit_device("cpu", "sm_80+") == "it runs on NVIDIA GPUs only"
    cell = pattern_cases()[0].cell("fa2", "fwd", "bf16")
    assert unfit_build(cell, (cell.head_dim,), ("bf16",)) is None
    assert unfit_build(cell, (128,), ("bf16",)) == "this build has head dim 128 in bf16 only"


@pytest.mark.parametrize(
    ("capability", "fitting"),
    [
        ((8, 0), {"torch_flash", "fa2"}),
        ((9, 0), {"torch_flash", "fa2", "fa3", "fa4", "cudnn_flex", "cudnn_bsa", "vsa"}),
        ((10, 0), {"torch_flash", "fa2", "fa4", "cudnn_flex"}),
        ((12, 0), {"torch_flash", "fa2", "fa4"}),
    ],
)
def test_a_gpu_of_another_architecture_is_told_beforehand(
    capability: tuple[int, int], fitting: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    for name in ("torch_flash", "fa2", "fa3", "fa4", "cudnn_flex", "cudnn_bsa", "vsa"):
        kernel = Registry("kernel").load(name)
        monkeypatch.setattr(
            sys.modules[type(kernel).__module__], "missing_modules", lambda modules: None, raising=False
        )
        if name == "fa4":
            monkeypatch.setattr(sys.modules[type(kernel).__module__], "_missing_cute", lambda: None)
        reason = kernel.available("cuda")
        assert reason is None if name in fitting else "it needs a GPU of sm_90" in str(reason), name


def test_interval_table_is_the_mask() -> None:
    for case in pattern_cases() + hand_made_cases():
        table = torch.from_numpy(interval_table(case.mask)).unsqueeze(-1)  # (G, 2n, Sq, 1)
        key = torch.arange(case.mask.seqlen_k)
        seen = ((key >= table[:, 0::2]) & (key < table[:, 1::2])).any(1)
        assert torch.equal(seen, torch.from_numpy(case.mask.dense()).reshape(seen.shape)), case


def test_fa4_finds_something_for_every_row_and_key_of_its_blocks() -> None:
    for case in pattern_cases() + hand_made_cases():
        mask = case.mask
        tables = element_tables(mask)
        if mask.grid is None:
            assert np.array_equal(tables[0][..., : mask.seqlen_q], interval_table(mask))
            assert tables[0].shape[-1] == -(-mask.seqlen_q // BLOCK) * BLOCK
            continue
        visible, rows, cols = tables
        assert (rows.shape[-1], cols.shape[-1]) == tuple(
            -(-n // BLOCK) * BLOCK for n in (mask.seqlen_q, mask.seqlen_k)
        )
        for group, raster in enumerate(mask.dense()):
            seen = visible[group][rows[group]][:, cols[group]] > 0
            assert np.array_equal(seen[: mask.seqlen_q, : mask.seqlen_k], raster)


def test_problem_of_one_token() -> None:
    entry = next(case for case in hand_made_cases() if case.mask.name == "one")
    problem: Problem = entry.problem("fwd")
    assert PackedPrepared(problem).window == (-1, -1)
