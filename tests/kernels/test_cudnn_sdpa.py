"""The mask in cuDNN's graphs, read back by cuDNN's meaning of it."""

from itertools import pairwise

import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import unfit_mask
from longca.kernels.cudnn_sdpa import diagonal_bounds, ragged_tables
from longca.kernels.packed import PackedPrepared
from tests.helpers.kernels.cases import Case, hand_made_cases, pattern_cases


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (0, 0), (3, 0), (2, 4), (-1, 2), (3, -1)])
def test_windows_in_the_words_of_cudnn(window: tuple[int, int]) -> None:
    bounds = diagonal_bounds(window)
    query = torch.arange(9)[:, None]
    key = torch.arange(9)
    left = bounds.get("diagonal_band_left_bound", 99)
    right = bounds.get("diagonal_band_right_bound", 99)
    seen = (key > query - left) & (key <= query + right)
    wanted = ((window[0] < 0) | (key >= query - window[0])) & ((window[1] < 0) | (key <= query + window[1]))
    assert torch.equal(seen, wanted)


def test_tables_find_every_segment_in_every_tensor() -> None:
    fitting = [
        case
        for case in pattern_cases()
        if unfit_mask(case.mask.traits) is None and case.mask.traits.num_segments > 1
    ]
    assert fitting
    for case in fitting:
        prepared = PackedPrepared(case.problem("fwd"))
        assert prepared.cu_seqlens is not None
        tables = ragged_tables(prepared.problem, prepared.cu_seqlens)
        bounds = prepared.cu_seqlens.tolist()
        assert tables["lengths"].dtype == torch.int32 and tables["lengths"].shape == (
            len(bounds) - 1,
            1,
            1,
            1,
        )
        assert tables["lengths"].flatten().tolist() == [end - start for start, end in pairwise(bounds)]
        q, k, *_ = case.inputs()
        for name, tensor in (("q_starts", q), ("k_starts", k), ("lse_starts", q[..., 0])):
            assert tables[name].dtype == torch.int64 and tables[name].shape == (len(bounds), 1, 1, 1)
            elements = torch.arange(tensor.numel()).view(tensor.shape)
            begins = [int(elements[start].flatten()[0]) for start in bounds[:-1]]
            assert tables[name].flatten().tolist() == [*begins, tensor.numel()]


def test_a_token_alone_has_no_backward() -> None:
    kernel = Registry("kernel").load("cudnn_graph")
    entry = next(case for case in hand_made_cases() if case.mask.name == "one")
    case = Case(entry.mask, 4, 2, head_dim=128)
    answers = [
        kernel.supports(case.cell("cudnn_graph", direction, "bf16").call_spec, case.mask.traits, "cuda")
        for direction in ("fwd", "bwd")
    ]
    assert answers[0] is None and "one token" in answers[1]
