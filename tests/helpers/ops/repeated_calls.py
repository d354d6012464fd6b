"""Calls of band attention that are repeated, and the same calls run as written: what each of them starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.masks.grid import BlockGrid

HOPPER = (9, 0)
AMPERE = (8, 0)
UNEVEN = Mask(
    256, 4096, (as_bands([(0, 16, 0, 4096, -INF, INF), (16, 256, 0, 64, -INF, INF)]),)
)  # of which row tiles are split


BLOCKS = Mask(512, 512, grid=BlockGrid(np.eye(4, dtype=bool)[None], *[np.arange(0, 513, 128)[None]] * 2))


@dataclass(frozen=True)
class Setting:
    """A plan and what it is called with."""

    mask: Mask
    capability: tuple[int, int]
    heads: tuple[int, int] = (8, 2)
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    how: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> Any:
        from longca.ops.band.api import plan_band_attention

        return plan_band_attention(
            self.mask,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.head_dim,
            device="cpu",
            **self.how,
        )

    def new(
        self, tokens: int, heads: int, layout: str = "contiguous", dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor (tokens, heads, D) at an address of its own."""
        dtype = dtype or self.dtype
        if layout == "packed":  # part of a projection of more heads
            return torch.zeros(tokens, heads + 3, self.head_dim, dtype=dtype)[:, 1 : heads + 1]
        if layout == "unaligned":
            return torch.zeros(tokens * heads * self.head_dim + 2, dtype=dtype)[2:].view(
                tokens, heads, self.head_dim
            )
        return torch.zeros(tokens, heads, self.head_dim, dtype=dtype)

    def inputs(self, layout: str = "contiguous") -> dict[str, Tensor]:
        heads, kv_heads = self.heads
        mask = self.mask
        queries = (mask.seqlen_q, heads)
        keys = (mask.seqlen_k, kv_heads)
        shapes = {"q": queries, "k": keys, "v": keys, "dout": queries, "out": queries}
        return {name: self.new(*shape, layout) for name, shape in shapes.items()} | {
            "lse": torch.zeros(mask.seqlen_q, heads)
        }


CAUSAL = build_mask("causal", seqlen=300)
SETTINGS = {
    "hopper": Setting(CAUSAL, HOPPER),
    "one head for each": Setting(CAUSAL, HOPPER, heads=(2, 2)),
    "any order": Setting(CAUSAL, HOPPER, how={"deterministic": False}),
    "split": Setting(UNEVEN, HOPPER),
    "blocks": Setting(BLOCKS, HOPPER, dtype=torch.float16),
    "portable": Setting(CAUSAL, AMPERE),
    "portable, split": Setting(UNEVEN, AMPERE, heads=(6, 2), head_dim=64),
}


def in_order() -> Setting:
    from longca.ops.band.config import choose_tiles
    from longca.ops.band.tables.backward_rule import AddOrder

    return Setting(CAUSAL, HOPPER, how={"tiles": choose_tiles(128, HOPPER, dq_order=AddOrder.FROM_LAST)})


def setting_of(name: str) -> Setting:
    return in_order() if name == "in order" else SETTINGS[name]


Call = Callable[..., Sequence[Tensor]]


def forward(plan: Any, x: dict[str, Tensor], **how: Any) -> Sequence[Tensor]:
    from longca.ops.band.api import band_forward

    return band_forward(x["q"], x["k"], x["v"], plan, **how)


def backward(plan: Any, x: dict[str, Tensor], **how: Any) -> Sequence[Tensor]:
    from longca.ops.band.api import band_backward

    return band_backward(
        x["q"], x["k"], x["v"], x["out"], x["lse"], x["dout"], plan, dlse=x.get("dlse"), **how
    )


def by_autograd(plan: Any, x: dict[str, Tensor]) -> Sequence[Tensor]:
    from longca.ops.band.api import band_attention

    q, k, v = leaves = [x[name].detach().requires_grad_() for name in "qkv"]
    out, lse = band_attention(q, k, v, plan, return_lse=True, out_dtype=torch.float32)
    return out, lse, *torch.autograd.grad((out, lse), leaves, (x["dout"].float(), x["lse"]))


def carried(plan: Any, x: dict[str, Tensor]) -> Sequence[Tensor]:
    """Onto the result of other keys, in its place, and in float32."""
    return forward(plan, x, initial=(x["total"], x["lse"]), into=(x["total"], x["lse"]))


def onto(plan: Any, x: dict[str, Tensor]) -> Sequence[Tensor]:
    """dQ twice, onto that of other keys and alone."""
    from longca.ops.band.api import band_backward_onto

    return band_backward_onto(
        x["q"],
        x["k"],
        x["v"],
        x["out"],
        x["lse"],
        x["dout"],
        plan,
        [(plan, x["total"], x["dq"]), (plan, None, x["total"])],
    )


def same(launched: Any, call: Call, known: Any, x: dict[str, Tensor], replayed: bool) -> None:
    """A call on a plan that knows it, or not, and on the same that never was called."""
    records = []
    for plan in (known, replace(known)):
        launched.clear()
        results = call(plan, x)
        through_jit = launched.through_jit
        tables = {f"table {number}": table for number, table in enumerate(plan.tables)}
        records.append(
            launched.named(x | tables | {f"result {number}": result for number, result in enumerate(results)})
        )
        assert records[-1] and (through_jit == 0) == (replayed and plan is known)
    assert records[0] == records[1]


def with_totals(setting: Setting, x: dict[str, Tensor], layout: str = "contiguous") -> dict[str, Tensor]:
    """The inputs with float32 results of other keys, and memory for dQ."""
    total = setting.new(len(x["q"]), setting.heads[0], layout, dtype=torch.float32)
    return x | {"total": total, "dq": torch.zeros_like(x["q"], memory_format=torch.contiguous_format)}
