"""Refusals of the public call of band attention."""

from functools import partial
from typing import Any

import torch

from longca.ops.band.api import (
    band_attention,
    band_backward,
    band_backward_onto,
    band_forward,
    plan_band_attention,
)
from longca.ops.band.checks import INTERPRETED, unusable
from tests.helpers.ops.band_call import HEAD_DIM, HEADS, MASK, Setting, check_refusals


def refuses(setting: Setting) -> None:
    q, k, v, dout = setting.inputs
    plan = setting.plan()
    out, lse = band_forward(q, k, v, plan)
    known = out.float(), lse
    check_refusals(
        [
            ("must all be", lambda: band_attention(q.double(), k.double(), v.double(), plan)),
            ("must all be", lambda: band_attention(q, k, v.to(torch.float16), plan)),
            (
                "must all be",
                lambda: band_attention(
                    *(x.to(torch.bfloat16 if INTERPRETED else torch.float32) for x in (q, k, v)), plan
                ),
            ),
            ("alike of one shape", lambda: band_attention(q, k, v[:-1], plan)),
            ("alike of one shape", lambda: band_forward(q[0], k, v, plan)),
            ("70 queries × 90 keys", lambda: band_attention(q[:-1], k, v, plan)),
            ("70 queries × 90 keys", lambda: band_attention(q[:-1], k, v, MASK)),
            ("make a plan for these", lambda: band_attention(q[:, :2], k, v, plan)),
            ("head dims 64 and 128", lambda: band_attention(q[..., :32], k[..., :32], v[..., :32], MASK)),
            ("multiple of the next", lambda: band_attention(q[:, :3], k, v, MASK)),
            ("a longca Mask or a plan", lambda: band_attention(q, k, v, MASK.dense())),  # type: ignore[arg-type]
            (
                "k.contiguous()",
                lambda: band_attention(q, k.transpose(0, 1).contiguous().transpose(0, 1), v, plan),
            ),
            ("v.contiguous()", lambda: band_forward(q, k, v.repeat(1, 1, 2)[..., ::2], plan)),
            (
                "multiples of 16 bytes",
                lambda: band_forward(q.new_empty(70, HEADS, HEAD_DIM + 1)[..., 1:], k, v, plan),
            ),
            (
                "q.clone(memory_format=torch.contiguous_format)",
                lambda: band_forward(q.new_empty(q.numel() + 1)[1:].view(q.shape), k, v, plan),
            ),
            ("must be (tokens, heads, D)", lambda: band_forward(q[None], k, v, plan)),
            ("initial must be float32", lambda: band_attention(q, k, v, plan, initial=(known[0][:-1], lse))),
            (
                "initial is a constant",
                lambda: band_attention(q, k, v, plan, initial=(known[0].clone().requires_grad_(), lse)),
            ),
            ("`into` must be contiguous", lambda: band_forward(q, k, v, plan, into=(known[0][:-1], lse))),
            (
                "where dq goes must be",
                lambda: band_backward_onto(q, k, v, out, lse, dout, plan, [(plan, None, q[1:])]),
            ),
            (
                "the dq of other keys must be",
                lambda: band_backward_onto(q, k, v, out, lse, dout, plan, [(plan, q.half(), q.clone())]),
            ),
            (
                "needs_backward=True",
                lambda: band_attention(q.clone().requires_grad_(), k, v, setting.plan(needs_backward=False)),
            ),
            (
                "needs_backward=True",
                lambda: band_backward(q, k, v, out, lse, dout, setting.plan(needs_backward=False)),
            ),
            ("dout must be", lambda: band_backward(q, k, v, out, lse, dout.double(), plan)),
            ("dout must be", lambda: band_backward(q, k, v, out, lse.T, dout, plan)),
            (
                "multiple of the next",
                lambda: plan_band_attention(
                    MASK, num_q_heads=0, num_kv_heads=2, head_dim=64, device=setting.device
                ),
            ),
            (
                "a longca Mask",
                lambda: plan_band_attention(
                    MASK.dense(),
                    num_q_heads=4,
                    num_kv_heads=2,  # type: ignore[arg-type]
                    head_dim=64,
                    device=setting.device,
                ),
            ),
        ]
    )


def refuses_what_is_added(setting: Setting) -> None:
    """Arguments beside the inputs: factors that would show what is hidden; dtypes, shapes and devices that
    kernels take as they come."""
    q, k, v, dout = setting.inputs
    plan = setting.plan()
    out, lse = band_forward(q, k, v, plan)
    far = torch.empty_strided(q.shape, (HEAD_DIM, 1 << 30, 1), dtype=q.dtype, device="meta")
    assert unusable(far, heads_side_by_side=False) is not None, "places of heads are counted in 32 bits"

    def backward(out: torch.Tensor = out, lse: torch.Tensor = lse, **how: Any) -> object:
        return band_backward(q, k, v, out, lse, dout, plan, **how)

    check_refusals(
        [
            *(
                ("positive and finite", partial(band_attention, q, k, v, plan, scale=float(scale)))
                for scale in ("0", "-0.1", "inf", "nan")
            ),
            ("positive and finite", lambda: band_forward(q, k, v, plan, -1.0)),
            ("positive and finite", lambda: backward(scale=-1.0)),
            ("out_dtype must be", lambda: band_attention(q, k, v, plan, out_dtype=torch.int32)),
            ("out_dtype must be", lambda: band_forward(q, k, v, plan, out_dtype=torch.float64)),
            ("`into` must be", lambda: band_forward(q, k, v, plan, into=(out.to("meta"), lse.to("meta")))),
            ("in `into` must be", lambda: band_forward(q, k, v, plan, into=(out.int(), lse))),
            ("grad_dtype must be", lambda: backward(grad_dtype=torch.int32)),
            ("out must be", lambda: backward(out.int())),
            ("must be on", lambda: backward(out.to("meta"))),
            ("must be on", lambda: backward(lse=lse.to("meta"))),
            ("dlse must be", lambda: backward(dlse=lse[:, 0])),
            ("dlse must be", lambda: backward(dlse=lse.double())),
            ("must be on", lambda: backward(dlse=lse.to("meta"))),
        ]
    )
