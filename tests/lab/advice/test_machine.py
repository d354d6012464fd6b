"""The profile of messages that is taken where none is given."""

import json
import subprocess
import sys

import pytest

from longca.core.errors import UserError
from longca.lab.advice.machine import USUAL_NETWORK, machine_of
from longca.lab.advice.ranking import advise
from tests.helpers.support import ROOT


@pytest.mark.parametrize(
    ("gpu", "profile", "why"),
    [
        ("H100 SXM", "h100-copy-engines", "that of H100 SXM, since none is given"),
        ("h200", USUAL_NETWORK, "that of H200 SXM, since none is given"),
        ("A100 SXM 80 GB", "a100-ib200", "that of A100 SXM 80 GB, since none is given"),
        (None, USUAL_NETWORK, "since neither profile nor GPU is given"),
        ("B200", USUAL_NETWORK, "of H200 SXM, since config/hardware.yaml has no profile of B200"),
    ],
)
def test_a_gpu_has_its_own_profile(gpu: str | None, profile: str, why: str):
    machine = machine_of(None, gpu, None, None)
    assert machine.network.name == profile
    assert machine.assumed_profile.startswith(f"messages by profile {profile}")
    assert why in machine.assumed_profile and "--profile names another" in machine.assumed_profile


@pytest.mark.parametrize(
    ("gpu", "gpus", "node", "profile", "why"),
    [
        ("h100", 8, None, "h100-copy-engines", "messages by profile h100-copy-engines, that of H100 SXM"),
        ("h100", 12, None, "h100-ib400", "messages between nodes by profile h100-ib400, that of H100 SXM"),
        ("h100", 8, 4, "h100-ib400", "messages between nodes"),
        ("h200", 16, None, "h200-nccl", "messages between nodes by profile h200-nccl, that of H200 SXM"),
        ("h200", 16, 16, USUAL_NETWORK, "messages by profile"),
        ("A100 SXM 80 GB", 16, None, "a100-ib200", "messages between nodes"),
        (None, 16, None, "h200-nccl", "since neither profile nor GPU is given"),
        ("B200", 16, None, "h200-nccl", "no profile of B200"),
    ],
)
def test_more_gpus_than_a_node_have_a_profile_between_nodes(
    gpu: str | None, gpus: int, node: int | None, profile: str, why: str
):
    """One that was fitted inside a node says nothing about messages that leave it."""
    machine = machine_of(None, gpu, node, None, gpus)
    assert machine.network.name == profile and why in machine.assumed_profile
    assert machine_of("h100-copy-engines", gpu, None, None, 64).network.name == "h100-copy-engines", (
        "as given"
    )


def test_python_and_the_command_take_the_same_profile_between_nodes():
    asked = {"kernels": ["band"], "strategies": ["ring_allgather"], "direction": "fwd", "seqlen": "16K"}
    without = advise("causal", gpus=12, gpu="h100", **asked)
    named = advise("causal", gpus=12, gpu="h100", profile="h100-ib400", **asked)
    assert without.defaults["profile"] == "h100-ib400"
    assert without.best.prediction.seconds == named.best.prediction.seconds


def test_an_unknown_gpu_is_answered_with_all_that_are_known():
    """The nearest in letters is another model: 'B200' for "h300"."""
    with pytest.raises(UserError) as error:
        machine_of(None, "h300", None, None)
    assert all(name in str(error.value) for name in ("Unknown GPU 'h300'", "H100 SXM", "H200 SXM", "B200"))
    assert "did you mean" not in str(error.value)


def test_a_profile_that_is_given_is_not_assumed_and_has_its_own_gpu():
    machine = machine_of("h100-ib400", None, 4, None)
    assert (machine.network.name, machine.gpu.name) == ("h100-ib400", "H100 SXM")
    assert machine.network.ranks_per_node == 4 and not machine.assumed_profile
    with pytest.raises(UserError, match="Argument 'gpu' is 3"):
        machine_of(None, 3, None, None)  # type: ignore[arg-type]


def test_answers_name_the_profile_that_was_assumed():
    asked = {"kernels": ["band"], "strategies": ["ring_allgather"], "direction": "fwd"}
    advice = advise("causal", seqlen="16K", gpus=2, gpu="H100 SXM", **asked)
    plain = advice.to_dict()
    assert plain["profile"] == "h100-copy-engines" and "that of H100 SXM" in plain["profile_assumed"]
    assert f"Assumed: {plain['profile_assumed']}." in advice._repr_html_()
    assert not advise("causal", seqlen="16K", gpu="H100 SXM", direction="fwd").question.assumed_profile
    arguments = ["causal", "-s", "16K", "-w", "2", "--gpu", "H100 SXM", "-k", "band", "-d", "fwd"]
    command = [sys.executable, "-m", "longca", "advise", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    said = " ".join(done.stdout.split())
    assert "Assumed: messages by profile h100-copy-engines, that of H100 SXM, since none is given" in said
    given = [*command, "--profile", "h100-ib400", "--json"]
    done = subprocess.run(given, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout)["profile_assumed"] == ""
