"""Models with longca's attention under `torch.compile`: breaks of the graph where masks are made, none in
layers."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from tests.transformers.models import batch, model, restarting, step

import longca.transformers  # noqa: F401  # isort: skip

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_no_layer_breaks_the_graph():
    """The mask does, in Transformers' functions, and attention does not."""
    graphs = set()
    for num_layers in (1, 3):
        torch._dynamo.reset()
        counters.clear()
        step(torch.compile(model("llama", num_hidden_layers=num_layers), backend="aot_eager"), **batch(1))
        graphs.add((counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())))
    assert len(graphs) == 1


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_documents_that_change_compile_nothing_again(family: str):
    made = model(family)
    compiled = torch.compile(made, backend="aot_eager")
    for number in range(6):
        inputs = {**batch(1, seed=number), "position_ids": restarting(10 + number, 20, 20 - number)}
        if family == "gpt_oss":
            inputs["cu_seq_lens_q"] = torch.tensor([0, 10 + number, 30 + number, 50], dtype=torch.int32)
        with torch.compiler.set_stance("default" if number < 2 else "fail_on_recompile"):
            results = step(compiled, **inputs)
        expected = step(made, **inputs)
        for name, result in results.items():
            torch.testing.assert_close(
                result, expected[name.removeprefix("_orig_mod.")], rtol=1e-5, atol=1e-6
            )


def test_the_operator_passes_torchs_own_checks():
    from longca.dispatch.torch_op import mask_table, masked_attention_op
    from longca.masks import Mask

    table = mask_table([Mask.from_documents([5, 3]), Mask.from_windows(8, (2, 0))])
    q, k, v = (torch.randn(2, 8, heads, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    torch.library.opcheck(masked_attention_op, (q, k, v, table, 0.5))
    assert torch.autograd.gradcheck(lambda *x: masked_attention_op(*x, table, 0.5), (q, k, v))
