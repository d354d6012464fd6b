"""Band attention with other versions of Triton: the same source compiles, launches are replayed, and unknown
versions are unavailable."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.masks import build_mask
from tests.helpers.ops.availability import band_unavailable
from tests.helpers.support import ROOT
from tests.ops.triton_versions import PINNED, environment_with

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here"),
]
USUAL = ("3.7.1", "3.9.0")  # of torch 2.13 and 2.15; 3.6.0 is the locked one's, and 3.8.0 lies between
EACH = [version if version in USUAL else pytest.param(version, marks=pytest.mark.slow) for version in PINNED]


def run_with(version: str, *module_and_arguments: str) -> str:
    """The output of a module in a process with this Triton."""
    if version == importlib.import_module("triton").__version__:
        pytest.skip("the installed one, which all other tests use")
    done = subprocess.run(
        [sys.executable, "-m", *module_and_arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment_with(version),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("version", EACH)
@pytest.mark.timeout(1200)  # the first time it fetches a wheel
def test_compiles(version: str) -> None:
    """One build of each Hopper kernel, by this version's own assembler."""
    run_with(version, "tests.ops.band_compiled", "few", "forward", "backward")


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward", "portable"])
@pytest.mark.parametrize("version", PINNED)
@pytest.mark.timeout(3600)
def test_every_build_compiles(version: str, direction: str) -> None:
    run_with(version, "tests.ops.band_compiled", "whole", direction)


@pytest.mark.slow
@pytest.mark.parametrize("version", PINNED)
@pytest.mark.timeout(3600)
def test_portable_kernels_compile_for_other_gpus(version: str) -> None:
    """For sm_80 and sm_100, whose tensor memory and assembler are others."""
    assert "Triton" in run_with(version, "benchmarks.band.portable_builds", "--few")


@pytest.mark.parametrize(
    "version",
    [version if version == "3.7.1" else pytest.param(version, marks=pytest.mark.slow) for version in PINNED],
)  # 3.8 and 3.9 have the same launchers
@pytest.mark.timeout(1200)
def test_launches_are_replayed(version: str) -> None:
    assert run_with(version, "tests.benchmarks.band_replayed").count("replayed") == 3


@pytest.mark.parametrize("version", EACH)
@pytest.mark.timeout(1200)
def test_tests_of_replay_pass(version: str) -> None:
    """As whoever has the torch that `torch.lock` brings would run them."""
    assert " passed" in run_with(
        version, "pytest", "tests/ops/band/replay", "-o", "addopts=", "-p", "no:cacheprovider"
    )


def test_the_page_names_what_spills_more_than_with_the_oldest_version() -> None:
    """A build that got worse under a newer Triton is in the page's table with its bytes."""
    builds = json.loads((ROOT / "tests" / "ops" / "band_builds.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "design" / "triton-versions.md").read_text(encoding="utf-8")
    oldest, *newer = builds.values()
    assert len(oldest) == 35 and all(of.keys() <= oldest.keys() for of in newer)
    for build, taken in oldest.items():
        if any(of.get(build, taken) != taken for of in newer):
            spills = [" / ".join(map(str, of[build][1:])) if build in of else "" for of in builds.values()]
            assert f"| `{build.replace('*', '')}` | {' | '.join(spills)} |" in page, build


UNKNOWN = ("2.3.1", "3.5.0", "3.10.0", "4.0.0+git1234")


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("version", UNKNOWN)
def test_an_unknown_version_is_unavailable(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert band_unavailable() is None
    monkeypatch.setattr("triton.__version__", version)
    refusal = band_unavailable()
    assert (
        refusal is not None
        and version in refusal
        and "install Triton 3.6 to 3.9" in refusal
        and "\n" not in refusal
    )
    assert Registry("kernel").load("band_atomic").available("cuda") == refusal


def problem(**how: Any) -> Problem:
    return Problem(
        build_mask("causal", seqlen=256), 8, 1, 128, torch.bfloat16, torch.device("cuda:0"), False, **how
    )


@pytest.mark.usefixtures("on_a_gpu")
def test_attention_says_what_computes_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.dispatch import call, choice

    assert choice.choose(problem(), True, True, False) == choice.OWN
    monkeypatch.setattr("triton.__version__", "3.10.0")
    with pytest.warns(
        UserWarning, match=r"kernel 'band' is unavailable, and the reference computes .* Triton 3\.10\.0"
    ):
        assert choice.choose(problem(), True, True, False) == choice.REFERENCE
    with pytest.raises(UserError, match=r"Triton 3\.10\.0 is not known to work"):
        call.problem_for(Registry("kernel").load("band"), problem(), False, True)


@pytest.mark.usefixtures("on_a_gpu")
def test_context_parallel_says_what_computes_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.cp.calls.request import CpRequest, _kernel

    def kernel(name: str) -> str:
        return _kernel(
            CpRequest(
                "usp", {}, name, 8, 1, 128, torch.bfloat16, torch.device("cuda:0"), True, "nccl", "first"
            ),
            [build_mask("causal", seqlen=256)],
        )

    assert kernel("auto") == "band"
    monkeypatch.setattr("triton.__version__", "3.10.0")
    with pytest.warns(UserWarning, match=r"'band' is unavailable, and 'naive' computes .* Triton 3\.10\.0"):
        assert kernel("auto") == "naive"
    with pytest.raises(UserError, match=r"Triton 3\.10\.0 is not known to work"):
        kernel("band")


@pytest.mark.usefixtures("on_a_gpu")
def test_the_operator_refuses_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.ops.band.checks import check_device

    q = torch.zeros(1, device="meta")
    monkeypatch.setattr(type(q), "device", torch.device("cuda:0"), raising=False)
    check_device(q)
    monkeypatch.setattr("triton.__version__", "3.10.0")
    with pytest.raises(ValueError, match=r"band attention cannot run here: Triton 3\.10\.0"):
        check_device(q)


@pytest.mark.usefixtures("on_a_gpu")
def test_doctor_and_runs_know_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.lab.cli import doctor

    monkeypatch.setattr("triton.__version__", "3.10.0")
    monkeypatch.setattr(doctor, "device_type", lambda: "cuda")
    assert ("kernel band", "note", band_unavailable()) in doctor._kernels()


def test_records_say_that_launches_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.kernels.backends.band import BandPrepared

    on_cpu = Problem(
        build_mask("causal", seqlen=256),
        8,
        1,
        128,
        torch.bfloat16,
        torch.device("cpu"),
        False,
        records_costs=False,
    )
    assert BandPrepared(on_cpu).notes == []
    monkeypatch.setattr("longca.ops.band.replay.launcher.VERSIONS", ("3.5.",))
    assert "not replayed with Triton" in BandPrepared(on_cpu).notes[0]


def test_without_the_index_a_person_is_told_and_ci_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from tests.ops import triton_versions

    monkeypatch.setattr(triton_versions, "FOLDER", tmp_path / "triton")
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match=r"Triton 3\.9\.0 is not in .* the package index does not answer"
    ):
        environment_with("3.9.0")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(triton_versions.IndexGoneError):
        environment_with("3.9.0")
