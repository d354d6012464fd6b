"""No row may be wrong, however many are right beside it; right kernels pass, in whatever order they sum and
whatever they round."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.lab.bench.check.inputs import DTYPES, Inputs
from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.bench.check.scope import affordable
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention
from tests.helpers.support import examples

TENSORS = ("out", "lse", "dq", "dk", "dv")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Lengths of 1 to 300; documents, many of them one token; rows without keys; GQA."""
    seqlen = draw(st.integers(1, 300))
    kind = draw(st.sampled_from(["full", "causal", "causal_document", "full_document", "holes"]))
    if kind == "holes":
        first, last = sorted(draw(st.tuples(st.integers(0, seqlen), st.integers(0, seqlen))))
        bands = [(0, first, 0, seqlen, -INF, 0), (last, seqlen, 0, seqlen, -3, INF)]
        mask = Mask(seqlen, seqlen, (as_bands([band for band in bands if band[0] < band[1]]),))
    elif "document" in kind:
        cuts = sorted(
            draw(st.sets(st.integers(0, seqlen), max_size=20)) | set(range(1, min(4, seqlen))) | {0, seqlen}
        )
        mask = build_mask(kind, seqlen=seqlen, documents=np.diff(cuts))
    else:
        mask = build_mask(kind, seqlen=seqlen)
    heads = draw(st.sampled_from([(1, 1), (4, 4), (8, 2), (8, 1)]))
    return Case(mask, *heads, head_dim=draw(st.sampled_from([8, 32, 64])))


@dataclass(frozen=True)
class Judged:
    """A right answer, and the judge of it."""

    oracle: Oracle
    answer: dict[str, torch.Tensor]

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype) -> "Judged":
        inputs = Inputs(*case.inputs(dtype))
        plain = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, case.mask.dense())
        return cls(
            Oracle(case.problem("bwd", dtype), inputs),
            dict(zip(TENSORS, (plain.out, plain.lse, *plain.grads), strict=True)),
        )

    def verdict(self, **changed: torch.Tensor) -> str | None:
        out, lse, *grads = (self.answer | changed).values()
        return wrong(self.oracle.judge(out, lse, (grads[0], grads[1], grads[2])))


@given(
    case=cases(),
    dtype=st.sampled_from(list(DTYPES)),
    name=st.sampled_from(TENSORS),
    place=st.integers(0),
    scale=st.sampled_from([0.0, 0.5, -1.0]),
)
@examples(80)
def test_one_wrong_row_is_found_wherever_it_is(
    case: Case, dtype: str, name: str, place: int, scale: float
) -> None:
    judged = Judged.of(case, DTYPES[dtype])
    changed = judged.answer[name].clone()
    rows = changed.view(-1) if name == "lse" else changed.view(-1, changed.shape[-1])
    row = place % len(rows)
    before = rows[row].clone()
    rows[row] = before + 0.5 if name == "lse" else scale * before
    least = (
        32 * torch.finfo(DTYPES[dtype]).eps * case.head_dim**0.5 if name in ("dq", "dk") else 0.0
    )  # these are differences
    if not torch.isfinite(before).all() or (rows[row] - before).norm() <= max(least, 1e-9):
        return  # a row without keys, or one whose gradient all but cancels
    assert judged.verdict() is None
    assert name in str(judged.verdict(**{name: changed}))


def test_one_wrong_row_of_one_head_is_found_in_a_long_result() -> None:
    """The last rows of a causal mask are small beside the first ones."""
    case = Case(build_mask("causal", seqlen=1024), 8, 8, head_dim=16)
    judged = Judged.of(case, torch.bfloat16)
    for name, value in (("out", 0.0), ("lse", 1.0), ("dq", 0.0), ("dk", 0.0), ("dv", 0.0)):
        changed = judged.answer[name].clone()
        changed[-1, 5] = changed[-1, 5] + value if value else 0.0
        assert str(judged.verdict(**{name: changed})).startswith(f"a row of {name} is off by"), name


SMALL_ERRORS = {
    "head 5": ("out", (slice(None), 5), 1.02),
    "head 5 of dq": ("dq", (slice(None), 5), 1.025),
    "head 1": ("dk", (slice(None), 1), 1.0195),
    "column 7": ("dv", (..., 7), 1.06),
    "column 7 of head 2": ("out", (slice(None), 2, 7), 1.09),
    "rows 512 to 575": ("out", slice(512, 576), 1.03),
    "rows 960 to 1023 of head 7": ("dq", (slice(960, 1024), 7), 1.05),
    "rows 576 to 639": ("dk", slice(576, 640), 1.04),
}


