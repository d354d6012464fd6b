"""Parts of tests.helpers.ops.interpreted: merging, band attention over the steps of context-parallel plans,
smaller kernels."""

import itertools
from types import SimpleNamespace
from typing import Any

import torch

from longca.core.plugin import Registry
from longca.cp.runtime.accumulate import merge, no_keys
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.ops.band.merge import merge_parts
from longca.ops.band.plan import UNIT, DqTarget
from longca.ops.band.replay.launches import Launches
from longca.ops.band.sm90.bwd_dkdv import stats_offset
from longca.ops.band.sm90.launch import LOG2_E, finish_gradients
from longca.ops.band.triton.preprocess import preprocess
from tests.helpers.cp.parts import in_parts
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention

TOLERANCE = 4e-3  # float16, rounded twice


def merging(whole: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_rows, num_heads, head_dim, dtype in (
        (37, 3, 24, torch.float32),
        (5, 2, 64, torch.float16),
        (0, 2, 16, torch.float32),
    ):
        result, right = (no_keys(torch.empty(num_rows, num_heads, head_dim)) for _ in range(2))
        for mark in (torch.inf, -torch.inf, torch.inf):
            part = torch.randn(num_rows, num_heads, head_dim, generator=generator).to(dtype)
            lse = torch.randn(num_heads, num_rows, generator=generator).T * 30
            part[::3] = 0
            lse[::3] = mark
            part[1:2], lse[1:2] = 0, -torch.inf
            merge_parts(*result, part, lse)
            merge(*right, part, lse)
        torch.testing.assert_close(result, right)


def band_in_parts(whole: bool) -> None:
    """A few are a ring and a gather, of one unit of rows and of two."""
    if not whole:
        check(Case(build_mask("causal", seqlen=75), 2, 1, head_dim=64), "zigzag", Ring(), 2)
        check(
            Case(build_mask("sliding_window", seqlen=300, window=20), 2, 1, head_dim=64),
            "contiguous",
            Gather(1),
            2,
        )
        return
    cases = (
        ("causal", "zigzag", Ring(), 2, 75),
        ("full", "contiguous", Gather(2), 3, 75),
        ("causal_sliding_window", "stripes", Ring(), 2, 75),
        ("causal", "zigzag", Ring(), 2, 1030),
        ("sliding_window", "contiguous", Gather(1), 2, 600),
    )  # some units of rows in each step
    for mask, permutation, schedule, world, seqlen in cases:
        case = Case(
            build_mask(mask, seqlen=seqlen, **({"window": 20} if "window" in mask else {})), 2, 1, head_dim=64
        )
        check(case, permutation, schedule, world)
    causal, window, block = (
        as_bands([band])
        for band in ((0, 520, 0, 520, -INF, 0), (0, 520, 0, 520, -60, 60), (300, 400, 100, 500, -INF, INF))
    )  # of which most rows see nothing
    check(Case(Mask(520, 520, (causal, window)), 4, 2, head_dim=64), "contiguous", Ring(), 2)
    check(Case(Mask(520, 520, (block, causal)), 4, 2, head_dim=64), "zigzag", Gather(1), 3)
    causal, block = (as_bands([band]) for band in ((0, 260, 0, 260, -INF, 0), (150, 200, 50, 250, -INF, INF)))
    check(Case(Mask(260, 260, (block, causal)), 2, 2, head_dim=64), "zigzag", Ring(), 2)


def check(case: Case, permutation: str, schedule: Ring | Gather, world: int) -> None:
    q, k, v, dout = case.inputs(torch.float16)
    got = in_parts(
        case.problem("bwd", torch.float16),
        Registry("kernel").load("band"),
        world,
        schedule,
        permutation,
        q,
        k,
        v,
        dout,
    )
    right = plain_attention(q, k, v, dout, case.mask.dense())
    for name, result, expected in zip(
        ("out", "lse", "dq", "dk", "dv"),
        (got.out, got.lse, *got.grads),
        (right.out, right.lse, *right.grads),
        strict=True,
    ):
        known = expected.isfinite()  # an LSE is −inf where a row sees nothing
        assert torch.equal(result.isfinite(), known), (str(case), name)
        error = float((result.double() - expected)[known].norm() / expected[known].norm())
        assert error < TOLERANCE, (str(case), name, error)


def sums_to_gradients(whole: bool) -> None:
    """Sums of some units of tokens, the last one not whole, onto others."""
    num_tokens = 2 * UNIT + 44
    shape = (2 * UNIT + 44, 3, 64)
    of_keys = (70, 1, 64)
    sums = torch.randn(shape)
    carried = torch.randn(shape)
    values = torch.full(shape, torch.nan)
    whole = torch.empty(shape)
    key_sums = [torch.randn(of_keys) for _ in "kv"]
    grads = [torch.empty(of_keys) for _ in "kv"]
    some_rows = SimpleNamespace(units=torch.tensor([0, 2 * UNIT], dtype=torch.int32))
    targets: list[Any] = [DqTarget(SimpleNamespace(units=None), whole), DqTarget(some_rows, values, carried)]  # type: ignore[arg-type]
    finish_gradients(Launches(sums.device), [sums, *key_sums], targets, *grads, 2.0)
    some = torch.arange(num_tokens) // UNIT != 1
    torch.testing.assert_close(values[some], (whole + carried)[some])
    assert values[~some].isnan().all()
    for grad, of, scale in zip((whole, *grads), (sums, *key_sums), (2, 2, 1), strict=True):
        assert torch.equal(grad.flatten().sort().values, (scale * of).flatten().sort().values), (
            "each has its place among gradients"
        )
        torch.testing.assert_close(grad.sum((1, 2)), (scale * of).sum((1, 2)), rtol=0, atol=1e-3)
    alone = [torch.empty(of_keys) for _ in "kv"]
    finish_gradients(Launches(sums.device), [sums, *key_sums], [], *alone, 2.0)
    assert all(map(torch.equal, alone, grads))


def statistics_of_rows(whole: bool) -> None:
    """A block's rows, wherever it begins, at a multiple of 16 bytes where TMA reads them; with room past the
    last token."""
    for num_tokens, pack in ((60, 1), (61, 2), (57, 8)):
        out, dout = (torch.randn(num_tokens, 8, 64).half() for _ in range(2))
        lse = torch.randn(num_tokens, 8)
        lse[5] = -torch.inf
        plain, copies = (
            preprocess(Launches(out.device), out, dout, lse, None, pack, for_tma=for_tma)
            for for_tma in (False, True)
        )
        right = (
            (lse * LOG2_E).where(lse > -torch.inf, torch.inf),
            (out.float() * dout).sum(2).where(lse > -torch.inf, 0),
        )
        for rows, laid_out, expected in zip(plain, copies, right, strict=True):
            torch.testing.assert_close(rows[:, 0, :num_tokens].transpose(0, 1).flatten(1), expected)
            for pack_number, column in itertools.product(range(8 // pack), range(num_tokens)):
                place = stats_offset.fn(column, pack_number, laid_out[0].numel(), pack)
                assert place % 4 == 0
                assert torch.equal(
                    laid_out.flatten()[place : place + 64],
                    rows[pack_number, 0, column : column + 64 // pack].flatten(),
                )


PARTS = (merging, band_in_parts, sums_to_gradients, statistics_of_rows)
