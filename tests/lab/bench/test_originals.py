"""Functions that measure, replaced by others."""

import os
import random
import time

import pytest
import torch

from longca.lab.bench.check.plan import CheckPlan
from longca.lab.bench.measure import kernel
from longca.lab.bench.measure.timing.originals import Originals
from longca.lab.bench.measure.timing.stopwatch import HostStopwatch


@pytest.mark.parametrize(
    ("owner", "name", "value", "told"),
    [
        (time, "perf_counter_ns", lambda: 0, "time.perf_counter_ns"),
        (os, "urandom", bytes, "os.urandom"),
        (random, "SystemRandom", random.Random, "random.SystemRandom"),
        (kernel, "time_calls", print, "longca.lab.bench.measure.kernel.time_calls"),
        (HostStopwatch, "time_ms", print, "stopwatch.HostStopwatch.time_ms"),
        (HostStopwatch.__init__, "__defaults__", (time.time_ns,), "stopwatch.HostStopwatch.__init__"),
        (HostStopwatch.time_ms, "__code__", (lambda *_: 1.0).__code__, "stopwatch.HostStopwatch.time_ms"),
        (CheckPlan, "ratio", property(lambda _: 1), "check.plan.CheckPlan.ratio"),
        (torch.Tensor, "__getitem__", lambda *_: None, "torch.Tensor.__getitem__"),
    ],
)
def test_a_replaced_function_is_named(
    owner: object, name: str, value: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    originals = Originals()
    assert originals.replaced() is None
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        replaced = originals.replaced()
    assert replaced is not None and replaced.endswith(told)
    assert originals.replaced() is None


def test_what_others_add_is_no_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = Originals()
    monkeypatch.setattr(torch.Tensor, "shown_by_others", lambda self: "", raising=False)
    monkeypatch.setattr(random, "choice", lambda items: items[0])
    assert originals.replaced() is None
