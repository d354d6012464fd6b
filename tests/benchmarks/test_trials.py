"""Trials of readers: records and predictions are compared by the methods that both name."""

from math import isclose

from benchmarks.reader import trials
from longca.lab.report.decide import choose


def test_records_and_predictions_are_asked_the_same_question() -> None:
    forward, backward = trials.pairs(["causal"], ["h200"], draws=1)
    assert (forward.direction, backward.direction) == ("fwd", "bwd")
    [ranking] = choose("causal", gpu="h200", direction="fwd").rankings
    placed = dict(ranking.methods)
    assert forward.leaders[0] == ranking.methods[0][0] and all(
        placed[name].tied for name in forward.leaders[1:]
    )
    assert isclose(forward.share, placed[forward.advised].share) and forward.advised in forward.tied
    assert not forward.is_same or forward.is_near, "the advised one is in front of its own ranking"


def test_commands_of_trials_run_and_take_time() -> None:
    wall, used, code = trials.seconds_of(["list", "corpora"])
    assert code == 0 and wall > 0 and used > 0 and trials.seconds_of(["nothing"])[2] == 2
