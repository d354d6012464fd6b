"""Calls of band attention that are repeated start what calls that run as written start: the same builds with
the same arguments."""

import copy
import importlib.util
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.ops.repeated_calls import (
    CAUSAL,
    HOPPER,
    SETTINGS,
    Setting,
    backward,
    by_autograd,
    carried,
    forward,
    onto,
    same,
    setting_of,
    with_totals,
)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


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
