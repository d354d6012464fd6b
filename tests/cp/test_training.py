"""examples/train_packed.py: the loss is the same on one rank and on several, whatever the strategy and the
masks."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from examples.train_packed import LAG, MASKS, RULED, VOCABULARY, Options, followed, train
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.support import ROOT
from tools import training_curves
from tools.training_curves import ALONE, CPU, GPUS, NUDGED, STRATEGIES, Run, Setting

FEW = Options(
    mask="alternating",
    strategy="ring_p2p",
    tokens=96,
    steps=4,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=8,
    rate=1e-2,
)
CLOSE = 2e-5  # relative, over tens of steps: rounding grows as weights drift apart


def beside_one_rank(comm: Comm, all_options: list[Options]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The results of all ranks together, and those of this rank alone, in a group of its own."""
    alone = [dist.new_group([rank]) for rank in range(comm.world)][comm.rank]
    return [(train(options), train(replace(options, strategy="auto"), alone)) for options in all_options]


def test_two_ranks_train_as_one():
    ((together, alone),) = on_ranks(beside_one_rank, 2, [FEW])[0]
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=CLOSE)
    assert alone["losses"][-1] < alone["losses"][0]
    assert together["moved_bytes"] > alone["moved_bytes"] == 0
    assert together["tokens_per_s"] > 0 and together["peak_mb"] > 0 and together["plan_ms"] > 0
    assert together["strategies"] == ["ring_p2p"]


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 256])
def test_tokens_follow_from_those_before_by_the_rule(num_tokens: int):
    rng = np.random.default_rng(num_tokens)
    drawn = rng.integers(VOCABULARY, size=num_tokens)
    free = rng.random(num_tokens) > RULED
    rule = rng.permutation(VOCABULARY)
    actual = followed(drawn, free, rule)
    for index, token in enumerate(actual):
        assert token == (drawn[index] if free[index] or index < LAG else rule[actual[index - LAG]])


@pytest.mark.slow
@pytest.mark.parametrize("world", CPU.worlds)
def test_all_strategies_and_masks_train_as_one_rank(world: int):
    all_options = [
        Options(mask=mask, strategy=strategy, steps=30) for mask in MASKS for strategy in STRATEGIES
    ]
    for options, (together, alone) in zip(
        all_options, on_ranks(beside_one_rank, world, all_options)[0], strict=True
    ):
        np.testing.assert_allclose(together["losses"], alone["losses"], rtol=CLOSE, err_msg=str(options))
        assert alone["losses"][-1] < alone["losses"][0]


@pytest.mark.slow
def test_the_command_runs_alone_and_under_torchrun(tmp_path):
    arguments = ["examples/train_packed.py", "--steps", "30", "--csv"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617"]
    curves = []
    for number, start in enumerate(([], torchrun)):
        target = tmp_path / f"{number}.csv"
        done = subprocess.run(
            [sys.executable, *start, *arguments, str(target)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert "tokens/s" in done.stdout and done.stdout.count("sent by rank 0") == 1
        curves.append(np.loadtxt(target, delimiter=",", skiprows=1)[:, 1])
    np.testing.assert_allclose(*curves, rtol=CLOSE)


@pytest.mark.parametrize("setting", [CPU, GPUS], ids=lambda setting: setting.device)
def test_the_curves_of_the_guide_are_all_there_and_agree_within_rounding(setting: Setting):
    losses, facts = training_curves.read(setting)
    wanted = {Run(mask, how, 1) for mask in MASKS for how in (ALONE, NUDGED)}
    wanted |= {Run(mask, how, ranks) for mask in MASKS for how in STRATEGIES for ranks in setting.worlds}
    assert losses.keys() == facts.keys() == wanted
    assert {len(curve) for curve in losses.values()} == {200}
    for run, apart in training_curves.differences(losses).items():
        assert apart.max() < 10 * training_curves.differences(losses)[Run(run.mask, NUDGED, 1)].max(), run
    assert all(curve[-20:].mean() < curve[:5].mean() / 3 for curve in losses.values())


@pytest.mark.parametrize("setting", [CPU, GPUS], ids=lambda setting: setting.device)
def test_the_table_of_the_guide_is_that_of_its_files(setting: Setting):
    page = training_curves.PAGE.read_text(encoding="utf-8")
    assert "\n".join(training_curves.table(*training_curves.read(setting), setting)) in page
