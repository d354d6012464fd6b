"""The public call of band attention: autograd, batches, torch.compile and memory layouts. In Triton's
interpreter or on a GPU."""

import gc
import weakref

import torch

from longca.masks import build_mask
from longca.masks.mask import Mask
from longca.ops.band.api import BandPlan, band_attention
from longca.ops.band.checks import as_usable, unusable
from longca.ops.band.torch_op import band_backward_op, band_forward_op, flatten
from tests.helpers.ops.band_call import HEAD_DIM, HEADS, KV_HEADS, MASK, Setting, check_refusals
from tests.helpers.ops.band_refusals import refuses, refuses_what_is_added


def main(
    device: str = "cpu", dtype: torch.dtype = torch.float32, compiler: str = "aot_eager", whole: bool = True
) -> None:
    setting = Setting(device, dtype, compiler, whole)
    others = (some_gradients, keeps, batches, ignores_autocast, registers, copies) if whole else ()
    for test in (gradients, carries, compiles, joins_sinks, layouts, refuses, refuses_what_is_added, *others):
        print(test.__name__, flush=True)
        test(setting)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask = MASK, sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, LSE) in float64, differentiable. Rows without keys or sinks have LSE 0 here, so that a loss can
    use it."""
    visible = torch.from_numpy(mask.dense()).to(q.device)
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    weights = scores.exp() * visible
    total = weights.sum(-1)
    if sinks is not None:
        total = total + sinks.double().exp()[:, None]
    total = torch.where(total > 0, total, 1.0)
    return torch.einsum("hqk,khd->qhd", weights / total[..., None], v), total.log().T


def loss_of(out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
    return (out.double() * dout.double()).sum() + torch.where(
        lse == float("-inf"), 0.0, lse
    ).double().square().sum()


def plans_of(mask: Mask) -> list[BandPlan]:
    return [kept for kept in mask.kept.values() if isinstance(kept, BandPlan)]


def gradients(setting: Setting) -> None:
    """By out and LSE together, by each alone, and by a sum, whose gradient has strides 0; from a mask and
    from its plan."""
    plan = setting.plan()
    dout = setting.inputs[3]
    for mask in (MASK, plan) if setting.whole else (MASK,):
        ours = setting.leaves()
        rights = setting.leaves()
        out, lse = band_attention(*ours, mask, return_lse=True)
        right_out, right_lse = reference(*rights)
        setting.near(out, right_out)
        wanted = torch.autograd.grad(loss_of(right_out, right_lse, dout), rights)
        for grad, right in zip(torch.autograd.grad(loss_of(out, lse, dout), ours), wanted, strict=True):
            setting.near(grad, right)
    assert len(plans_of(MASK)) == 1, "the plan of a mask is made once"
    ours = setting.leaves()
    rights = setting.leaves()
    out, lse = band_attention(*ours, plan, scale=0.2, return_lse=True)
    right_out, right_lse = reference(rights[0] * 0.2 * 8, *rights[1:])
    for result, right in ((out.sum(), right_out.sum()), (lse[:50].sum(), right_lse[:50].sum())):
        grads = torch.autograd.grad(result, ours, retain_graph=True, allow_unused=True)
        for grad, right_grad in zip(
            grads, torch.autograd.grad(right, rights, retain_graph=True, allow_unused=True), strict=True
        ):
            setting.near(grad, torch.zeros_like(grad) if right_grad is None else right_grad)
    assert isinstance(band_attention(*setting.inputs[:3], plan), torch.Tensor)


def some_gradients(setting: Setting) -> None:
    """Gradients of one input alone; none under no_grad; twice from one graph; of a gradient, not at all."""
    plan = setting.plan()
    dout = setting.inputs[3]
    leaves = setting.leaves()
    wanted = torch.autograd.grad(band_attention(*leaves, plan), leaves, dout)
    for index, right in enumerate(wanted):
        inputs = list(setting.inputs[:3])
        inputs[index] = leaf = inputs[index].clone().requires_grad_()
        out = band_attention(*inputs, plan)
        for retain in (True, False):
            (grad,) = torch.autograd.grad(out, leaf, dout, retain_graph=retain)
            assert torch.equal(grad, right)
    with torch.no_grad():
        assert not band_attention(*leaves, plan).requires_grad
    (grad,) = torch.autograd.grad(band_attention(*leaves, plan).square().sum(), leaves[0], create_graph=True)
    try:
        torch.autograd.grad(grad.sum(), leaves[0])
    except RuntimeError as error:
        assert "band_backward" in str(error)
    else:
        raise AssertionError("a second derivative, which there is none of")


def keeps(setting: Setting) -> None:
    """The plan of a mask: one made in inference mode serves to train, and its memory is free as soon as the
    mask is gone."""
    mask = MASK.named("of its own", {})
    with torch.inference_mode():
        band_attention(*setting.inputs[:3], mask)
    leaves = setting.leaves()
    out = band_attention(*leaves, mask)
    assert isinstance(out, torch.Tensor)
    torch.autograd.grad(out, leaves, setting.inputs[3])
    (plan,) = map(weakref.ref, plans_of(mask))
    gc.disable()
    try:
        del mask, out
        assert plan() is None
    finally:
        gc.enable()


def carries(setting: Setting) -> None:
    """The gradients of these keys, where others are carried in."""
    q, k, v, dout = setting.inputs
    halves = [(slice(*cols), setting.plan(MASK.crop((0, 70), cols))) for cols in ((0, 41), (41, 90))]
    (first, first_plan), (second, second_plan) = halves
    known = band_attention(q, k[first], v[first], first_plan, return_lse=True, out_dtype=torch.float32)
    ours = [x.clone().requires_grad_() for x in (q, k[second], v[second])]
    rights = setting.leaves()
    out, lse = band_attention(*ours, second_plan, initial=known, return_lse=True)
    right, right_lse = reference(*rights)
    setting.near(out, right)
    setting.near(lse[:60], right_lse[:60])
    grads = torch.autograd.grad(out, ours[1:], dout)
    wanted = torch.autograd.grad(right, rights[1:], dout.double())
    for grad, whole in zip(grads, wanted, strict=True):
        setting.near(grad, whole[second])


def batches(setting: Setting) -> None:
    """Leading dimensions are flattened: two sequences of 35 and 45 tokens are 70 and 90."""
    q, k, v, dout = setting.inputs
    plan = setting.plan()
    flat, lse = band_attention(q, k, v, plan, return_lse=True)
    leaves = [x.view(2, -1, *x.shape[1:]).clone().requires_grad_() for x in (q, k, v)]
    out, more_lse = band_attention(*leaves, plan, return_lse=True)
    assert out.shape == (2, 35, HEADS, HEAD_DIM) and more_lse.shape == (2, 35, HEADS)
    assert torch.equal(out.flatten(0, 1), flat) and torch.equal(more_lse.flatten(0, 1), lse)
    assert all(
        grad.shape == x.shape
        for grad, x in zip(torch.autograd.grad(out, leaves, dout.view(out.shape)), leaves, strict=True)
    )


def compiles(setting: Setting) -> None:
    """In one graph, forward and backward, with other work around it; the same numbers as without."""

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: BandPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = band_attention(q * 2, k, v, plan, return_lse=True)
        return out * 3, lse + 1

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=setting.compiler)
    dout = setting.inputs[3]
    full = build_mask("full", seqlen=90).crop((0, 70), (0, 90))
    for plan in map(setting.plan, (MASK, full) if setting.whole else (MASK,)):
        actual = []
        wanted = []
        for call, results in ((compiled, actual), (step, wanted)):
            leaves = setting.leaves()
            out, lse = call(*leaves, plan)
            results += [out, lse, *torch.autograd.grad(loss_of(out, lse, dout), leaves)]
        for first, other in zip(actual, wanted, strict=True):
            assert torch.equal(first == float("-inf"), other == float("-inf"))
            setting.near(first.clamp(min=-1e9), other.clamp(min=-1e9))
    try:  # whether the mask has its plan already or not
        torch.compile(
            lambda q, k, v: band_attention(q, k, v, MASK), fullgraph=True, backend=setting.compiler
        )(*setting.inputs[:3])
    except torch._dynamo.exc.Unsupported:
        pass
    else:
        raise AssertionError("a mask was compiled")


def joins_sinks(setting: Setting) -> None:
    """Sinks join the sum of each row, also those without keys: eagerly, in one compiled graph, beside carried
    keys, and without gradients."""
    plan = setting.plan()
    q, k, v, dout = setting.inputs
    sinks = torch.tensor([0.5, -3.0, 2.0, -float("inf")], device=setting.device)

    def step(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return band_attention(*x[:3], plan, sinks=x[3], return_lse=True)  # type: ignore[return-value]

    torch._dynamo.reset()
    right = [*setting.leaves(), sinks.clone().requires_grad_()]
    right_out, right_lse = reference(*right[:3], sinks=right[3])
    wanted = torch.autograd.grad(loss_of(right_out, right_lse, dout), right)
    for call in (step, torch.compile(step, fullgraph=True, backend=setting.compiler)):
        leaves = [*setting.leaves(), sinks.clone().requires_grad_()]
        out, lse = call(*leaves)
        setting.near(out, right_out)
        setting.near(lse[:60], right_lse[:60])
        assert (out[60:] == 0).all() and torch.equal(lse[60:], sinks.expand(10, -1))
        for grad, expected in zip(torch.autograd.grad(loss_of(out, lse, dout), leaves), wanted, strict=True):
            setting.near(grad, expected)
    with torch.no_grad():
        assert torch.equal(step(q, k, v, sinks)[0], out)
    plans = [setting.plan(MASK.crop((0, 70), cols)) for cols in ((0, 41), (41, 90))]
    known = band_attention(q, k[:41], v[:41], plans[0], return_lse=True, out_dtype=torch.float32)
    carried = band_attention(q, k[41:], v[41:], plans[1], initial=known, sinks=sinks)
    setting.near(carried, right_out)
    tables, numbers = flatten(plan)
    rest = (tables, numbers, 0.125, None, None, q.dtype)
    demands = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(band_forward_op, (*leaves[:3], *rest, leaves[3]), test_utils=demands)
    check_refusals(
        [
            ("a logit for each query head", lambda: band_attention(q, k, v, plan, sinks=sinks[:3])),
            ("sinks must be a tensor", lambda: band_attention(q, k, v, plan, sinks=0.5)),  # type: ignore[arg-type]
            ("sinks must be bf16", lambda: band_attention(q, k, v, plan, sinks=sinks.int())),
        ]
    )


def ignores_autocast(setting: Setting) -> None:
    plan = setting.plan()
    results = []
    for enabled in (False, True):
        leaves = setting.leaves()
        with torch.autocast(leaves[0].device.type, torch.bfloat16, enabled=enabled):
            out, lse = band_attention(*leaves, plan, return_lse=True)
            results.append(
                [
                    out,
                    lse,
                    *torch.autograd.grad([out, lse], leaves, [setting.inputs[3], torch.ones_like(lse)]),
                ]
            )
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(*results, strict=True))


def registers(setting: Setting) -> None:
    """Torch's demands on an operator: schema, fake tensors, autograd, tracing."""
    tables, numbers = flatten(setting.plan())
    q, k, v, dout = setting.inputs
    forward = (q, k, v, tables, numbers, 0.125, None, None, q.dtype, None)
    out, lse = band_forward_op(*forward)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(band_forward_op, (*setting.leaves(), *forward[3:]), test_utils=tests[:3])
    torch.library.opcheck(
        band_backward_op, (q, k, v, out, lse, dout, None, tables, numbers, 0.125), test_utils=tests
    )


