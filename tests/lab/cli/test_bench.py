"""`longca bench`: a kernel in a file of its own is checked, timed beside others, and what goes wrong with it
is told by line."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from longca.core.plugin import PACKAGE_ROOT
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.wrong_rows import find_wrong_rows
from longca.lab.bench.run import own_file
from longca.lab.bench.workers.pool import Device
from tests.helpers.bench.own_files import CPU, write

pytestmark = pytest.mark.long
CLASS = "from longca.kernels.contract import Kernel\n\n\nclass Mine(Kernel):\n    label = 'mine'\n"
SUPPORTS = "    def supports(self, call, traits, device_type):\n        return None\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def forward(q, k):\n    return q\n",
            "'mine.py' is no kernel: forward(q, k) is called as forward(q, k, v, mask). docs/guide",
        ),
        (
            "def forward(q, k, v, mask, *, scale):\n    return q\n",
            "forward(q, k, v, mask, *, scale) is called as",
        ),
        (
            "def forward(*args):\n    return args[0]\ndef prepare(mask):\n    return mask\n",
            "prepare(mask) is called as prepare(mask, device)",
        ),
        (
            "def forward(*args):\n    return args[0]\ndef backward(dout, q):\n    return q\n",
            "backward(dout, q) is called as backward(",
        ),
        ("forward = 3\n", "forward is of type int; it must be a function forward(q, k, v, mask)"),
        (
            "LAYOUT = ['BHTD']\ndef forward(*args):\n    return args[0]\n",
            "LAYOUT is ['BHTD']; it must be one of BHTD, BTHD, HTD, THD",
        ),
        (
            f"{CLASS}    def supports(self, call):\n        return None\n",
            "supports(self, call) is called as supports(self, call, traits",
        ),
        (
            f"{CLASS}{SUPPORTS}    def prepare(self, problem):\n        return None\n",
            "prepare returned a NoneType; it must return a Prepared",
        ),
    ],
)
def test_a_wrong_definition_is_refused_in_a_line(here, longca, tmp_path, text, said):
    path = tmp_path / "mine.py"
    path.write_text(text)
    done = longca("bench", path, *SMALL, "--rivals", "none")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.strip().splitlines()) == 1, (
        done.stdout + done.stderr
    )
    assert said in done.stderr and "longca-bench" not in done.stderr


def test_the_command_over_worker_processes(longca, tmp_path):
    """Forward is right and has a speed; backward kills its process, and the command lives to tell the
    line."""
    path = write(
        tmp_path,
        "fragile",
        more="import os\ndef backward(dout, q, k, v, out, lse, mask):\n    os.kill(os.getpid(), 11)\n",
    )
    done = longca(
        "bench",
        path,
        "-s",
        "64",
        "--heads",
        "4:2",
        "--head-dim",
        "8",
        "-d",
        "both",
        "--rivals",
        "none",
        "--repeats",
        "3",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("causal forward: fragile is right: ") and lines[0].endswith(
        " ms; no rival ran beside it"
    )
    assert lines[1].startswith("causal backward: fragile failed: WorkerDied") and "SIGSEGV" in lines[1]
    assert "fragile.py, line 4, in backward" in lines[2]
    assert "100 %" in done.stdout and done.stderr == ""


def test_files_beside_it_are_found_but_stand_for_no_library(longca, tmp_path, monkeypatch):
    """A user's `random.py` and `torch.py` lie beside the kernel, which is the working folder, too."""
    for name in ("random", "torch", "numpy", "argparse"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('this is no {name}')\n")
    (tmp_path / "own_helper.py").write_text("def out(scores, v):\n    return scores.softmax(-1) @ v\n")
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, more="import random\nimport own_helper", result="own_helper.out(scores, v)")
    done = longca("bench", path, *SMALL, "--rivals", "none")
    assert done.returncode == 0 and done.stdout.startswith("mine is right"), done.stdout + done.stderr
    command = subprocess.run(
        [sys.executable, "-m", "longca", "list", "kernels"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT.parent)},
    )
    assert command.returncode == 0, command.stderr


