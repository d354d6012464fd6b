"""Images on a cluster: every job works in it, each rank enters it on its own node, and another image is
refused."""

import os
import shutil

import pytest

from longca.lab.images.recipe import load_recipe
from longca.lab.images.render import lock_digest
from tests.helpers.images.built import built
from tests.helpers.support import ROOT
from tests.slurm.cluster.space import UID
from tests.slurm.outcome import differences, ended_well, slow_cells, states
from tests.slurm.project import Project
from tests.slurm.studies import INSIDE

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
APPTAINER = ("--sdm", "apptainer")
CPU = "image=cpu"
TIMER = "control"  # its calls of known length come out too long on a busy machine, and say so


@pytest.fixture(scope="module")
def digest(new_cluster) -> str:
    return built("cpu")[1]


def give_image(project: Project, name: str = "cpu") -> None:
    """A copy of its own, which the plain user can read."""
    place = project.folder / f"images/{name}.sif"
    place.parent.mkdir()
    shutil.copy(built(name)[0].file, place)
    for path in (place.parent, place):
        os.chown(path, UID, UID)


def test_ranks_in_the_image(digest, cluster, scenario):
    """In the CPU image: every stage, and context parallelism over two nodes of two ranks. On Slurm by
    default: nothing names an image"""
    by_slurm = Project.new(cluster, "inside-slurm", INSIDE)
    locally = Project.new(cluster, "inside-local", INSIDE)
    for project in (by_slurm, locally):
        give_image(project)
    with scenario(cluster) as jobs:
        by_slurm.run(settings=("device=cpu",), containers=None)
        assert set(states(jobs())) == {"COMPLETED"}
    locally.run(*APPTAINER, profile="workflow/profiles/local", settings=(CPU,))
    assert not differences(by_slurm, locally)
    records = by_slurm.records()
    assert {record["outcome"]["status"] for record in records} == {"ok"}
    software = [record["environment"]["software"] for record in records]
    assert {(facts["container"], facts["lock"]) for facts in software} == {
        (digest, lock_digest(load_recipe("cpu")))
    }
    hosts = [
        {node["hostname"] for node in record["environment"]["nodes"]}
        for record in records
        if record["cell"]["kind"] == "cp"
    ]
    assert hosts and all(len(host) == 2 for host in hosts)


@pytest.mark.slow
def test_another_image(digest, accidents, cluster, scenario):
    """An image whose hash is wrong: refused at the start; by each job, where it is replaced while others
    work"""
    project = accidents("image")
    give_image(project)
    place = project.folder / "images/cpu.sif"
    with scenario(cluster) as jobs:
        project.run(*APPTAINER, "--until", "image", settings=(CPU,))
        output = project.start(*APPTAINER, settings=(CPU, f"image_digest=sha256:{'ab' * 32}")).finish(code=2)
        assert [line for line in output.splitlines() if "is not the requested one" in line and digest in line]
        assert not jobs(), "nothing was sent"
        run = project.start(*APPTAINER, "--retries", "0", settings=(CPU,))
        project.wait_for(lambda: slow_cells(project), run)
        place.rename(place.with_suffix(".right"))
        place.write_text("another")
        output = run.finish(code=2)
        assert output.splitlines()[-1].startswith("longca: Image ")
        log = next((project.folder / "results/slurm-logs/rule_playoff").iterdir()).read_text()
        for printed in (output, log):
            assert [
                line for line in printed.splitlines() if "is not the obtained one" in line and digest in line
            ], printed
        assert "FAILED" in states(jobs(), "playoff")
        kept = project.cells()
        place.unlink()
        place.with_suffix(".right").rename(place)
        project.run(*APPTAINER, settings=(CPU,))
        ended_well(project, kept)


@pytest.mark.hopper
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quick_study_in_the_hopper_image(new_cluster, cluster, scenario):
    """The quick study in the Hopper image on nodes without a GPU: every record and the page name it"""
    _, digest = built("hopper-cu130")
    project = Project.new(cluster, "inside-hopper", (ROOT / "config/studies/quick.yaml").read_text())
    give_image(project, "hopper-cu130")
    with scenario(cluster) as jobs:
        project.run(*APPTAINER, settings=("image=hopper-cu130", "device=cpu"), timeout_s=3000)
        assert set(states(jobs())) == {"COMPLETED"}
    records = project.records()
    software = [record["environment"]["software"] for record in records]
    assert {(facts["container"], facts["lock"]) for facts in software} == {
        (digest, lock_digest(load_recipe("hopper-cu130")))
    }
    actual = {(record["outcome"]["status"], record["cell"]["kernel"]) for record in records}
    assert not {
        (status, kernel)
        for status, kernel in actual
        if status not in ("ok", "unsupported", "unavailable") and kernel != TIMER
    }
    assert digest in (project.results / "report.html").read_text()
