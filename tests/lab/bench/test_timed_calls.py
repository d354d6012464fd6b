"""Kernels that are right when they are looked at and not when they are timed have no speed."""

from pathlib import Path

import pytest
import torch

from longca.kernels.contract import Problem
from longca.lab.bench.check import timed_calls
from longca.lab.bench.check.plan import CheckPlan
from longca.lab.bench.check.scope import affordable
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import LatestMasks
from longca.lab.studies.grid import Measure
from longca.lab.studies.masks import cell_mask
from tests.helpers.bench.cells import small_cell, write_kernel

pytestmark = pytest.mark.long
MEASURE = Measure.fixed(warmup=1, repeats=4)
CPU = torch.device("cpu")


FORWARD = {
    "keeps its result by address": """
kept = None
def forward(self, q, k, v):
    self.kept = {} if self.kept is None else self.kept
    if q.data_ptr() not in self.kept:
        self.kept[q.data_ptr()] = super().forward(q, k, v)
    return self.kept[q.data_ptr()]""",
    "copies a kept result": """
kept = None
def forward(self, q, k, v):
    self.kept = super().forward(q, k, v).out if self.kept is None else self.kept
    return Forward(self.kept.clone())""",
    "returns memory that it finds": """
calls = 0
def forward(self, q, k, v):
    self.calls += 1
    return super().forward(q, k, v) if self.calls == 1 else Forward(torch.empty_like(q))""",
    "keeps keys and values": """
kept = None
def forward(self, q, k, v):
    self.kept = self.kept or (k.clone(), v.clone())
    return super().forward(q, *self.kept)""",
    "computes the first rows alone": """
calls = 0
def forward(self, q, k, v):
    self.calls += 1
    result = super().forward(q, k, v)
    if self.calls > 1:
        result.out[..., 16:, :] = 0
    return result""",
    "knows the rows of the plan": """
def forward(self, q, k, v):
    import sys
    result = super().forward(q, k, v)
    frame = sys._getframe()
    while frame and type(frame.f_locals.get("self")).__name__ != "TimedCalls":
        frame = frame.f_back
    if frame is None:
        return result
    _, parts = frame.f_locals["self"]._cut.__self__._expected
    hidden = torch.ones(q.shape[-2], dtype=torch.bool)
    hidden[sorted({row for timed in parts for row in timed.part.rows})] = False
    result.out[..., hidden, :] = 0
    return result""",
}


BACKWARD = {
    "keeps its gradients": """
kept = None
def backward(self, forward, dout):
    self.kept = self.kept or super().backward(forward, dout)
    return tuple(x.clone() for x in self.kept)""",
    "keeps dv": """
kept = None
def backward(self, forward, dout):
    dq, dk, dv = super().backward(forward, dout)
    self.kept = dv.clone() if self.kept is None else self.kept
    return dq, dk, self.kept.clone()""",
    "forgets dk": """
calls = 0
def backward(self, forward, dout):
    self.calls += 1
    dq, dk, dv = super().backward(forward, dout)
    return dq, torch.zeros_like(dk) if self.calls > 1 else dk, dv""",
}


CHANGES = {
    "q": (
        "def forward(self, q, k, v):\n    result = super().forward(q, k, v)\n    q.data.mul_(2)\n    return "
        "result"
    ),
    "v": (
        "def forward(self, q, k, v):\n    result = super().forward(q, k, v)\n    v.numpy()[0, 0, 5] = 0\n   "
        " return result"
    ),
    "dout": (
        "def backward(self, forward, dout):\n    grads = super().backward(forward, dout)\n    "
        "dout.data[0, 0, 3] = 1\n    return grads"
    ),
}


LATE = """
def forward(self, q, k, v):
    self.calls = getattr(self, "calls", 0) + 1
    if self.calls > 2:
        q.data.zero_()
    return super().forward(q, k, v)"""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("is_sample", [False, True])
