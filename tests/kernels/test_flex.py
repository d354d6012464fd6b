import torch

from longca.core.plugin import Registry
from longca.masks import build_mask
from tests.kernels.cases import Case
from tests.kernels.plain_attention import plain_attention


def test_earlier_problems_do_not_count_against_a_later_one() -> None:
    """torch.compile gives up on a function after some number of variants; here after one."""
    flex = Registry("kernel").load("flex")
    with torch._dynamo.config.patch(recompile_limit=1):
        for seqlen in (48, 80):
            case = Case(build_mask("causal", seqlen=seqlen), 2, 1)
            prepared = flex.prepare(case.problem("fwd"))
            q, k, v, dout = case.inputs()
            out = prepared.from_layout(prepared.forward(*(prepared.to_layout(x) for x in (q, k, v))).out)
            torch.testing.assert_close(out.double(), plain_attention(q, k, v, dout, case.mask.dense()).out, rtol=1e-5, atol=1e-5)
            assert prepared.costs["compile_ms"] > 0 and prepared.costs["metadata_bytes"] > 0


def test_says_why_it_has_no_backward_on_a_cpu() -> None:
    flex = Registry("kernel").load("flex")
    case = Case(build_mask("causal", seqlen=8), 2, 1)
    assert "backward" in flex.supports(case.cell("flex", "bwd"), case.mask.traits, "cpu")
    assert flex.supports(case.cell("flex", "bwd"), case.mask.traits, "cuda") is None
