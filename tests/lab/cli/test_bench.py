"""`longca bench`: a kernel in a file of its own is checked, timed beside others, and what goes wrong with it
is told by line."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from longca.core.errors import UserError
from longca.core.plugin import PACKAGE_ROOT
from longca.kernels.contract import Problem
from longca.kernels.own_file import LAYOUTS, OwnFilePrepared
from longca.lab.bench.check.oracle import wrong
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.wrong_rows import find_wrong_rows
from longca.lab.bench.run import own_file
from longca.lab.bench.run.own_file import _as_plugin
from longca.lab.bench.workers.pool import Device
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.masks import build_mask

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
MEASURE = Measure.fixed(warmup=0, repeats=3, timeout_s=30)
FILE = """import torch
{more}
def prepare(mask, device):
    return torch.from_numpy(mask.dense()).to(device)

def forward(q, k, v, mask):
    {first}
    num_copies = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(num_copies, 1) for x in (k, v))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return {result}
"""
RIGHT = {"more": "", "first": "", "result": "scores.softmax(-1) @ v"}


def write(folder, name="mine", **changes):
    path = folder / f"{name}.py"
    path.write_text(FILE.format(**RIGHT | changes))
    return path


def cell(kernel, direction="fwd", **fields):
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": "causal",
            "seqlen": 64,
            "num_q_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "dtype": "fp32",
            "direction": direction,
            **fields,
        }
    )


def outcome(path, direction="fwd"):
    with _as_plugin(path) as name:
        return measure_kernel(cell(name, direction), MEASURE, CPU).outcome


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_right_file_is_right(tmp_path, direction):
    assert outcome(write(tmp_path), direction).status == "ok"
    with_lse = write(tmp_path, "with_lse", result="scores.softmax(-1) @ v, scores.logsumexp(-1)")
    assert outcome(with_lse, direction).status == "ok"
    wrong_lse = write(tmp_path, "wrong_lse", result="scores.softmax(-1) @ v, scores.logsumexp(-1) + 1")
    assert "lse is off" in outcome(wrong_lse, direction).reason


def test_a_backward_of_its_own_is_called_and_checked(tmp_path):
    own = """
