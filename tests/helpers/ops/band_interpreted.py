"""Parts of tests.helpers.ops.interpreted: band attention against the definition.

Its time grows with the number of tiles: `few` takes fewer heads and larger tiles, which still are full,
partial and empty ones.
"""

from dataclasses import replace

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from longca.kernels.backends.band import BandPrepared
from longca.masks import Mask
from longca.masks.band import INF, as_bands
from longca.ops.band.api import BandPlan, band_backward, band_backward_onto, band_forward, plan_band_attention
from longca.ops.band.config import BandKernel, TileConfig
from longca.ops.band.plan import UNIT, of_rows
from tests.helpers.kernels.cases import Case, empty_row_cases, hand_made_cases, pattern_cases, pattern_mask
from tests.helpers.kernels.masks_for_tests import NOTHING_VISIBLE, band_masks, grid_masks
from tests.helpers.kernels.plain_attention import Plain, plain_attention

SMALL = {
    BandKernel.FORWARD: TileConfig(32, 16, 4, 2),
    BandKernel.DKDV: TileConfig(16, 32, 4, 2),
    BandKernel.DQ: TileConfig(32, 16, 4, 2),
}
LARGER = {
    BandKernel.FORWARD: TileConfig(64, 32, 4, 2),
    BandKernel.DKDV: TileConfig(32, 64, 4, 2),
    BandKernel.DQ: TileConfig(64, 32, 4, 2),
}
UNLIKE = (
    "causal",
    "causal_document",
    "shared_question",
    "global_sliding_window",
    "block_sparse_uniform",
    "block_sparse_variable",
)
TOLERANCE = 2e-5  # all in float32


def plan_of(case: Case, tuned: dict[BandKernel, TileConfig] = SMALL) -> BandPlan:
    return plan_band_attention(
        case.mask,
        num_q_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        device="cpu",
        tiles=tuned,
    )


def near(name: str, result: torch.Tensor, right: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    error = torch.linalg.vector_norm(result.double() - right) / max(
        float(torch.linalg.vector_norm(right)), 1.0
    )
    assert error <= tolerance, f"{name} is off by {error:.1e}"


def compare(
    case: Case,
    plain: Plain,
    out: torch.Tensor,
    lse: torch.Tensor,
    grads: tuple[torch.Tensor, ...] = (),
    tolerance: float = TOLERANCE,
) -> None:
    empty = plain.lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty) and (out[empty] == 0).all(), f"{case}: rows without keys"
    near(f"{case}: LSE", lse[~empty], plain.lse[~empty], tolerance)
    for name, result, right in zip(
        ("out", "dq", "dk", "dv"), (out, *grads), (plain.out, *plain.grads), strict=False
    ):
        near(f"{case}: {name}", result, right, tolerance)
    assert not grads or (grads[0][empty] == 0).all()


def check(
    case: Case,
    tuned: dict[BandKernel, TileConfig] = SMALL,
    dtype: torch.dtype = torch.float32,
    tolerance: float = TOLERANCE,
    repeats: bool = True,
) -> BandPlan:
    """By the raw functions, backward twice if it is to be seen that it repeats."""
    print(case, flush=True)
    q, k, v, dout = case.inputs(dtype)
    plan = plan_of(case, tuned)
    out, lse = band_forward(q, k, v, plan)
    grads = band_backward(q, k, v, out, lse, dout, plan)
    compare(case, plain_attention(q, k, v, dout, case.mask.dense()), out, lse, grads, tolerance)
    if repeats:
        again = band_backward(q, k, v, out, lse, dout, plan)
        assert all(torch.equal(first, other) for first, other in zip(grads, again, strict=True))
    return plan