@pytest.mark.parametrize("part", SMALL_ERRORS)
def test_a_small_error_of_one_part_is_not_lost_among_all_others(part: str) -> None:
    """These errors are within the budget of the whole tensor, and those of each row within that of a row."""
    judged = Judged.of(Case(build_mask("causal", seqlen=1024), 8, 4, head_dim=64), torch.bfloat16)
    name, index, factor = SMALL_ERRORS[part]
    changed = judged.answer[name].clone()
    changed[index] *= factor
    verdict = str(judged.verdict(**{name: changed}))
    assert verdict.startswith(f"{part.removesuffix(f' of {name}')} of {name} is off by"), verdict


def test_a_part_of_a_sample_has_its_own_numbers() -> None:
    """Rows of a sample are counted in the tensor, as are heads."""
    case = Case(build_mask("causal", seqlen=2048), 8, 4, head_dim=32)
    problem = case.problem("fwd", torch.bfloat16)
    inputs = Inputs(*case.inputs(torch.bfloat16))
    right = plain_attention(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, case.mask.dense())
    oracle = Oracle(problem, inputs, scope=affordable(problem, 3, budget_flops=2e8))
    assert oracle.scope.is_sample and wrong(oracle.judge(right.out)) is None
    changed = right.out.clone()
    changed[:, 6] *= 1.03
    verdict = str(wrong(oracle.judge(changed)))
    assert verdict.startswith("head 6 of out is off by"), verdict


@given(case=cases(), dtype=st.sampled_from(list(DTYPES)), parts=st.integers(1, 5), rounds=st.booleans())
@examples(60)
def test_right_kernels_pass(case: Case, dtype: str, parts: int, rounds: bool) -> None:
    inputs = Inputs(*case.inputs(DTYPES[dtype]))
    actual = _kernel(case, inputs, DTYPES[dtype], parts, rounds)
    accuracy = Oracle(case.problem("bwd", DTYPES[dtype]), inputs).judge(*actual)
    assert wrong(accuracy) is None
    assert max(accuracy.worst_row.values()) < (0.5 if rounds else 0.2)
    assert max(accuracy.worst_part.values()) < 0.5


def _kernel(case: Case, inputs: Inputs, dtype: torch.dtype, parts: int, rounds: bool):
    """Attention in float32 whose sums over keys are in that many parts, the last one first; or one that
    writes its matrices down in the dtype, as unfused attention does."""
    q, k, v, dout = (
        x.float().transpose(0, 1) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD)
    )
    ratio = len(q) // len(k)
    scale = case.head_dim**-0.5
    k, v = k.repeat_interleave(ratio, 0), v.repeat_interleave(ratio, 0)

    def written(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float() if rounds else x

    def in_parts(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        pieces = zip(left.tensor_split(parts, -1), right.tensor_split(parts, -2), strict=True)
        return torch.stack([a @ b for a, b in reversed(list(pieces))]).sum(0)

    scores = written(q @ k.mT * scale).masked_fill(~torch.from_numpy(case.mask.dense()), -torch.inf)
    lse = scores.logsumexp(-1)
    p = written(torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None]))
    out = in_parts(p, v).to(dtype).float()
    ds = written(p * (written(dout @ v.mT) - (dout * out).sum(-1, keepdim=True)))
    dk, dv = (
        in_parts(weight.mT, x).unflatten(0, (-1, ratio)).sum(1) for weight, x in ((ds * scale, q), (p, dout))
    )
    dq, dk, dv, out = (x.transpose(0, 1).to(dtype) for x in (in_parts(ds * scale, k), dk, dv, out))
    return out, lse.mT, (dq, dk, dv)


def test_inputs_of_nothing_are_no_division_by_nothing() -> None:
    case = Case(build_mask("causal", seqlen=9), 2, 1)
    q, k, v, dout = case.inputs()
    inputs = Inputs(q, k, torch.zeros_like(v), dout)
    plain = plain_attention(q, k, inputs.v_TGD, dout, case.mask.dense())
    assert wrong(Oracle(case.problem("bwd"), inputs).judge(plain.out, plain.lse, plain.grads)) is None


@pytest.mark.parametrize("name", ["dk", "dv"])
def test_a_key_that_nobody_sees_has_no_gradient(name: str) -> None:
    case = Case(Mask(64, 64, (as_bands([(0, 64, 0, 40, -INF, INF)]),)), 2, 1)
    judged = Judged.of(case, torch.float32)
    changed = judged.answer[name].clone()
    changed[50] = 1e-30
    assert judged.verdict(**{name: changed}) is None  # nothing, to float32
    changed[50] = 1e-4
    assert name in str(judged.verdict(**{name: changed}))
