"""Accidents at random moments: kills of snakemake, runner, worker and ranks, stops, full disks, jumps of the
clock, deleted results.

    python -m tests.chaos [--kills 100] [--seed 0] [--trial N] [--save]

Each trial measures a small study on this machine's CPU in a folder of its own, with accidents on the way that
follow from the seed. It is run again until it is whole. Then its cells must be those of an undisturbed run,
no finished cell may have been lost or measured twice, no two measured at the same time, and no process, lock
or temporary file may be left. Where that is not so, the program says what was found and the command that runs
this trial again, and ends with exit code 1. The seed decides what happens and when; what the machine does
meanwhile is not the same twice.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longca.lab.bench.measure.environment import cpu_name, num_cores
from tests.chaos import machine
from tests.chaos.plan import TrialPlan, plan
from tests.chaos.trial import Trial, undisturbed
from tools.reliability import save


def main() -> int:
    options = _options()
    skipped = machine.skipped()
    for what, why in skipped.items():
        print(f"left out: {what}: {why}", flush=True)
    begun = time.monotonic()
    trials = []
    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="longca-chaos-"))
    try:
        reference = undisturbed(folder / "undisturbed")
        for each in plan(options.seed, options.kills):
            if options.trial in (None, each.number):
                trial = Trial(_without(each, skipped), options.seed, folder / f"trial-{each.number}")
                trial.run(reference)
                trials.append(described(trial))
                failed += bool(trial.found)
                _say(trial, options)
                if not trial.found:
                    shutil.rmtree(trial.folder)
    finally:
        if not failed and not sys.exc_info()[0]:
            shutil.rmtree(folder)
        else:
            print(f"kept: {folder}", flush=True)
    if options.save:
        save(
            "chaos",
            {
                "seed": options.seed,
                "kills": options.kills,
                "seconds": round(time.monotonic() - begun),
                "skipped": skipped,
                "date": datetime.now(UTC).date().isoformat(),
                "machine": f"{cpu_name()}, {num_cores()} cores",
                "load": round(os.getloadavg()[2], 1),
                "num_cells": len(reference),
                "trials": trials,
            },
        )
    print(f"{len(trials)} trials in {time.monotonic() - begun:.0f} s, {failed} of them not as they should be")
    return int(failed > 0)


def described(trial: Trial) -> dict[str, Any]:
    """The trial as data."""
    return {
        "number": trial.plan.number,
        "way": trial.plan.way,
        "seconds": trial.seconds,
        "num_starts": trial.num_starts,
        "num_repaired": trial.num_repaired,
        "found": trial.found,
        "accidents": [
            {
                **asdict(happened.accident),
                "at_s": happened.at_s,
                "num_cells": happened.num_cells,
                "note": happened.note,
            }
            for happened in trial.happened
        ],
    }


def _say(trial: Trial, options: argparse.Namespace) -> None:
    happened = ", ".join(
        f"{entry.accident} at {entry.at_s:.0f} s ({entry.num_cells} cells)" for entry in trial.happened
    )
    print(
        f"trial {trial.plan.number}, {trial.plan.way}: {trial.seconds:.0f} s, {trial.num_starts} starts, "
        f"{trial.num_repaired} repaired: "
        f"{happened}",
        flush=True,
    )
    for text in trial.found[:10]:
        print(f"  FOUND {text}", flush=True)
    if trial.found:
        print(
            f"  again: python -m tests.chaos --kills {options.kills} --seed {options.seed} --trial "
            f"{trial.plan.number}",
            flush=True,
        )


def _without(plan: TrialPlan, skipped: dict[str, str]) -> TrialPlan:
    return TrialPlan(
        plan.number, plan.way, tuple(accident for accident in plan.accidents if accident.what not in skipped)
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument(
        "--save", action="store_true", help="write what came of it into docs/results/reliability.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
