"""Trials by accident are themselves tried: their plans follow from the seed, and each of their checks finds
what it is for."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import checks
from tests.chaos.checks import CellFile
from tests.chaos.plan import KILLS_OF_A_TRIAL, OTHERS, SIGNALS, Accident, TrialPlan, plan
from tests.chaos.processes import KINDS, MARK, end_all, kind_of, processes, wait_until_gone
from tests.chaos.trial import Trial, undisturbed
from tools import reliability

RECORD = {
    "cell_id": "a",
    "cell": {"seed": 0},
    "study": "chaos",
    "run_id": "one",
    "method_version": "1",
    "mask": {"digest": "00"},
    "outcome": {"status": "ok"},
    "accuracy": {"reference": "float64", "scope": "all", "relative": {"out": 1e-7}},
    "seconds": 1.0,
}
SMALL = """
title: chaos
measure: {warmup: 1, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - {kernel: [naive, sdpa], mask: [full, causal], seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32}
"""


def cell(written_s: float = 10.0, **changed: object) -> CellFile:
    return CellFile({**RECORD, **changed}, round(written_s * 1e9))


def test_plans_follow_from_the_seed_and_spread_their_kills():
    trials = plan(3, 100)
    assert trials == plan(3, 100) != plan(4, 100)
    kills = [accident for trial in trials for accident in trial.accidents if accident.what == "kill"]
    assert len(kills) == 100 and len(trials) == -(-100 // KILLS_OF_A_TRIAL)
    pairs = [(accident.victim, accident.signal) for accident in kills]
    assert {pairs.count((victim, number.name)) for victim in KINDS for number in SIGNALS} <= {6, 7}
    assert {accident.what for trial in trials for accident in trial.accidents} == {"kill", *OTHERS}
    assert all(
        trial.way == "snakemake"
        for trial in trials
        if any(accident.victim == "snakemake" for accident in trial.accidents)
    )
    assert sum(accident.what == "kill" for trial in plan(3, 7) for accident in trial.accidents) == 7


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python -P -u child.py -m longca.lab.bench.workers.worker --rank 0 --world 1", "worker"),
        ("python -P -u child.py -m longca.lab.bench.workers.worker --rank 1 --world 2", "rank"),
        ("python -m longca run chaos.yaml --exit-zero", "runner"),
        ("python -m longca report chaos.yaml", ""),
        ("python -m snakemake --profile workflow/profiles/local", "snakemake"),
        ("/bin/bash -c python -m longca run x", ""),
    ],
)
def test_processes_are_told_apart(command, kind):
    words = command.split(" ")
    assert kind_of(words if words[0] == "python" else [*words[:2], " ".join(words[2:])]) == kind


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ({"a": cell()}, []),
        (
            {
                "a": cell(
                    seconds=7.0, run_id="two", accuracy={**RECORD["accuracy"], "relative": {"out": 2e-7}}
                )
            },
            [],
        ),
        ({}, ["cell a is not there"]),
        ({"a": cell(), "b": cell()}, ["cell b should not be there"]),
        ({"a": cell(outcome={"status": "error"})}, ["cell a is error, not ok"]),
        ({"a": cell(mask={"digest": "01"})}, ["cell a has another mask"]),
        ({"a": cell(method_version="2")}, ["cell a has another method_version"]),
        (
            {"a": cell(accuracy={"reference": "float64", "scope": "KV head 1"})},
            ["cell a was compared with something else"],
        ),
    ],
)
def test_what_differs_from_an_undisturbed_run_is_found(here, says):
    assert checks.unlike(here, {"a": cell()}) == says


def test_lost_and_repeated_cells_are_found():
    cells = {"a": cell(), "b": cell(11)}
    assert checks.lost({"a": cells["a"].written_ns, "b": cells["b"].written_ns}, cells) == []
    assert checks.lost({"a": 1, "c": 2}, cells) == [
        "finished cell a was written again",
        "finished cell c was lost",
    ]


def test_two_cells_at_the_same_time_are_found():
    one_after_another = [cell(10), cell(11), cell(12.5)]
    assert checks.side_by_side(one_after_another) == []
    actual = checks.side_by_side([*one_after_another, cell(11.6, cell_id="b", run_id="two")])
    assert actual == [
        "cells a of run one and b of run two were measured at the same time for 0.40 s",
        "cells b of run two and a of run one were measured at the same time for 0.10 s",
    ]


def test_what_is_left_behind_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "GONE_SECONDS", 0.2)
    results = tmp_path / "results"
    mark = f"test-{os.getpid()}"
    results.mkdir()
    assert checks.left_behind(tmp_path, results, mark) == []
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(1e6)"], env={**os.environ, MARK: mark}
    )
    (results / ".a.tmp").touch()
    with (results / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        while not processes(mark):
            pass
        actual = checks.left_behind(tmp_path, results, mark)
    assert [text.split(" ")[0] for text in actual] == [
        "process",
        "a",
        "temporary",
    ] and f"process {orphan.pid} " in actual[0]
    end_all(mark)
    assert orphan.wait() == -signal.SIGKILL and wait_until_gone(mark, 0.0) == []


def test_the_page_says_what_was_found():
    accidents = [
        {
            "what": "kill",
            "victim": "rank",
            "signal": "SIGHUP",
            "delay_s": 0,
            "amount": 0,
            "at_s": 3.2,
            "num_cells": 1,
            "note": "",
        },
        {
            "what": "clock",
            "victim": "",
            "signal": "",
            "delay_s": 0,
            "amount": 90,
            "at_s": 5.0,
            "num_cells": 1,
            "note": "",
        },
    ]
    accidents.append({**accidents[0], "note": reliability.TOO_LATE})
    trial = {
        "number": 0,
        "way": "longca run",
        "seconds": 9.0,
        "num_starts": 2,
        "num_repaired": 1,
        "found": [],
        "accidents": accidents,
    }
    data = {
        "seed": 5,
        "kills": 1,
        "seconds": 60,
        "skipped": {},
        "date": "2026-11-23",
        "machine": "a CPU",
        "load": 0.5,
        "num_cells": 4,
    }
    good, bad = (
        reliability.chaos({**data, "trials": [{**trial, "found": entry}]})
        for entry in ([], ["a lock is held"])
    )
    assert (
        "After 1 kill and 1 other accident, all cells were those of an undisturbed run" in good
        and "rank HUP 3, clock 5" in good
    )
    assert "1 trial of 1 did not end as an undisturbed run does" in bad and "a lock is held" in bad
    first = [
        reliability.summary(
            {"chaos": {"trials": [{**trial, "found": entry}]}, "slurm": {**trial, "found": []}}
        )
        for entry in ([], ["a lock is held"])
    ]
    rest = "no finished cell was lost or changed, and nothing was left behind.**"
    assert first == [
        f"**After 2 accidents on one machine and 2 on a cluster, {rest}",
        "**After 2 accidents on one machine, 1 thing was not as it should be: see below. "
        f"After 2 accidents on a cluster, {rest}",
    ]
    assert reliability.summary({}) == "Nothing is measured yet."


def test_the_page_says_which_limits_were_missed():
    status = {
        "command": "status",
        "what": "",
        "limit_s": 2.0,
        "limit_gib": None,
        "seconds": 1.5,
        "cpu_s": 1.4,
        "mib": 100,
    }
    report = {
        **status,
        "command": "report",
        "limit_s": 60.0,
        "limit_gib": 2.0,
        "seconds": 50.0,
        "cpu_s": 49.0,
        "mib": 2000,
    }
    data = {
        "date": "2026-11-23",
        "machine": "a CPU",
        "load": 0.5,
        "num_records": 100_000,
        "bytes": 1e9,
        "page_bytes": 3e6,
    }
    good = reliability.load({**data, "commands": [status, report]})
    assert "With 100,000 records, every command keeps its limits" in good and "waited for others" not in good
    bad = reliability.load(
        {
            **data,
            "commands": [{**status, "seconds": 2.5}, {**report, "seconds": 70.0, "cpu_s": 69.0, "mib": 3072}],
        }
    )
    assert (
        "With 100,000 records, limits are missed by `status` (2.50 s of 2), `report` (70.0 s of 60 and 3.0 "
        "GiB of 2)" in bad
    )
    assert "within the limit of `status`: there it waited for others" in bad
    full = reliability.load({**data, "commands": [{**report, "limit_s": None, "mib": 3072}]})
    assert "limits are missed by `report` (3.0 GiB of 2)" in full and "| 2 GiB, missed |" in full


def test_the_committed_page_is_current():
    assert reliability.PAGE.read_text() == reliability.page(reliability.PAGE.read_text()), (
        "run `python -m tools.reliability`"
    )


@pytest.mark.slow
def test_a_small_trial(tmp_path: Path):
    """Two kills and a deleted folder, under `longca run`."""
    reference = undisturbed(tmp_path / "undisturbed", SMALL)
    accidents = (
        Accident("kill", "runner", "SIGKILL", 1.0),
        Accident("folder deleted", delay_s=0.5),
        Accident("kill", "worker", "SIGHUP", 1.0),
    )
    trial = Trial(TrialPlan(0, "longca run", accidents), 0, tmp_path / "trial", SMALL)
    trial.run(reference)
    assert trial.found == [] and len(trial.happened) == 3 and trial.num_starts >= 2
    assert json.loads((next(trial.results.glob("cells/*/*.json"))).read_text())["study"] == "chaos"
