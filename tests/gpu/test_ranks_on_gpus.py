"""Ranks over NCCL: measured together, and ended together while a collective waits on a GPU for a peer that is
gone."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from longca.lab.bench.workers.group import GRACE_SECONDS
from longca.lab.bench.workers.pool import Pool
from longca.lab.store.cells import CellStore
from tests.helpers.bench.misbehaving import MEASURE, cp_cell
from tests.helpers.support import ROOT

pytestmark = [
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="less than two GPUs here"),
]
START_S = 60.0  # of two processes that have to load CUDA and NCCL
STUDY = """
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 0.2, timeout_s: 60}
grids:
  - {kind: cp, strategy: ulysses, kernel: naive, world: [1, 2], mask: causal, seqlen: 64, heads: "2:2", head_dim: 16, dtype: bf16}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("kernel", "status", "words"),
    [
        ("midway_hungry", "oom", "requested_bytes=2147483648"),
        ("midway_raises", "error", "no key"),
        ("midway_killed_while_timed", "error", "rank 1: it was killed by SIGKILL"),
        ("midway_sleeps", "timeout", "seconds=20.0"),
    ],
)
def test_a_rank_that_fails_between_messages_ends_all_and_the_next_cell_runs(
    pool: Pool, kernel: str, status: str, words: str
) -> None:
    timeout_s = 20.0 if kernel == "midway_sleeps" else 600.0
    begun = time.monotonic()
    result = pool.measure(
        cp_cell("ulysses", 2, kernel, dtype="bf16"), MEASURE.model_copy(update={"timeout_s": timeout_s})
    )
    assert time.monotonic() - begun < START_S + max(GRACE_SECONDS, min(timeout_s, 20.0))
    assert result.outcome.status == status and words in repr(result.outcome), result.outcome
    after = pool.measure(cp_cell("ulysses", 2, dtype="bf16"), MEASURE)
    assert after.outcome.status == "ok", after.outcome
    assert len(after.memory.above_shards_bytes) == 2 and after.memory.source == "cuda_allocator"


def test_torchrun_starts_ranks_on_gpus(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "longca",
        "run",
        str(study),
        "--results",
        str(tmp_path / "results"),
        "--device",
        "cuda",
        "--progress",
        "plain",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    records, _ = CellStore(tmp_path / "results" / "study").read_all()
    assert {record.cell.world: record.outcome.status for record in records} == {1: "ok", 2: "ok"}
    assert {
        len({node.gpu["uuid"] for node in record.environment.nodes})
        for record in records
        if record.cell.world == 2
    } == {2}
