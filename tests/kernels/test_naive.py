import torch

from longca.core.plugin import Registry
from tests.helpers.kernels.cases import Case, hand_made_cases, pattern_cases


def test_raw_backward_over_parts_of_the_keys_adds_up() -> None:
    """With the whole row's output and LSE, the parts' gradients are those of the whole, also where a part
    hides a whole row."""
    for case in (*pattern_cases()[:4], hand_made_cases()[0]):
        q, k, v, dout = case.inputs()
        whole = Registry("kernel").load("naive").prepare(case.problem("bwd"))
        forward = whole.forward(*(whole.to_layout(x) for x in (q, k, v)))
        right = whole.backward(forward, whole.to_layout(dout))
        middle = case.mask.seqlen_k // 2 - 3
        collected = []
        for first, last in ((0, middle), (middle, case.mask.seqlen_k)):
            part = Case(
                case.mask.crop((0, case.mask.seqlen_q), (first, last)), case.num_q_heads, case.num_kv_heads
            )
            local = Registry("kernel").load("naive").prepare(part.problem("bwd"))
            operands = (local.to_layout(x) for x in (q, k[first:last], v[first:last]))
            collected.append(local.raw_backward(*operands, forward.out, forward.lse, local.to_layout(dout)))
        torch.testing.assert_close(collected[0][0] + collected[1][0], right[0], rtol=1e-5, atol=1e-5)
        for index in (1, 2):
            torch.testing.assert_close(
                torch.cat([part[index] for part in collected], 2), right[index], rtol=1e-5, atol=1e-5
            )


def test_saves_nothing_without_backward() -> None:
    case = pattern_cases()[0]
    prepared = Registry("kernel").load("naive").prepare(case.problem("fwd"))
    assert prepared.forward(*(prepared.to_layout(x) for x in case.inputs()[:3])).saved is None
