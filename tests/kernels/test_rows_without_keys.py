"""No kernel escapes the rule for rows without keys: it runs them, says that it refuses them, or takes no mask
that has any."""

import numpy as np
import pytest

from longca.core.plugin import Registry
from longca.masks import Mask
from longca.masks.band import INF, as_bands
from longca.masks.grid import BlockGrid
from tests.helpers.kernels.cases import Case, empty_row_cases, pattern_cases
from tests.kernels.test_contract_kernels import ATTENTION

CASES = [Case(case.mask, case.num_q_heads, case.num_kv_heads, head_dim=128) for case in empty_row_cases()]
AHEAD = as_bands([(0, 64, 0, 64, 3, 9)])  # a window that hides each token from itself
SAYS_SO = ("without keys", "sees nothing")


@pytest.mark.parametrize("name", ATTENTION)
def test_runs_them_or_says_so(name: str) -> None:
    kernel = Registry("kernel").load(name)
    ran = []
    refused = []
    for case in CASES:
        reason = kernel.supports(case.cell(name, "fwd", "bf16").call_spec, case.mask.traits, "cuda")
        if reason is None:
            ran.append(case)
        elif any(sign in reason for sign in SAYS_SO):
            refused.append(case)
        else:  # it is not for the empty rows that it refuses the mask: it refuses the same mask without them
            filled = Case(_filled(case.mask), case.num_q_heads, case.num_kv_heads, head_dim=128)
            assert (
                kernel.supports(filled.cell(name, "fwd", "bf16").call_spec, filled.mask.traits, "cuda")
                is not None
            ), reason
    if not ran and not refused:
        taken = [
            case
            for case in pattern_cases()
            if kernel.supports(case.cell(name, "fwd", "bf16").call_spec, case.mask.traits, "cuda") is None
        ]
        assert not any(case.mask.traits.empty_rows for case in taken)
        assert all(case.mask.traits.num_segments for case in taken), (
            "only a mask of segments cannot have such rows"
        )


def test_there_are_such_rows() -> None:
    assert all(case.mask.traits.empty_rows and not _filled(case.mask).traits.empty_rows for case in CASES)
    assert (
        {case.mask.traits.is_block_grid for case in CASES}
        == {case.mask.traits.per_head for case in CASES}
        == {True, False}
    )


def test_segments_have_no_such_rows() -> None:
    masks = [case.mask for case in pattern_cases() + CASES] + [Mask(64, 64, (AHEAD,))]
    assert any(mask.traits.num_segments for mask in masks)
    assert not any(mask.traits.num_segments and mask.traits.empty_rows for mask in masks)


def _filled(mask: Mask) -> Mask:
    """The same mask, but that rows which saw nothing see the first keys."""
    if mask.grid is not None:
        visible = mask.grid.visible.copy()
        visible[:, :, 0] |= ~visible.any(-1)
        return Mask(
            mask.seqlen_q, mask.seqlen_k, grid=BlockGrid(visible, mask.grid.q_bounds, mask.grid.k_bounds)
        )
    dense = mask.dense().reshape(-1, mask.seqlen_q, mask.seqlen_k)
    fill = [
        as_bands([(row, row + 1, 0, 1, -INF, INF) for row in np.flatnonzero(~of_group.any(1))])
        for of_group in dense
    ]
    return Mask(
        mask.seqlen_q,
        mask.seqlen_k,
        tuple(np.concatenate(pair) for pair in zip(mask.groups, fill, strict=True)),
    )
