"""A kernel that misbehaves at any moment, in any way, costs its own cells: the others are measured, and the
run ends and says so."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.helpers.forked import snakemake
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

HOSTILE = """
import ctypes, os, signal, sys, time
from longca.kernels.backends.naive import Naive, NaivePrepared
WHERE, WHAT, WHO = os.environ["HOSTILE"].split(":")
IS_WORKER = "longca.lab.bench.workers.worker" in sys.orig_argv
class Odd(BaseException): pass
def write_all(content):
    for file in range(3, 1024):
        try: os.write(file, content)
        except OSError: pass
def leave():
    if not os.fork():
        os.setsid()
        time.sleep(600)
        os._exit(0)
def flood():
    for _ in range(150): os.write(1, b"y" * (1 << 20))
    raise RuntimeError("after printing")
def raise_odd(): raise Odd("not an Exception")
ACTS = {"exits": lambda: os._exit(0), "leaves": lambda: sys.exit(0), "hangs": lambda: time.sleep(600), "odd": raise_odd,
        "crashes": lambda: ctypes.string_at(0), "killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "floods": flood,
        "escapes": leave, "text": lambda: write_all(b"no message\\n"), "deep": lambda: write_all(b"[" * 100_000 + b"\\n"),
        "list": lambda: write_all(b"[1, 2]\\n"), "endless": lambda: write_all(b"y" * 100_000)}
def act(where):
    if where == WHERE and WHO in ("both", "worker" if IS_WORKER else "runner"):
        ACTS[WHAT]()
class Prepared(NaivePrepared):
    num_calls = 0
    def forward(self, q, k, v):
        self.num_calls += 1
        act("always")
        if self.num_calls == 1: act("first")
        if self.num_calls == 4: act("timed")
        return super().forward(q, k, v)
act("import")
class Hostile(Naive):
    label = "Hostile"
    def __init__(self):
        super().__init__()
        act("init")
    def supports(self, call, traits, device_type):
        act("supports")
        return super().supports(call, traits, device_type)
    def work(self, call, seqlen):
        act("work")
        return super().work(call, seqlen)
    def prepare(self, problem):
        act("prepare")
        return Prepared(problem)
"""  # noqa: E501
STUDY = """
measure: {warmup: 1, warm_seconds: 0, repeats: 4, precision: 0, max_seconds: 1, timeout_s: 6}
grids:
  - {kernel: [hostile, naive], mask: [full, causal], seqlen: 64, heads: "4:2", head_dim: 16, dtype: fp32, direction: fwd}
"""  # noqa: E501
ENDS = ("exits", "leaves", "hangs", "odd", "crashes", "killed", "floods", "escapes")
WHATS = (*ENDS, "text", "deep", "list", "endless")
TRIES = [
    f"{where}:{what}:{who}"
    for where, whos in (
        ("import", ("both", "runner", "worker")),
        ("init", ("both",)),
        ("work", ("both",)),
        ("supports", ("both",)),
        ("prepare", ("both",)),
        ("first", ("both",)),
        ("timed", ("both",)),
        ("always", ("both",)),
    )
    for what in (ENDS if where in ("init", "work") else WHATS)
    for who in whos
]
SAMPLE = ("import:exits:both", "timed:list:both")


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of the run. What has escaped from it ends with the test."""
    (tmp_path / "plugins/kernels").mkdir(parents=True)
    (tmp_path / "plugins/kernels/hostile.py").write_text(HOSTILE)
    (tmp_path / "study.yaml").write_text(STUDY)
    without = {name: value for name, value in os.environ.items() if name != "LONGCA_TRIALS"}
    results = str(tmp_path / "results")
    yield without | {
        "LONGCA_PLUGINS": str(tmp_path / "plugins"),
        "LONGCA_LIMIT_PLUGIN_SECONDS": "10",
        "LONGCA_DEVICE": "cpu",
        "LONGCA_RESULTS": results,
        "LONGCA_LOCKS": str(tmp_path / "locks"),
        "CI": "1",
    }
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("LONGCA_RESULTS") == results:
                process.kill()


def statuses(folder: Path) -> dict[str, list[str]]:
    """Kernel → how its cells ended."""
    by_kernel = defaultdict(list)
    for file in folder.glob("study/cells/*/*.json"):
        record = json.loads(file.read_text())
        by_kernel[record["cell"]["kernel"]].append(record["outcome"]["status"])
    return by_kernel


@pytest.mark.parametrize(
    "act", [pytest.param(act, marks=() if act in SAMPLE else pytest.mark.slow) for act in TRIES]
)
def test_the_others_are_measured_and_the_run_says_what_is_left(
    environ: dict[str, str], tmp_path: Path, act: str
):
    command = [sys.executable, "-m", "longca", "run", str(tmp_path / "study.yaml")]
    with (tmp_path / "output.txt").open("wb") as output:  # a pipe would wait for all that escaped, too
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**environ, "HOSTILE": act},
            stdout=output,
            stderr=output,
            timeout=120,
            check=False,
        )
    printed = (tmp_path / "output.txt").read_text()
    measured = statuses(tmp_path / "results")
    assert "Traceback" not in printed and measured["naive"] == ["ok", "ok"], printed
    assert len(measured["hostile"]) == 2 or (not measured["hostile"] and "left out: Plug-in '" in printed)
    assert done.returncode == (0 if measured["hostile"] == ["ok", "ok"] else 1)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 110 << 20


@pytest.mark.slow
@pytest.mark.parametrize("act", ["import:exits:both", "import:odd:both"])
def test_the_workflow_makes_the_page_of_the_others_and_fails(
    environ: dict[str, str], tmp_path: Path, monkeypatch, act: str
):
    monkeypatch.delenv("LONGCA_TRIALS")
    done = snakemake(
        "--profile",
        "workflow/profiles/local",
        "--config",
        f"study={tmp_path / 'study.yaml'}",
        f"results={tmp_path / 'results'}",
        "device=cpu",
        **environ,
        HOSTILE=act,
    )
    assert done.returncode == 1 and "hostile.py' cannot be imported" in done.stdout + done.stderr
    assert (
        statuses(tmp_path / "results") == {"naive": ["ok", "ok"]}
        and (tmp_path / "results/study/report.html").exists()
    )
