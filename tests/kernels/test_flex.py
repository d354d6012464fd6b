import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.backends.flex import FlexPrepared
from longca.kernels.contract import Problem
from longca.masks import build_mask
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention


@pytest.mark.slow
def test_earlier_problems_do_not_count_against_a_later_one() -> None:
    """torch.compile gives up on a function after some number of variants; here after one."""
    flex = Registry("kernel").load("flex")
    with torch._dynamo.config.patch(recompile_limit=1):
        for seqlen in (48, 80):
            case = Case(build_mask("causal", seqlen=seqlen), 2, 1)
            prepared = flex.prepare(case.problem("fwd"))
            q, k, v, dout = case.inputs()
            out = prepared.from_layout(prepared.forward(*(prepared.to_layout(x) for x in (q, k, v))).out)
            torch.testing.assert_close(
                out.double(), plain_attention(q, k, v, dout, case.mask.dense()).out, rtol=1e-5, atol=1e-5
            )
            assert prepared.costs["compile_ms"] > 0 and prepared.costs["metadata_bytes"] > 0


@pytest.mark.parametrize(
    ("num_queries", "heads", "is_forced"),
    [
        (16, (64, 8), False),
        (64, (64, 8), True),
        (64, (8, 8), False),
        (127, (2, 1), True),
        (128, (64, 8), False),
    ],
)
def test_few_queries_of_many_heads_take_the_usual_kernel(
    num_queries: int, heads: tuple[int, int], is_forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    mask = build_mask("causal", seqlen=1024, new_tokens=num_queries)
    prepared = object.__new__(FlexPrepared)
    prepared.problem = Problem(mask, *heads, 128, torch.bfloat16, torch.device("cuda"), False)
    forced = {"FORCE_USE_FLEX_ATTENTION": True} if is_forced else {}
    assert prepared._kernel_options() == {"USE_TMA": True, **forced}


def test_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    flex = Registry("kernel").load("flex")
    assert flex.available("cpu") is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in flex.available("cpu")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert "g++" in flex.available("cpu")


def test_says_why_it_has_no_backward_on_a_cpu() -> None:
    flex = Registry("kernel").load("flex")
    case = Case(build_mask("causal", seqlen=8), 2, 1)
    assert "backward" in flex.supports(case.cell("flex", "bwd").call_spec, case.mask.traits, "cpu")
    assert flex.supports(case.cell("flex", "bwd").call_spec, case.mask.traits, "cuda") is None


@pytest.mark.parametrize("name", ["flex", "flex_flash"])
def test_head_dims_that_torch_refuses_on_gpus(name: str) -> None:
    kernel = Registry("kernel").load(name)
    mask = build_mask("causal", seqlen=8)
    small, least = (
        kernel.supports(Case(mask, 2, 1, head_dim).cell(name, "fwd", "bf16").call_spec, mask.traits, "cuda")
        for head_dim in (8, 16)
    )
    assert "head dim" in str(small) and least is None
