"""Triton's launchers: descriptors of addresses, other alignments, profilers, and versions whose launches are
not replayed."""

import importlib.util
from typing import Any

import pytest
import torch

from tests.helpers.ops.repeated_calls import HOPPER, SETTINGS, backward, carried, forward, same, with_totals

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


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