def test_ctrl_c_ends_it_also_where_a_script_has_started_it_in_the_background(tmp_path):
    """Such a process ignores SIGINT from its start, and so would all that it starts."""
    path = write(
        tmp_path, first=f"import time; open({str(tmp_path / 'began')!r}, 'w').close(); time.sleep(300)"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "longca", "bench", path, *SMALL],
        cwd=PACKAGE_ROOT.parent,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        while not (tmp_path / "began").exists():
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    finally:
        run.kill()


def test_options_that_cannot_be(longca, tmp_path):
    path = write(tmp_path)
    for options, said in (
        (("-d", "sideways"), "'sideways'"),
        (("--rivals", "spda"), "'sdpa'"),
        (("-m", "causal:window"), "KEY=VALUE"),
        (("-m", "causl"), "'causal'"),
        (("--heads", "3:2"), "3 query heads"),
    ):
        done = longca("bench", path, *options)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.fixture
def here(monkeypatch):
    """Cells are measured in this process, since the start of another one takes seconds."""

    class Here:
        device = Device(type="cpu", name="this process", num_devices=1)

        def __init__(self, *_, **__):
            self.caches = LatestMasks(), LatestReferences()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def measure(self, cell, measure):
            return measure_kernel(cell, measure, CPU, *self.caches)

        def wrong_rows(self, cell, measure):
            return find_wrong_rows(cell, measure, CPU, *self.caches)

    monkeypatch.setattr(own_file, "Pool", Here)


SMALL = ("-s", "64", "--heads", "4:2", "--head-dim", "8", "--repeats", "3")


@pytest.mark.parametrize(("direction", "code"), [("fwd", 0), ("both", 0), ("bwd", 2)])
def test_what_a_kernel_refuses_is_no_verdict_on_it(here, longca, tmp_path, direction, code):
    """As in a run. Where it can run nothing that was asked, the question is wrong."""
    path = tmp_path / "mine.py"
    path.write_text(
        f"from longca.kernels.backends.naive import NaivePrepared\n{CLASS}"
        "    def supports(self, call, traits, device_type):\n"
        "        return 'no backward is written' if call.direction == 'bwd' else None\n"
        "    def prepare(self, problem):\n        return NaivePrepared(problem)\n"
    )
    done = longca("bench", path, *SMALL, "--rivals", "none", "-d", direction)
    assert done.returncode == code, done.stdout + done.stderr
    said = "mine does not support this call: no backward is written" in done.stdout
    assert said == (direction != "fwd")


def test_json_has_numbers(here, longca, tmp_path):
    done = longca("bench", write(tmp_path, "doubled", result="2 * scores.softmax(-1) @ v"), *SMALL, "--json")
    (content,) = json.loads(done.stdout)["results"]
    assert (
        done.returncode == 1
        and not content["is_right"]
        and content["record"]["outcome"]["status"] == "incorrect"
    )
    assert (
        np.isclose(content["wrong_rows"][0]["error"], 1.0)
        and content["wrong_rows"][0]["row"] == 0
        and content["rivals"] == []
    )


def test_rivals_stand_beside_it_the_fastest_first(here, longca, tmp_path):
    path = write(tmp_path, "right")
    done = longca("bench", path, *SMALL, "--rivals", "sdpa,naive,band", COLUMNS="80")
    content = json.loads(longca("bench", path, *SMALL, "--rivals", "sdpa,naive,band", "--json").stdout)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("right is right, ") and "× sdpa" in lines[0] and max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if " %" in line]
    shares = [float(line.split(" %")[0].split()[-1]) for line in lines if " %" in line]
    assert (
        names[0] == "right"
        and set(names) == {"right", "sdpa", "naive"}
        and shares[1] >= shares[2]
        and max(shares) == 100
    )
    assert (
        "band: unavailable, runs on NVIDIA GPUs only" in done.stdout
        and "measuring processes" not in done.stdout
    )
    (result,) = content["results"]
    assert result["finding"].startswith("right is right, ")
    assert [entry["cell"]["kernel"] for entry in result["rivals"]] == ["sdpa", "naive", "band"]