def patterns(whole: bool) -> None:
    """Every pattern, or those that are least alike, with several query heads for a KV head; some with one;
    three loops; float16.

    Of the few, one is seen to repeat itself: the interpreter runs programs one after the other.
    """
    cases = pattern_cases()
    tiles = SMALL
    if whole:
        for case in cases[1::2] + cases[::8]:
            check(case)
    else:
        names = UNLIKE
        tiles = LARGER
        groups = [2 if name.startswith("block_sparse") else 1 for name in names]
        cases = [
            Case(pattern_mask(name, count), 2 * count, count)
            for name, count in zip(names, groups, strict=True)
        ]
        for number, case in enumerate(cases):
            check(case, tiles, repeats=number == 1)
    for loop in (0, 2) if whole else (2,):
        check(
            cases[not whole],
            {**tiles, BandKernel.FORWARD: replace(tiles[BandKernel.FORWARD], loop=loop)},
            repeats=whole,
        )
    check(
        cases[1] if whole else Case(cases[1].mask, 1, 1),
        tiles,
        dtype=torch.float16,
        tolerance=2e-3,
        repeats=whole,
    )


def hand_made(whole: bool) -> None:
    """Rows without keys, fewer keys than queries, one token, blocks that do not divide, no keys or queries at
    all."""
    cases = list({str(case): case for case in hand_made_cases() + empty_row_cases()}.values())
    for case in cases if whole else cases[1:4]:
        check(case, SMALL if whole else LARGER, repeats=whole)
    for mask in NOTHING_VISIBLE:
        check(Case(mask, 2, 1), repeats=whole)


def heads(whole: bool) -> None:
    """16 query heads for a KV head, more than one program takes, and 8, MQA, heads that share no tile, three
    heads for one."""
    alone = {
        kernel: TileConfig(16, 16, 4, 2, max_pack=1)
        for kernel in (BandKernel.FORWARD, BandKernel.DKDV, BandKernel.DQ)
    }
    if not whole:
        short = pattern_mask("causal_document", 1).crop((0, 60), (0, 60))
        for num_q_heads in (16, 3):
            check(Case(short, num_q_heads, 1), LARGER, repeats=False)
        check(Case(short, 2, 1), alone, repeats=False)
        return
    for num_q_heads, num_kv_heads in ((16, 2), (32, 2), (16, 1), (6, 2)):
        check(Case(pattern_mask("causal_document", num_kv_heads), num_q_heads, num_kv_heads))
    check(Case(pattern_mask("block_sparse_uniform", 2), 16, 2))
    check(Case(pattern_mask("causal", 2), 8, 2), alone)