def layouts(setting: Setting) -> None:
    """Parts of one packed projection are used as they lie."""
    q, k, v, _ = setting.inputs
    plan = setting.plan(MASK.crop((0, 70), (0, 70)))
    packed = torch.cat([q, k[:70], v[:70]], 1)
    parts = packed.split([HEADS, KV_HEADS, KV_HEADS], 1)
    assert not any(part.is_contiguous() for part in parts)
    assert torch.equal(band_attention(*parts, plan), band_attention(q, k[:70], v[:70], plan))


def copies(setting: Setting) -> None:
    """The advice for unusable tensors makes them usable, and gradients of the output are copied where they
    must be."""
    plan = setting.plan()
    q = setting.inputs[0]
    dout = setting.inputs[3]
    shifted = dout.new_empty(dout.numel() + 1)[1:].view(dout.shape).copy_(dout)
    of_one = dout.new_zeros(HEADS * HEAD_DIM).as_strided(
        (1, HEADS, HEAD_DIM), (HEADS * HEAD_DIM + 3, HEAD_DIM, 1)
    )
    for x in (shifted, of_one, q[..., ::2], q[:1].expand(7, -1, -1)):
        assert unusable(as_usable(x), heads_side_by_side=False) is None and torch.equal(as_usable(x), x)
    leaves = setting.leaves()
    out = band_attention(*leaves, plan)
    for first, other in zip(
        *(torch.autograd.grad(out, leaves, x, retain_graph=True) for x in (dout, shifted)), strict=True
    ):
        assert torch.equal(first, other)
