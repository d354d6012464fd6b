"""The CPU image, really built, and a study in it. Not part of `make test`: `make test-images` runs it, or
says why it cannot."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.images.image import check, locate
from longca.lab.images.obtain import obtain
from longca.lab.images.recipe import load_recipe
from longca.lab.images.render import lock_digest
from tests.lab.images.built import built
from tests.support import ROOT, TINY

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def digest() -> str:
    return built("cpu")[1]


@pytest.fixture
def workflow(tmp_path: Path):
    """workflow(*arguments) → the finished Snakemake, in a copy of the project's folders that the container
    can see."""
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)

    def run(*settings: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "snakemake",
            "--profile",
            "workflow/profiles/local",
            "--sdm",
            "apptainer",
            f"--apptainer-args=--bind {tmp_path}",
            "--config",
            f"study={study}",
            f"results={tmp_path / 'results'}",
            "device=cpu",
            "image=cpu",
            *settings,
        ]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "CI": "1"}, check=False
        )

    return run


def test_a_study_in_the_image(digest, workflow, tmp_path):
    done = workflow()
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "results/tiny/records.json").read_text())["records"]
    of_cells = [record for record in records if not record.get("playoff") and not record.get("repeat")]
    assert len(of_cells) == 9 and len(records) > 9, "play-offs and repeats ran in the image as well"
    assert {record["outcome"]["status"] for record in records} == {"ok"}
    software = [record["environment"]["software"] for record in records]
    assert {facts["container"] for facts in software} == {digest}
    assert {facts["lock"] for facts in software} == {lock_digest(load_recipe("cpu"))}
    assert {facts["packages"]["torch"] for facts in software} == {"2.13.0+cpu"}
    if (ROOT / ".git").exists():
        head = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert {record["environment"]["source"]["git_sha"] for record in records} == {head}
    assert digest in (tmp_path / "results/tiny/report.html").read_text()
    again = workflow()
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr


def test_another_image_is_refused(digest, workflow):
    done = workflow(f"image_digest=sha256:{'ab' * 32}")
    assert done.returncode == 2
    assert [
        line for line in done.stderr.splitlines() if "is not the requested one" in line and digest in line
    ]


def test_the_whole_image_is_still_the_one_that_was_built(digest):
    assert check(locate("cpu"), thorough=True) == digest


def test_the_contents_of_the_image(digest, tmp_path):
    """By the commands of docs/guide/containers.md."""
    commands = ("image contents cpu > cpu.json", "image sbom cpu > bill.json", "image diff cpu cpu.json")
    script = " && ".join(f"{sys.executable} -m longca {command}" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0 and "cpu and cpu.json are the same" in " ".join(done.stdout.split()), (
        done.stdout + done.stderr
    )
    assert json.loads((tmp_path / "cpu.json").read_text())["packages"]["torch"] == "2.13.0+cpu"
    assert json.loads((tmp_path / "bill.json").read_text())["bomFormat"] == "CycloneDX"


def test_a_signed_image_is_used_and_another_is_not(digest, tmp_path):
    """Real signatures of a small image."""
    (tmp_path / "root/bin").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "root/bin/true")
    file = tmp_path / "signed.sif"
    run = partial(subprocess.run, check=True, capture_output=True)
    run(["apptainer", "build", file, tmp_path / "root"])
    for name in ("ours", "theirs"):
        run(["openssl", "genrsa", "-out", tmp_path / f"{name}.pem", "3072"])
        run(["openssl", "rsa", "-in", tmp_path / f"{name}.pem", "-pubout", "-out", tmp_path / f"{name}.pub"])
    with pytest.raises(UserError, match="signature not found"):
        obtain(locate(str(file)), key=str(tmp_path / "ours.pub"))
    run(["apptainer", "sign", "--key", tmp_path / "ours.pem", file])
    assert obtain(locate(str(file)), key=str(tmp_path / "ours.pub")).startswith("sha256:")
    with pytest.raises(UserError, match="is not signed with"):
        obtain(locate(str(file)), key=str(tmp_path / "theirs.pub"))
    locate(str(file)).stamp.unlink()
