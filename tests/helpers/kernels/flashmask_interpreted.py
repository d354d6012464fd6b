"""A part of tests.helpers.ops.interpreted: the FlashMask operator against the definition."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import torch

from longca.core.plugin import Registry
from longca.kernels.backends import flashmask as flashmask_row
from longca.kernels.backends.flashmask import FlashMaskPrepared
from longca.ops.tuning import Tuning
from tests.helpers.kernels.cases import BEYOND_FLASHMASK, Case, hand_made_cases, pattern_mask
from tests.helpers.kernels.plain_attention import plain_attention


def flashmask(whole: bool) -> None:
    """Prints each case; fails at the first that is off. Few of them are every third pattern with one KV
    head."""
    groups = 2 if whole else 1
    names = [name for name in Registry("mask").names() if not name.startswith(BEYOND_FLASHMASK)]
    static = [Case(pattern_mask(name, groups), 2 * groups, groups) for name in names]
    ragged = [case for case in hand_made_cases() if case.mask.traits.max_col_intervals == 1]
    first, *others = static + ragged if whole else static[::3] + ragged[1:2]
    _check(first, torch.float32, 1e-5)
    with (
        nullcontext() if whole else patch.object(flashmask_row, "first_call_ms", lambda _: 0.0)
    ):  # it compiles nothing here
        for case in others:
            _check(case, torch.float32, 1e-5)
        for case in ragged if whole else ragged[:1]:
            _check(case, torch.float32, 1e-5, by_tma=False)
        _check(static[0], torch.float16, 2e-3)  # the interpreter multiplies no bfloat16


def _check(case: Case, dtype: torch.dtype, tolerance: float, by_tma: bool = True) -> None:
    inputs = case.inputs(dtype)
    plain = plain_attention(*inputs, case.mask.dense())
    prepared = FlashMaskPrepared(case.problem("bwd", dtype))
    tuning = prepared._mask.tuning
    loaded = Tuning(
        *(replace(tiling, by_tma=by_tma) for tiling in (tuning.forward, tuning.keys, tuning.queries))
    )
    prepared._mask = replace(prepared._mask, tuning=loaded)
    q, k, v, dout = (prepared.to_layout(x) for x in inputs)
    forward = prepared.forward(q, k, v)
    grads = prepared.backward(forward, dout)
    results = [prepared.from_layout(x) for x in (forward.out, *grads)]
    lse = prepared.lse_from_layout(forward.lse)
    empty = plain.lse == -torch.inf
    print(case, flush=True)
    assert (
        torch.equal(lse == -torch.inf, empty)
        and (results[0][empty] == 0).all()
        and (results[1][empty] == 0).all()
    )
    torch.testing.assert_close(lse.double(), plain.lse, rtol=tolerance, atol=tolerance)
    for name, result, right in zip(
        ("out", "dq", "dk", "dv"), results, (plain.out, *plain.grads), strict=True
    ):
        error = torch.linalg.vector_norm(result.double() - right) / max(
            float(torch.linalg.vector_norm(right)), 1.0
        )
        assert error <= tolerance, f"{case}: {name} is off by {error:.1e}"


PARTS = (flashmask,)
