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
