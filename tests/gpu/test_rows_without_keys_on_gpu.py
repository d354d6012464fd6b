"""Every kernel on masks with rows that see nothing, between others and at the edges, and with fewer keys than
queries.

Which kernels may refuse them, and that they say so, is checked without a GPU:
`tests/kernels/test_rows_without_keys.py`.
"""

import pytest
import torch

from longca.core.plugin import Registry
from tests.helpers.gpu.device import needs_gpu
from tests.helpers.kernels.cases import Case, empty_row_cases, hand_made_cases
from tests.helpers.kernels.plain_attention import plain_attention
from tests.kernels.test_contract_kernels import ATTENTION

pytestmark = needs_gpu
OTHERS = [case for case in hand_made_cases() if not case.mask.traits.empty_rows]
CASES = [
    Case(case.mask, case.num_q_heads, case.num_kv_heads, head_dim=128) for case in empty_row_cases() + OTHERS
]


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.mask.name} {case.num_q_heads}:{case.num_kv_heads}" for case in CASES]
)
@pytest.mark.parametrize("kernel", ATTENTION)
def test_gives_nothing_where_nothing_is_seen(kernel: str, case: Case) -> None:
    plugin = Registry("kernel").load(kernel)
    cell = case.cell(kernel, "bwd", "bf16")
    direction = "bwd" if plugin.supports(cell.call_spec, case.mask.traits, "cuda") is None else "fwd"
    cell = case.cell(kernel, direction, "bf16")
    if (
        reason := plugin.available("cuda") or plugin.supports(cell.call_spec, case.mask.traits, "cuda")
    ) is not None:
        pytest.skip(reason)
    inputs = case.inputs(torch.bfloat16, "cuda")
    plain = plain_attention(*inputs, case.mask.dense())
    prepared = plugin.prepare(case.problem(direction, torch.bfloat16, "cuda"))
    q, k, v, dout = (prepared.to_layout(x) for x in inputs)
    forward = prepared.forward(q, k, v)
    results = [prepared.from_layout(forward.out)]
    rights = [plain.out]
    empty = plain.lse == -torch.inf
    if forward.lse is not None:
        assert torch.equal(prepared.lse_from_layout(forward.lse).cpu() == -torch.inf, empty)
    if direction == "bwd":
        results += [prepared.from_layout(x) for x in prepared.backward(forward, dout)]
        rights += plain.grads
    norms = [float(torch.linalg.vector_norm(right)) for right in rights]
    for result, right, norm in zip(results, rights, norms, strict=True):
        # a gradient may be 0, of one key for example; what remains of it is of the rounding of terms as large
        # as the others
        assert torch.linalg.vector_norm(result.double().cpu() - right) <= 1.5e-2 * max(norm, max(norms) / 10)
    assert all((result.cpu()[empty] == 0).all() for result in results[:2])