def backward(dout, q, k, v, out, lse, mask):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return [{factor} * x for x in torch.autograd.grad(forward(*leaves, mask), leaves, dout)]
"""
    assert outcome(write(tmp_path, "own_bwd", more=own.format(factor=1)), "bwd").status == "ok"
    assert "dq is off" in outcome(write(tmp_path, "double", more=own.format(factor=2)), "bwd").reason
    lost = outcome(write(tmp_path, "no_grad", result="(scores.softmax(-1) @ v).detach()"), "bwd")
    assert lost.type == "ResultError" and "define backward(dout, q, k, v, out, lse, mask)" in lost.message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_come_in_the_layout_that_the_file_names(tmp_path, layout):
    path = tmp_path / f"layout_{layout.lower()}.py"
    path.write_text(f"LAYOUT = '{layout}'\ndef forward(q, k, v, mask):\n    return q\n")
    problem = Problem(build_mask("causal", seqlen=6), 4, 2, 8, torch.float32, CPU, needs_backward=False)
    prepared = OwnFilePrepared(problem, path)
    x_THD = torch.randn(6, 4, 8)
    x = prepared.to_layout(x_THD)
    sizes = {"B": 1, "H": 4, "T": 6, "D": 8}
    assert x.shape == tuple(sizes[axis] for axis in layout) and x.is_contiguous()
    assert torch.equal(prepared.from_layout(prepared.forward(x, x, x).out), x_THD)
    lse_HT = torch.randn(4, 6)
    assert torch.equal(prepared.lse_from_layout(lse_HT[None]), lse_HT.T)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first": "raise ValueError('no luck')"}, "line 7, in forward: raise ValueError('no luck')"),
        ({"more": "import nosuch_module"}, "line 2, in <module>: import nosuch_module"),
        ({"result": "scores"}, "must be a float32 tensor of (1, 4, 64, 8)"),
        ({"result": "(scores.softmax(-1) @ v).double()"}, "out that is a float64 tensor of (1, 4, 64, 8)"),
        ({"result": "None"}, "out that is a NoneType"),
        ({"more": "LAYOUT = 'XYZ'"}, "BHTD, BTHD, HTD, THD"),
    ],
)
def test_errors_name_the_line_or_what_is_expected(tmp_path, changes, said):
    actual = outcome(write(tmp_path, f"bad_{abs(hash(said))}", **changes))
    assert actual.status == "error" and said in actual.message + actual.log


@pytest.mark.parametrize("change", ["k.zero_()", "k.data.zero_()", "k.numpy()[:] = 0"])
def test_a_kernel_that_changes_its_inputs_is_wrong_however_it_does_it(tmp_path, change):
    actual = outcome(write(tmp_path, f"changes_{abs(hash(change))}", first=change))
    assert (
        actual.status == "incorrect"
        and "it changes its input k, which the next call would see" in actual.reason
    )


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


def test_the_first_wrong_row_is_found(tmp_path):
    """A row, a key and a row without keys that are known to be wrong are named."""
    spoilt = write(
        tmp_path, "spoilt", result="(scores.softmax(-1) @ v).index_fill(2, torch.tensor([41, 50]), 0.5)"
    )
    with _as_plugin(spoilt) as name:
        (row,) = find_wrong_rows(cell(name), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (row.tensor, row.kind, row.row, row.head, row.num_wrong, row.num_checked) == (
        "out",
        "query",
        41,
        0,
        8,
        256,
    )
    assert "first wrong row: query 41 of head 0, off by" in str(row)
    keys = write(
        tmp_path,
        "spoilt_keys",
        more="def backward(dout, q, k, v, out, lse, mask):\n"
        "    leaves = [x.detach().requires_grad_() for x in (q, k, v)]\n    with torch.enable_grad():\n"
        "        dq, dk, dv = torch.autograd.grad(forward(*leaves, mask), leaves, dout)\n    dk[0, 1, 9] = "
        "float('nan')\n"
        "    return dq, dk, dv\n",
    )
    with _as_plugin(keys) as name:
        (row,) = find_wrong_rows(cell(name, "bwd"), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (row.tensor, row.kind, row.row, row.head, row.error) == (
        "dk",
        "key",
        9,
        1,
        math.inf,
    ) and "KV head 1, not finite" in str(row)


def test_a_small_error_everywhere_has_a_worst_row(tmp_path):
    off = write(tmp_path, "off", result="scores.softmax(-1) @ v * (1 + 6e-6)")
    with _as_plugin(off) as name:
        measured = measure_kernel(cell(name), MEASURE, CPU)
        (row,) = find_wrong_rows(cell(name), MEASURE, CPU, LatestMasks(), LatestReferences())
    assert (
        wrong(measured.accuracy)
        and row.num_wrong == 0
        and "no row is far off; the worst is query" in str(row)
    )


def test_what_is_no_kernel_is_said_in_a_line(tmp_path):
    for text, said in (("x = 1", "is no kernel"), ("def forward(:", "line 1 is not valid Python")):
        path = tmp_path / "none.py"
        path.write_text(text)
        with pytest.raises(UserError, match=said), _as_plugin(path):
            pass
    with pytest.raises(UserError, match=r"Cannot read .*nosuch.py"), _as_plugin(tmp_path / "nosuch.py"):
        pass


def test_a_plugin_and_a_known_name_are_taken_too(tmp_path, monkeypatch):
    monkeypatch.delenv("LONGCA_PLUGINS", raising=False)
    with _as_plugin(write(tmp_path, "sdpa")) as name:
        assert name == "own_sdpa"
    plugin = tmp_path / "as_plugin.py"
    plugin.write_text(
        ("from longca.kernels.backends.naive import Naive\n\n\nclass MyKernel(Naive):\n    label = 'x'\n")
        .replace("Naive\n\n", "Naive as Kernel\n\n")
        .replace("(Naive)", "(Kernel)")
    )
    assert outcome(plugin).status == "ok"


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


def test_rivals_are_those_that_can_run_here():
    assert set(own_file.rivals_of(cell("sdpa"), "cpu")) == {"naive", "flex"}
    assert set(own_file.rivals_of(cell("sdpa", "bwd"), "cpu")) == {"naive"}, (
        "no control, nothing as released, none without a backward"
    )
