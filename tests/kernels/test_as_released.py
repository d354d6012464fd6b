"""Rows "as released": each repeats one defect of the study's code, is right all the same, and says what it
does."""

import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import AS_RELEASED
from longca.kernels.backends.as_released_fa3 import Accumulating
from longca.lab.paper.analysis.support import STUDY_ROWS
from longca.masks import build_mask
from tests.helpers.kernels.cases import Case, pattern_mask
from tests.helpers.kernels.plain_attention import plain_attention
from tests.kernels.test_packed import ByTheBook

NAMES = [name for name in Registry("kernel").names() if name.startswith(AS_RELEASED)]


def test_each_stands_beside_an_honest_row() -> None:
    assert len(NAMES) == 4
    for name in NAMES:
        kernel = Registry("kernel").load(name)
        honest = Registry("kernel").load(name.removeprefix(AS_RELEASED))
        assert isinstance(kernel, type(honest)) and name not in STUDY_ROWS, (
            "the honest row stands for the study's"
        )
        assert kernel.label == f"{honest.label}, as released"


def test_sdpa_gives_torch_the_kv_heads_uncopied_beside_a_mask() -> None:
    case = Case(pattern_mask("causal_document", 2), 8, 2)
    rows = [
        Registry("kernel").load(name).prepare(case.problem("fwd", torch.bfloat16))
        for name in ("sdpa", "as_released_sdpa")
    ]
    assert [row.to_layout(case.inputs(torch.bfloat16)[1]).shape[1] for row in rows] == [8, 2]
    assert not any("copied" in note for note in rows[1].notes) and any(
        "as released" in note for note in rows[1].notes
    )


@pytest.mark.parametrize(
    ("mask", "heads"), [("causal", (8, 2)), ("full", (8, 2)), ("causal_document", (2, 2))]
)
def test_sdpa_refuses_what_it_would_do_as_the_honest_row(mask: str, heads: tuple[int, int]) -> None:
    case = Case(pattern_mask(mask, heads[1]), *heads)
    call = case.cell("sdpa", "fwd").call_spec
    assert "it is `sdpa`" in str(
        Registry("kernel").load("as_released_sdpa").supports(call, case.mask.traits, "cuda")
    )


@pytest.mark.parametrize("mask", ["full", "causal", "causal_document"])
def test_naive_makes_a_bias_on_the_host_in_each_call(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(pattern_mask(mask, 2), 4, 2)
    prepared = Registry("kernel").load("as_released_naive").prepare(case.problem("bwd"))
    size = case.mask.seqlen_q
    made = []
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, **options: made.append(args) or zeros(*args, **options))
    operands = [prepared.to_layout(x) for x in case.inputs()]
    forward = prepared.forward(*operands[:3])
    prepared.forward(*operands[:3])
    assert made == [(size, size)] * 2
    prepared.backward(forward, operands[3])
    assert len(made) == 2


class AccumulatingByTheBook(Accumulating, ByTheBook):
    def raw_backward(self, q, k, v, out, lse, dout):
        return q * 2, k * 3, v * 4


def test_fa3_adds_up_gradients_and_returns_those_of_the_call() -> None:
    case = Case(pattern_mask("causal", 2), 4, 2)
    prepared = AccumulatingByTheBook(case.problem("bwd"))
    q, k, v, dout = (prepared.to_layout(x) for x in case.inputs())
    forward = prepared.forward(q, k, v)
    for number in (1, 2, 3):
        actual = prepared.backward(forward, dout)
        assert all(
            torch.equal(grad, right) for grad, right in zip(actual, (q * 2, k * 3, v * 4), strict=True)
        )
        assert prepared._kept is not None
        torch.testing.assert_close(prepared._kept[0], q * 2 * number)
    assert prepared._kept[0] is not actual[0]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_flex_falls_back_to_all_scores_and_says_so(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    if fails:

        def out_of_memory(*args: object, **options: object) -> None:
            raise torch.OutOfMemoryError("no room for S²")

        monkeypatch.setattr(flex_attention, "create_block_mask", out_of_memory)
    case = Case(build_mask("block_sparse_uniform", seqlen=128, num_kv_heads=2, block=32), 4, 2)
    prepared = Registry("kernel").load("as_released_flex").prepare(case.problem("fwd"))
    q, k, v, dout = case.inputs()
    out = prepared.from_layout(prepared.forward(*(prepared.to_layout(x) for x in (q, k, v))).out)
    torch.testing.assert_close(
        out.double(), plain_attention(q, k, v, dout, case.mask.dense()).out, rtol=1e-5, atol=1e-5
    )
    assert any("OutOfMemoryError" in note for note in prepared.notes) == fails
    assert ("metadata_bytes" in prepared.costs and prepared.costs["metadata_bytes"] == 0) == fails
