"""Measuring: timer, oracle, telemetry, worker processes, the runner."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.bench.measure.environment import num_cores
    from longca.lab.bench.measure.nvml import visible_gpus
    from longca.lab.bench.plan.machine import Machine, gpu_machine, this_machine
    from longca.lab.bench.plan.predict import EFFICIENCY, Prediction, Predictor, playoff_hours
    from longca.lab.bench.plan.shards import shards, shards_of_one_machine
    from longca.lab.bench.probe.profile import ProbeResult, networks_of
    from longca.lab.bench.probe.start import run_on_ranks
    from longca.lab.bench.run.freshness import local_device, package_stamps, write_playoff_stamp, write_stamp
    from longca.lab.bench.run.overview import failures, finding, outcome_table, rate_tables
    from longca.lab.bench.run.own_file import OwnFileResult, OwnFileRun, compare_own_file
    from longca.lab.bench.run.players import count_playoffs
    from longca.lab.bench.run.progress import is_plain
    from longca.lab.bench.run.runner import run_cells
    from longca.lab.bench.run.scores import FAILED
    from longca.lab.bench.run.summary import Summary
    from longca.lab.bench.workers.agent import serve
    from longca.lab.bench.workers.launch import find_task
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "EFFICIENCY",
    "FAILED",
    "Machine",
    "OwnFileResult",
    "OwnFileRun",
    "Prediction",
    "Predictor",
    "ProbeResult",
    "Summary",
    "compare_own_file",
    "count_playoffs",
    "failures",
    "find_task",
    "finding",
    "gpu_machine",
    "is_plain",
    "local_device",
    "networks_of",
    "num_cores",
    "outcome_table",
    "package_stamps",
    "playoff_hours",
    "rate_tables",
    "run_cells",
    "run_on_ranks",
    "serve",
    "shards",
    "shards_of_one_machine",
    "this_machine",
    "visible_gpus",
    "write_playoff_stamp",
    "write_stamp",
]
