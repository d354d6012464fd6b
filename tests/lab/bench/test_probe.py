"""`longca probe`: the profile that follows from what was timed, its way into advice, and a whole probe on two
CPU ranks."""

import datetime
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import yaml

from longca.core.errors import UserError
from longca.core.hardware import load_hardware
from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.lab.advice.ranking import advise
from longca.lab.bench.probe.measuring import _calls
from longca.lab.bench.probe.profile import (
    MOST_WIDER,
    ProbeResult,
    TimedKernel,
    TimedMessage,
    fit_messages,
    networks_of,
)
from longca.lab.bench.probe.start import run_on_ranks
from longca.masks import build_mask
from tests.helpers.support import ROOT

DAY = datetime.date(2026, 11, 23)
GPU = "NVIDIA H100 80GB HBM3"
CALL: dict[str, Any] = {
    "gpus": 4,
    "num_q_heads": 64,
    "num_kv_heads": 8,
    "kernels": ["band"],
    "strategies": ["ring_allgather"],
}


def messages(us: float, gb_s: float, spread: float = 0.01) -> list[TimedMessage]:
    return [
        TimedMessage(size, us * 1e-6 + size / gb_s / 1e9, spread, 0.2)
        for size in (1 << 18, 1 << 22, 1 << 25, 1 << 27)
    ]


def kernels(ratio: float) -> list[TimedKernel]:
    return [TimedKernel("band", way, "causal", 16384, 0.01 * ratio, 0.01, 0.01) for way in ("fwd", "bwd")]


@pytest.mark.parametrize(("us", "gb_s"), [(30.0, 380.0), (5.0, 20.0), (0.0, 100.0)])
def test_latency_and_rate_are_found_again(us: float, gb_s: float):
    found_us, found_gb_s = fit_messages(messages(us, gb_s))
    assert found_us == pytest.approx(us, abs=0.02) and found_gb_s == pytest.approx(gb_s, rel=0.01)


def test_the_quickest_way_comes_first_and_what_was_not_probed_says_so():
    networks = networks_of(
        ProbeResult(
            2, 2, GPU, {"nccl": messages(50, 200), "copy-engines": messages(30, 350)}, kernels=kernels(1.2)
        ),
        DAY,
    )
    assert [network["name"] for network in networks] == ["probed-copy-engines", "probed-nccl"]
    first = networks[0]
    assert (
        first["intra_gb_s"] == {"value": 350.0, "source": "longca probe on 2 ranks, 2026-11-23"}
        and first["gpu"] == "H100 SXM"
    )
    assert (
        "assumed: one node was probed" in first["inter_gb_s"]["source"] and first["overlap"]["value"] == 0.2
    )
    assert first["kernel_ratio"] == {"band fwd": 1.2, "band bwd": 1.2} and first["wider"] == 1
    several = networks_of(
        ProbeResult(4, 2, GPU, {"nccl": messages(50, 200)}, {"nccl": messages(60, 40)}), DAY
    )[0]
    assert several["inter_gb_s"]["value"] == pytest.approx(40, rel=0.01) and several["ranks_per_node"] == 2


def test_a_busy_or_unsteady_machine_widens():
    quiet, busy = (
        ProbeResult(2, 2, GPU, {"nccl": messages(50, 200)}, disturbance=text)
        for text in ("", "others kept the GPU busy")
    )
    unsteady = ProbeResult(2, 2, GPU, {"nccl": messages(50, 200, spread=0.06)})
    hopeless = ProbeResult(2, 2, GPU, {"nccl": messages(50, 200, spread=5)}, disturbance="others")
    assert (quiet.wider, busy.wider, unsteady.wider, hopeless.wider) == (1, 2, 3, MOST_WIDER)


def test_advice_takes_the_file(tmp_path):
    def advised(ratio: float, **result: Any) -> Any:
        path = tmp_path / "probe.yaml"
        content = {
            "networks": networks_of(
                ProbeResult(4, 4, GPU, {"nccl": messages(50, 200)}, kernels=kernels(ratio), **result), DAY
            )
        }
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        assert load_hardware(path).networks[0].measured
        return advise(build_mask("causal", seqlen="64K"), profile=str(path), **CALL)

    usual = advised(1.0)
    slow = advised(2.0)
    busy = advised(1.0, disturbance="others kept 3 cores busy")
    assert 1.7 < slow.best.prediction.seconds / usual.best.prediction.seconds < 2.1
    assert not any("share of their peaks" in text for text in usual.assumptions), "kernels were probed"
    assert any("busy" in text for text in busy.assumptions)
    width = {name: entry.best.high_s - entry.best.low_s for name, entry in (("usual", usual), ("busy", busy))}
    assert width["busy"] > 1.5 * width["usual"]
    for name, said in (("none.yaml", "There is no file"), ("empty.yaml", "holds no profile")):
        (tmp_path / "empty.yaml").write_text("gpus: []\n")
        with pytest.raises(UserError, match=said):
            advise(build_mask("causal", seqlen="16K"), profile=str(tmp_path / name), **CALL)


def test_a_kernel_is_called_both_ways():
    mask = build_mask("causal", seqlen=128)
    device = torch.device("cpu")
    calls = dict(
        _calls(
            Registry("kernel").load("sdpa"),
            Problem(mask, 64, 8, 128, torch.float32, device, needs_backward=True),
        )
    )
    assert calls["fwd"]().out.numel() == 64 * 128 * 128 and len(calls["bwd"]()) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    with pytest.raises(UserError, match="There is no GPU here"):
        run_on_ranks(1, None, "cuda", 10)


@pytest.mark.slow
def test_two_ranks_on_a_cpu(tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user')")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "longca",
            "probe",
            "--device",
            "cpu",
            "--seconds",
            "2",
            "--out",
            str(tmp_path / "p.yaml"),
            "--json",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    (content,) = json.loads(done.stdout)["networks"]
    assert content["name"] == "probed-gloo" and content["intra_gb_s"]["value"] > 0.01
    assert load_hardware(tmp_path / "p.yaml").networks[0].name == "probed-gloo"
