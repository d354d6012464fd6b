"""Calls of band attention that are repeated start what calls that run as written start: the same builds with
the same arguments."""

import copy
import importlib.util
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.masks.grid import BlockGrid

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
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


@pytest.fixture(params=[*SETTINGS, "in order"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return setting_of(request.param)


CALLS = {
    "forward": forward,
    "backward": backward,
    "by autograd": by_autograd,
    "carried": carried,
    "onto": onto,
    "forward in float32": lambda plan, x: forward(plan, x, out_dtype=torch.float32, scale=0.3),
    "backward in float32": lambda plan, x: backward(plan, x, grad_dtype=torch.float32, scale=0.3),
}


def with_totals(setting: Setting, x: dict[str, Tensor], layout: str = "contiguous") -> dict[str, Tensor]:
    """The inputs with float32 results of other keys, and memory for dQ."""
    total = setting.new(len(x["q"]), setting.heads[0], layout, dtype=torch.float32)
    return x | {"total": total, "dq": torch.zeros_like(x["q"], memory_format=torch.contiguous_format)}


@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_start_the_same(setting: Setting, name: str) -> None:
    """With other addresses, then with other strides, and with both in turn."""
    from tests.helpers.ops.recorded_launches import recorded_launches

    with recorded_launches(setting.capability) as launched:
        known = setting.plan()
        call = CALLS[name]
        for layout, replayed in (
            ("contiguous", False),
            ("contiguous", True),
            ("packed", False),
            ("packed", True),
            ("contiguous", True),
        ):
            same(launched, call, known, with_totals(setting, setting.inputs(layout)), replayed)


def test_descriptors_are_made_once_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew for another address; of many addresses, only the last ones are kept."""
    from longca.ops.band.replay import launcher
    from tests.helpers.ops.recorded_launches import recorded_launches

    monkeypatch.setattr(launcher, "MOST_BOXES", 2)
    with recorded_launches(HOPPER) as launched:
        plan = SETTINGS["hopper"].plan()
        setting = SETTINGS["hopper"]
        made = []
        first, *others = (setting.inputs() for _ in range(4))
        for x in (first, first, first, *others, others[-1], first):
            launched.clear()
            forward(plan, x)
            made.append(launched.descriptors)
        assert made[1:] == [5, 0, 5, 5, 5, 0, 5], "for q, and for k and v in blocks and narrow blocks"


@pytest.mark.parametrize("which", ["lse", "dlse", "total"])
def test_other_alignments_run_as_written(which: str) -> None:
    """Triton builds a kernel anew for an address that is no multiple of 16 bytes."""
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    call = carried if which == "total" else backward
    with recorded_launches(setting.capability) as launched:
        known = setting.plan()
        for replayed in (False, True):
            x = with_totals(setting, setting.inputs())
            x |= {"dlse": torch.zeros_like(x["lse"])} if which == "dlse" else {}
            same(launched, call, known, x, replayed)
        shifted = x[which].new_zeros(x[which].numel() + 1)[1:].view(x[which].shape)
        assert shifted.data_ptr() % 16
        same(launched, call, known, x | {which: shifted}, replayed=False)
        same(launched, call, known, x, replayed=True)


def test_tensors_in_one_place_and_then_in_places_of_their_own() -> None:
    """A replay does not remember which tensors are the same: results of other keys that are written over or
    not, inputs that are one tensor."""
    from tests.helpers.ops.recorded_launches import recorded_launches

    def elsewhere(plan: Any, x: dict[str, Tensor]) -> Sequence[Tensor]:
        return forward(plan, x, initial=(x["total"], x["lse"]), into=(x["other"], x["other lse"]))

    setting = Setting(CAUSAL, HOPPER, heads=(2, 2))
    with recorded_launches(setting.capability) as launched:
        plan = setting.plan()
        x = with_totals(setting, setting.inputs())
        first = x | {"k": x["q"], "v": x["q"], "other": x["total"], "other lse": x["lse"]}
        two = x | {"other": torch.zeros_like(x["total"]), "other lse": torch.zeros_like(x["lse"])}
        same(launched, elsewhere, plan, first, replayed=False)
        same(launched, elsewhere, plan, two, replayed=True)


def test_first_called_with_another_alignment() -> None:
    """A build for an address that is no multiple of 16 bytes is not repeated for one that is."""
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability) as launched:
        known = setting.plan()
        x = setting.inputs()
        shifted = x["lse"].new_zeros(x["lse"].numel() + 1)[1:].view(x["lse"].shape)
        same(launched, backward, known, x | {"lse": shifted}, replayed=False)
        same(launched, backward, known, x, replayed=False)
        same(launched, backward, known, x, replayed=True)


def test_what_is_known_is_still_checked() -> None:
    """Whatever the checks depend on: addresses, dtypes, devices, lengths, a tensor in a place of its own."""
    from longca.ops.band.api import band_attention
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability):
        plan = setting.plan()
        x = with_totals(setting, setting.inputs())
        for _ in range(2):
            forward(plan, x)
            backward(plan, x)
            carried(plan, x)
        unaligned = setting.new(len(x["q"]), setting.heads[0], "unaligned")
        for wrong, message in (
            ({"q": unaligned}, "multiple of 16 bytes"),
            ({"q": x["q"][:-1]}, "the mask is over"),
            ({"v": x["v"].half()}, "must all be"),
            ({"k": x["k"].to("meta")}, "on one device"),
            ({"q": x["q"].transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()}, None),
        ):
            for call in (forward, lambda plan, x: band_attention(x["q"], x["k"], x["v"], plan)):
                if message is None:
                    call(plan, x | wrong)
                else:
                    with pytest.raises(ValueError, match=message):
                        call(plan, x | wrong)
        for wrong, message in (
            ({"dout": unaligned}, "multiple of 16 bytes"),
            ({"lse": x["lse"].double()}, "the LSE float32"),
            ({"dout": x["dout"].float()}, "dout must be"),
            ({"out": x["out"][:-1]}, "out and dout of its shape"),
        ):
            with pytest.raises(ValueError, match=message):
                backward(plan, x | wrong)
        with pytest.raises(ValueError, match="initial must be float32"):
            carried(plan, x | {"total": x["total"].half()})
        with pytest.raises(ValueError, match="scale must be positive"):
            forward(plan, x, scale=-1.0)


def test_parts_of_other_plans_are_told_apart() -> None:
    """dQ of some rows, by plans of these rows that come and go: their tables are those of the launch."""
    from longca.ops.band.api import band_backward_onto
    from longca.ops.band.plan import of_rows
    from tests.helpers.ops.recorded_launches import recorded_launches

    for name in ("hopper", "in order"):
        setting = setting_of(name)
        with recorded_launches(setting.capability) as launched:
            plan = setting.plan()
            x = with_totals(setting, setting.inputs())

            def call(whole: Any, x: dict[str, Tensor], rows: Any) -> Sequence[Tensor]:
                return band_backward_onto(
                    x["q"],
                    x["k"],
                    x["v"],
                    x["out"],
                    x["lse"],
                    x["dout"],
                    whole,
                    [(rows, x["total"], x["dq"])],
                )

            for ranges in ([(0, 128)], [(128, 300)], [(0, 128), (256, 300)]):
                rows = of_rows(plan, ranges)
                tables = {f"rows' {number}": table for number, table in enumerate(rows.tables)}
                same(
                    launched,
                    lambda whole, x, rows=rows: call(whole, x, rows),
                    plan,
                    x | tables,
                    replayed=False,
                )
                same(
                    launched,
                    lambda whole, x, rows=rows: call(whole, x, rows),
                    plan,
                    x | tables,
                    replayed=True,
                )


def test_recordings_are_bounded_and_not_copied() -> None:
    from longca.ops.band.replay.launches import MOST_RECORDINGS
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability):
        plan = setting.plan()
        x = setting.inputs()
        for number in range(MOST_RECORDINGS + 5):
            forward(plan, x, scale=1.0 + number)
        assert len(plan.calls) == MOST_RECORDINGS
        for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
            assert len(other.calls) == 0 and torch.equal(other.tables[0], plan.tables[0])


def test_counters_are_new_in_each_call_and_filled_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a block of them, and for another stream; `recorded_launches` sees to it that each is 0."""
    from longca.ops.band.replay import launches
    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    monkeypatch.setattr(launches, "COUNTERS", 3)
    with recorded_launches(setting.capability) as launched:
        plan = setting.plan()
        x = setting.inputs()
        for _ in range(9):
            forward(plan, x)
        assert len(set(launched.counters)) == 9
        filled = len(launched.kept)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        forward(plan, x)
        forward(plan, x)
        zeros = [made.data_ptr() for made in launched.kept[filled:] if made.dtype == torch.int32]
        assert len(zeros) == 2 and launched.counters[-2:] == zeros


def test_a_profiler_is_told_of_every_launch() -> None:
    """Triton's hooks are called by Triton: with one in place, calls run as written."""
    from triton import knobs

    from tests.helpers.ops.recorded_launches import recorded_launches

    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability) as launched:
        plan = setting.plan()
        x = setting.inputs()
        forward(plan, x)
        hook: Any = print
        knobs.runtime.launch_enter_hook.add(hook)
        try:
            same(launched, forward, plan, x, replayed=False)
        finally:
            knobs.runtime.launch_enter_hook.remove(hook)
        same(launched, forward, plan, x, replayed=True)


def test_other_versions_of_triton_run_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.ops.band.replay import launcher
    from tests.helpers.ops.recorded_launches import recorded_launches

    monkeypatch.setattr(launcher, "VERSIONS", ("none",))
    setting = SETTINGS["hopper"]
    with recorded_launches(setting.capability) as launched:
        plan = setting.plan()
        x = setting.inputs()
        for _ in range(2):
            same(launched, forward, plan, x, replayed=False)