def random_bands(whole: bool) -> None:
    """Any disjoint bands, any blocks."""

    @seed(5)
    @settings(
        max_examples=12 if whole else 3,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(band_masks(max_groups=2) | grid_masks())
    def run(mask: Mask) -> None:
        check(Case(mask, 2 * mask.num_groups, mask.num_groups), repeats=whole)

    run()


def split_lines(whole: bool) -> None:
    """Lines far longer than others, whose parts are added up: of queries and of keys."""
    length = 700 if whole else 300
    long = as_bands(
        [(0, 4, 0, length, -INF, INF), (4, length, 0, 4, -INF, INF), (4, length, 4, length, -5, 5)]
    )
    case = Case(Mask(length, length, (long,), name="global"), 2, 1)
    plan = check(case, repeats=whole)
    assert all(schedule.num_slots > 0 for schedule, _ in plan.kernels.values())
    if whole:
        carry(case)


def carried(whole: bool) -> None:
    """Known results of some keys, merged inside with the others: with the middle hidden, with rows that see
    nothing in a part."""
    if whole:
        for case in (*pattern_cases()[::5], *hand_made_cases()[:2]):
            carry(case)
    else:
        for case in (
            Case(pattern_mask("block_sparse_variable", 1), 2, 1),
            Case(hand_made_cases()[1].mask, 2, 2),
        ):
            carry(case, LARGER)


def carry(case: Case, tuned: dict[BandKernel, TileConfig] = SMALL) -> None:
    """The two halves of the keys one after the other, and their gradients by the LSE of all."""
    print("carried", case, flush=True)
    q, k, v, dout = case.inputs()
    plain = plain_attention(q, k, v, dout, case.mask.dense())
    middle = case.mask.seqlen_k // 2 - 3
    halves = [
        (
            slice(*cols),
            plan_of(
                Case(case.mask.crop((0, case.mask.seqlen_q), cols), case.num_q_heads, case.num_kv_heads),
                tuned,
            ),
        )
        for cols in ((0, middle), (middle, case.mask.seqlen_k))
    ]
    (first, first_plan), (second, second_plan) = halves
    known = band_forward(q, k[first], v[first], first_plan, out_dtype=torch.float32)
    out, lse = band_forward(q, k[second], v[second], second_plan, initial=known)
    parts = [
        band_backward(q, k[cols], v[cols], out, lse, dout, plan, grad_dtype=torch.float32)
        for cols, plan in halves
    ]
    (dq, *first_grads), (more_dq, *second_grads) = parts
    grads = [torch.cat(pair) for pair in zip(first_grads, second_grads, strict=True)]
    compare(case, plain, out, lse, (dq + more_dq, *grads))
    wanted = dq + more_dq
    ranges = rows_of(case.mask)
    parts = (
        [of_rows(second_plan, some) for some in ranges if some] if case.mask.grid is None else [second_plan]
    )
    for part in parts:
        band_forward(q, k[second], v[second], part, initial=known, into=known)
    assert torch.equal(known[0], out) and torch.equal(known[1], lse)
    result = torch.full_like(q, torch.nan)
    places = ((dq, dq),) if len(parts) == 1 else ((dq, result), (None, dq))
    dk, dv = band_backward_onto(
        q,
        k[second],
        v[second],
        out,
        lse,
        dout,
        second_plan,
        [(part, *where) for part, where in zip(parts, places, strict=True)],
    )
    assert torch.equal(dk, second_grads[0].to(q.dtype)) and torch.equal(dv, second_grads[1].to(q.dtype))
    if len(parts) == 1:
        torch.testing.assert_close(dq, wanted, rtol=0, atol=1e-6)
    else:
        mine, others = (torch.cat([torch.arange(*rows) for rows in some]) for some in ranges)
        torch.testing.assert_close(
            result[mine].float(), wanted[mine].to(q.dtype).float(), rtol=2e-3, atol=1e-5
        )
        assert result[others].isnan().all() and torch.equal(dq[others], more_dq[others])
        torch.testing.assert_close(dq[mine] + more_dq[mine], wanted[mine], rtol=0, atol=0)


def rows_of(mask: Mask) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Every other unit of its queries, and the others."""
    ranges = [(first, min(first + UNIT, mask.seqlen_q)) for first in range(0, mask.seqlen_q, UNIT)]
    return ranges[::2], ranges[1::2]


def public(whole: bool) -> None:
    """Autograd by out and LSE, batches, torch.compile, layouts, and what is refused."""
    from tests.helpers.ops import band_public

    band_public.main(whole=whole)


def adapter(whole: bool) -> None:
    """The kernel row, with the tile sizes that GPUs get."""
    for head_dim in (64, 128) if whole else (128,):
        case = Case(pattern_mask("causal_document", 1), 4, 1, head_dim=head_dim)
        inputs, prepared = case.inputs(), BandPrepared(case.problem("bwd"))
        q, k, v, dout = (prepared.to_layout(x) for x in inputs)
        forward = prepared.forward(q, k, v)
        assert forward.lse is not None
        compare(
            case,
            plain_attention(*inputs, case.mask.dense()),
            forward.out,
            forward.lse,
            prepared.backward(forward, dout),
        )
        assert all(prepared.costs[name] > 0 for name in ("plan_ms", "compile_ms", "metadata_bytes"))


PARTS = (patterns, hand_made, heads, random_bands, split_lines, carried, public, adapter)