@pytest.mark.parametrize("cheat", [*FORWARD, *BACKWARD])
def test_a_timed_call_is_judged(
    cheat: str, is_sample: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sample:
        monkeypatch.setitem(affordable.__globals__["BUDGET_FLOPS"], "cpu", 1.0)
        monkeypatch.setitem(affordable.__globals__, "MIN_ROWS", 40)
    write_kernel("cheat", {**FORWARD, **BACKWARD}[cheat], tmp_path, monkeypatch)
    direction = "bwd" if cheat in BACKWARD else "fwd"
    for seed in range(3):
        result = measure_kernel(
            small_cell("cheat", "causal", direction, dtype=dtype, num_kv_heads=4), MEASURE, CPU, seed=seed
        )
        assert result.outcome.status == "incorrect" and result.samples is None
        is_judged_late = "in a timed call" in result.outcome.reason
        assert is_judged_late or (
            cheat == "keeps its gradients" and is_sample
        )  # of a dout that is 0 in most rows


DIFFERENCES = {
    "fwd": """
kept = None
def forward(self, q, k, v):
    import time
    pairs = list(zip(self.kept or (), (q, k, v)))
    if not pairs or sum(int((x != y).any(-1).sum()) for x, y in pairs) > 8:
        time.sleep(0.02)
    self.kept = [x.clone() for x in (q, k, v)]
    return super().forward(q, k, v)""",
    "bwd": """
kept = None
def backward(self, forward, dout):
    import time
    if self.kept is None or int((dout != self.kept).any(-1).sum()) > 8:
        time.sleep(0.02)
    self.kept = dout.clone()
    return super().backward(forward, dout)""",
}


@pytest.mark.parametrize("direction", DIFFERENCES)
def test_a_kernel_that_computes_differences_has_no_speed(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kernel("cheat", DIFFERENCES[direction], tmp_path, monkeypatch)
    result = measure_kernel(small_cell("cheat", "causal", direction), MEASURE, CPU)
    assert result.outcome.status == "implausible" and result.samples is None
    assert "times as long after all of an input has changed" in result.outcome.reason


MULTIPLES = """
kept = None
def forward(self, q, k, v):
    import time
    if self.kept is not None:
        *same, v0, out = self.kept
        factor = v[..., -1, 0] / v0[..., -1, 0]
        few = sum(int((x != y).any(-1).sum()) for x, y in zip(same, (q, k))) <= 8
        if few and int((v != v0 * factor[..., None, None]).any(-1).sum()) <= 8:
            return super().forward(q, k, v)
    time.sleep(0.02)
    result = super().forward(q, k, v)
    self.kept = q.clone(), k.clone(), v.clone(), result.out.clone()
    return result"""


def test_a_kernel_that_multiplies_what_it_has_kept_has_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention is linear in values: a kept result times a factor is right for values times a factor."""
    write_kernel("cheat", MULTIPLES, tmp_path, monkeypatch)
    result = measure_kernel(small_cell("cheat", "causal"), MEASURE, CPU)
    assert result.outcome.status == "implausible" and result.samples is None


@pytest.mark.parametrize("direction", DIFFERENCES)
def test_interruptions_of_a_few_calls_are_no_differences(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may interrupt several calls after whole changes, one after the other."""
    interrupted = DIFFERENCES[direction].replace(
        "time.sleep(0.02)",
        "self.slow = getattr(self, 'slow', 0) + 1\n        time.sleep(0.02 if self.slow < 10 else 0)",
    )
    write_kernel("busy", interrupted, tmp_path, monkeypatch)
    assert measure_kernel(small_cell("busy", "causal", direction), MEASURE, CPU).outcome.status == "ok"


def test_a_machine_that_waits_longer_than_it_works_gets_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of seconds is one of work."""
    monkeypatch.setattr("longca.lab.bench.measure.timing.whole_changes.MOST_SECONDS", 0.3)
    interrupted = DIFFERENCES["fwd"].replace(
        "time.sleep(0.02)",
        "self.slow = getattr(self, 'slow', 0) + 1\n        time.sleep(0.1 if self.slow < 14 else 0)",
    )
    write_kernel("busy", interrupted, tmp_path, monkeypatch)
    assert measure_kernel(small_cell("busy", "causal", "fwd"), MEASURE, CPU).outcome.status == "ok"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_of_changed_inputs_is_found(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may know a changed input, and return what it has kept."""
    cheat = {
        "fwd": """
def forward(self, q, k, v):
    self.size = getattr(self, "size", v.norm())
    result = super().forward(q, k, v)
    first = next(iter(self.__dict__.setdefault("first", [v[..., :4, :].clone()])))
    if (v[..., -4:, :].flip(-2) == -first).all(-1).any():
        result.out.neg_()
    return result""",
        "bwd": """
def backward(self, forward, dout):
    first = next(iter(self.__dict__.setdefault("first", [dout.clone()])))
    dq, dk, dv = super().backward(forward, dout)
    reversed = (dout.flip(-2) == -first).all(-1).any()
    return (-dq, dk, dv) if reversed else (dq, dk, dv)""",
    }[direction]
    write_kernel("cheat", cheat, tmp_path, monkeypatch)
    outcome = measure_kernel(small_cell("cheat", "causal", direction), MEASURE, CPU).outcome
    assert outcome.status == "incorrect" and "in a timed call" in outcome.reason


LATE_RESULT = """
def forward(self, q, k, v):
    class Late(torch.Tensor): pass
    self.calls = getattr(self, "calls", 0) + 1
    result = super().forward(q, k, v)
    return Forward(result.out.as_subclass(Late), result.lse) if self.calls > {least} else result"""


@pytest.mark.parametrize("least", [0, 2])
def test_a_result_that_may_be_computed_when_it_is_read_has_no_speed(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kernel("cheat", LATE_RESULT.format(least=least), tmp_path, monkeypatch)
    outcome = measure_kernel(small_cell("cheat", "causal", "fwd"), MEASURE, CPU).outcome
    assert outcome.status == "error" and "a result is a Late; it must be a plain" in outcome.message


@pytest.mark.parametrize("mask", ["causal", "sliding_window", "block_sparse_uniform"])
@pytest.mark.parametrize("values", ["normal", "signs", "small"])
def test_right_kernels_stay_right_whatever_is_drawn(values: str, mask: str) -> None:
    for seed in range(2):
        for kernel, direction in (("sdpa", "fwd"), ("naive", "bwd")):
            cell = small_cell(kernel, mask, direction, dtype="bf16", input_values=values)
            result = measure_kernel(cell, MEASURE, CPU, seed=seed)
            assert result.outcome.status == "ok", (seed, result.outcome)
            assert result.accuracy.timed_calls == 2 and result.accuracy.seed == seed


@pytest.mark.parametrize("seqlen", [128, 1024])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_inputs_are_named_at_every_length(
    name: str, seqlen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longca.lab.bench.measure.latest.KEPT_REFERENCE_BYTES", 1 << 20)
    write_kernel("changer", CHANGES[name], tmp_path, monkeypatch)
    cell = small_cell(
        "changer",
        "causal_sliding_window",
        "bwd" if name == "dout" else "fwd",
        seqlen=seqlen,
        mask_params={"window": 16},
    )
    outcome = measure_kernel(cell, MEASURE, CPU).outcome
    assert outcome.status == "incorrect" and f"it changes its input {name}," in outcome.reason


WRITES = (
    "for bands in self.problem.mask.groups:\n        bands.setflags(write=True)\n        bands[:, 5] = -7"
)
MASKS = {
    "the first call": f"def forward(self, q, k, v):\n    {WRITES}\n    return super().forward(q, k, v)",
    "a later call": f"""
def forward(self, q, k, v):
    self.calls = getattr(self, "calls", 0) + 1
    if self.calls > 2:
        {WRITES.replace("        ", "            ")}
    return super().forward(q, k, v)""",
    "lengths": """
def forward(self, q, k, v):
    self.problem.mask.seqlen_q = 8
    return super().forward(q, k, v)""",
    "parameters": """
def forward(self, q, k, v):
    self.problem.mask.documents[:1] += 1
    return super().forward(q, k, v)""",
}


@pytest.mark.parametrize("mask", ["causal_document", "block_sparse_uniform"])
@pytest.mark.parametrize("name", MASKS)
def test_a_changed_mask_is_named_and_no_other_kernel_sees_it(
    name: str, mask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mask == "block_sparse_uniform" and name != "lengths":
        write = "self.problem.mask.grid.visible[:] = True"
        body = f"def forward(self, q, k, v):\n    {write}\n    return super().forward(q, k, v)"
    else:
        body = MASKS[name]
    write_kernel("changer", body, tmp_path, monkeypatch)
    masks = LatestMasks()
    outcome = measure_kernel(small_cell("changer", mask), MEASURE, CPU, masks).outcome
    text = getattr(outcome, "reason", "") or getattr(outcome, "message", "")
    assert text.startswith("it changes its mask, which the next call would see")
    assert measure_kernel(small_cell("sdpa", mask), MEASURE, CPU, masks).outcome.status == "ok"


def test_inputs_that_are_changed_in_timed_calls_alone_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kernel("late", LATE, tmp_path, monkeypatch)
    outcome = measure_kernel(small_cell("late", "causal"), MEASURE, CPU).outcome
    assert outcome.status == "incorrect" and "it changes its input q," in outcome.reason


def test_what_is_looked_at_differs_from_run_to_run() -> None:
    cell = small_cell("naive", "causal", seqlen=4096)
    problem = Problem(cell_mask(cell), 4, 2, 16, torch.float32, CPU, needs_backward=False)
    plans = [CheckPlan(cell, problem, seed) for seed in (0, 1, 0)]
    assert plans[0].timed_parts(3) == plans[2].timed_parts(3) != plans[1].timed_parts(3)
    assert plans[0].timed_parts(3) != plans[0].timed_parts(4)


def test_each_call_is_judged_with_the_same_probability() -> None:
    counts = torch.zeros(10)
    for _ in range(2000):
        places: dict[int, int] = {}
        calls = timed_calls.TimedCalls(
            int, tensors=lambda _: {}, raw=lambda _: (), change=int, cut=lambda *_: [], kept=()
        )
        for call in range(10):
            if (place := calls.choose()) is not None:
                places[place] = call
        counts[list(places.values())] += 1
    assert (counts / 2000 - 0.2).abs().max() < 0.06
