"""Kernels that reach for their judge, in a process of its own, have no speed."""

import pytest

from longca.lab.bench.workers.pool import Pool, worker_key
from longca.lab.studies.grid import Measure
from tests.helpers.bench.misbehaving import cp_cell, kernel_cell

pytestmark = pytest.mark.long
MEASURE = Measure.fixed(warmup=1, repeats=4)
PLUGINS = {
    "patches": """
from longca.kernels.backends.naive import Naive, NaivePrepared
class Prepared(NaivePrepared):
    def forward(self, q, k, v):
        import longca.lab.bench.check.judge, longca.lab.bench.check.oracle, longca.lab.bench.measure.kernel
        for module in (longca.lab.bench.check.judge, longca.lab.bench.check.oracle, longca.lab.bench.measure.kernel):
            module.wrong = lambda accuracy, **_: None
        result = super().forward(q, k, v)
        result.out.zero_()
        return result
class Patches(Naive):
    def prepare(self, problem):
        return Prepared(problem)
""",  # noqa: E501
    "claims": """
from longca.kernels.backends.naive import Naive, NaivePrepared
class Prepared(NaivePrepared):
    def forward(self, q, k, v):
        import longca.lab.bench.judge.referee as referee
        referee.RemoteReferee.check = referee.RemoteReferee.check_timed = lambda *_: None
        return super().forward(q, k, v)
class Claims(Naive):
    def prepare(self, problem):
        return Prepared(problem)
""",
    "hastes": """
from longca.kernels.backends.naive import Naive
import longca.lab.bench.measure.timing.stopwatch as stopwatch
time_ms = stopwatch.HostStopwatch.time_ms
stopwatch.HostStopwatch.time_ms = lambda *given: time_ms(*given) / 50
class Hastes(Naive):
    pass
""",
    "controls": """
from longca.kernels.backends.naive import Naive
from longca.kernels.control import PreparedControl
class Prepared(PreparedControl):
    def call(self): pass
class Controls(Naive):
    family = "control"
    def prepare(self, problem):
        return Prepared(problem)
""",
    "ignores": """
import itertools, torch
from longca.kernels.backends.naive import Naive, NaivePrepared
import longca.lab.bench.judge.referee as referee
calls = itertools.count()
class Prepared(NaivePrepared):
    def backward(self, forward, dout):
        dq, dk, dv = super().backward(forward, dout)
        dq.view(torch.int32).view(-1)[next(calls)] ^= 1
        return dq, dk, dv
class Ignores(Naive):
    def prepare(self, problem):
        ask = referee.RemoteReferee.check_bits
        referee.RemoteReferee.check_bits = lambda self, runs: ask(self, runs) and None
        return Prepared(problem)
""",
    "hides": """
from longca.kernels.backends.naive import Naive
class Hides(Naive):
    def prepare(self, problem):
        import longca.lab.bench.judge.referee as referee
        referee.RemoteReferee.check_bits = lambda *_: None
        return super().prepare(problem)
""",
}
STRATEGY = """
from longca.cp.strategies.ulysses import Ulysses
class Keeping(Ulysses):
    def prepare(self, problem, kernel, comm):
        prepared = super().prepare(problem, kernel, comm)
        name = "backward" if problem.needs_backward else "forward"
        call, kept = getattr(prepared, name), []
        def keeping(*arguments):
            kept or kept.append(call(*arguments))
            return kept[0]
        setattr(prepared, name, keeping)
        return prepared
"""


@pytest.fixture(scope="module")
def cheats(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    folder = tmp_path_factory.mktemp("cheats")
    for kind, files in (("kernels", PLUGINS), ("strategies", {"keeping": STRATEGY})):
        (folder / kind).mkdir()
        for name, text in files.items():
            (folder / kind / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("LONGCA_LOCKS", str(tmp_path_factory.mktemp("locks")))
        with Pool("cpu", tmp_path_factory.mktemp("logs")) as pool:
            yield pool


def test_a_wrong_result_stays_wrong_whatever_comes_after_it(cheats: Pool) -> None:
    outcome = cheats.measure(kernel_cell("ignores", direction="bwd"), MEASURE).outcome
    assert outcome.status == "incorrect" and outcome.reason.startswith("not deterministic: 4 backward calls")


def test_bits_that_the_judge_has_not_seen_prove_nothing(cheats: Pool) -> None:
    result = cheats.measure(kernel_cell("hides", direction="bwd"), MEASURE)
    assert result.outcome.status == "ok" and result.accuracy is not None
    assert result.accuracy.deterministic is None


def test_the_judge_is_out_of_reach(cheats: Pool) -> None:
    outcome = cheats.measure(kernel_cell("patches"), MEASURE).outcome
    assert outcome.status == "incorrect" and "out is off by" in outcome.reason
    result = cheats.measure(kernel_cell("claims", seqlen=48), MEASURE)
    assert result.outcome.status == "error" and result.outcome.type == "NotJudged" and result.samples is None


def test_a_kernel_that_replaces_its_timer_has_no_speed(cheats: Pool) -> None:
    result = cheats.measure(kernel_cell("hastes"), MEASURE)
    assert result.outcome.status == "error" and result.samples is None
    assert "it replaces longca.lab.bench.measure.timing.stopwatch.HostStopwatch.time_ms" in (
        result.outcome.message
    )
    assert cheats.measure(kernel_cell("naive"), MEASURE).outcome.status == "ok"


def test_an_external_kernel_is_no_control(cheats: Pool) -> None:
    assert cheats.measure(kernel_cell("controls"), MEASURE).outcome.status != "ok"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_strategy_that_keeps_its_result_is_wrong(cheats: Pool, direction: str) -> None:
    outcome = cheats.measure(cp_cell("keeping", direction=direction), MEASURE).outcome
    assert outcome.status == "incorrect" and "in a timed call" in outcome.reason
    assert cheats.measure(cp_cell("ulysses", direction=direction), MEASURE).outcome.status == "ok"


@pytest.mark.long
def test_a_judge_that_dies_is_replaced(cheats: Pool) -> None:
    assert cheats._judge is not None
    cheats._judge.kill()
    cheats._judge.process.wait()
    assert cheats.measure(cp_cell("ulysses", seqlen=40), MEASURE).outcome.status == "ok"


@pytest.mark.long
def test_a_user_s_kernel_is_kept_apart_from_its_rivals() -> None:
    cells = [kernel_cell(kernel) for kernel in ("naive", "sdpa", "patches", "claims")]
    keys = [worker_key(cell, "cpu") for cell in cells]
    assert len(set(keys)) == 3 and keys[0] == keys[1]
