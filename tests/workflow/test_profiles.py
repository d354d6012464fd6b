"""The workflow is sound in every profile, and clean by Snakemake's own linter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.forked import snakemake

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("corpora", "masks", "kernels", "cp", "collect", "report")


@pytest.mark.parametrize("profile", ["workflow/profiles/local", "slurm"])
@pytest.mark.parametrize("study", ["quick", "paper"])
@pytest.mark.slow  # below are one of each profile: by make, and with a site
def test_dry_run(profile, study, with_apptainer, tmp_path):
    done = snakemake(
        "--profile",
        profile,
        "--dry-run",
        "--config",
        f"study={study}",
        f"results={tmp_path}",
        PATH=with_apptainer,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in STAGES:
        # on one machine one job measures both
        is_due = stage != "kernels" or profile == "slurm"
        assert (f"\n{stage} " in done.stdout) == is_due, f"jobs of stage {stage}"


def test_make_reports_the_study_that_it_is_given(tmp_path):
    """Snakemake keeps the last `--config` alone, and the README's ARGS have one; a path may have blanks."""
    study = tmp_path / "a folder" / "my study.yaml"
    study.parent.mkdir()
    study.write_text("grids: [{kernel: [naive, sdpa], mask: causal, seqlen: 64, heads: '2:1'}]")
    environ = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }  # of `make test`
    done = subprocess.run(
        [
            "make",
            "-o",
            "setup",
            "report",
            f"STUDY={study}",
            f"ARGS=--dry-run --config results={tmp_path}/results",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\nkernels +1\n", done.stdout) and "\ncp " not in done.stdout, done.stdout
    assert done.stdout.endswith("/results/my study/report.html\n")


WIDE = """
grids:
  - {kernel: [fa3, naive], mask: causal_document, seqlen: 8K, heads: "64:8"}
  - {kind: cp, strategy: ring_p2p, kernel: fa3, world: [8, 96], mask: causal_document, seqlen: 96K,
     heads: "64:8"}
"""


def test_a_site_and_settings_are_told_in_the_environment(tmp_path):
    site = {
        "LONGCA_SITE_ACCOUNT": "bench",
        "LONGCA_SITE_GPU_MODEL": "h100",
        "LONGCA_SITE_GPUS_PER_NODE": "4",
        "LONGCA_SITE_CONTAINERS": "off",
    }
    study = tmp_path / "wide.yaml"  # the study `paper` has as many ranks, and 540 jobs
    study.write_text(WIDE)
    done = snakemake(
        "--profile", "slurm", "--dry-run", "--config", f"results={tmp_path}", LONGCA_STUDY=str(study), **site
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/wide/report.html" in done.stdout
    assert all(f"\n{stage} " in done.stdout for stage in STAGES) and "\nimage " not in done.stdout
    jobs = [line for line in done.stdout.splitlines() if "resources:" in line and "retry=" in line]
    assert jobs and all("slurm_account=bench" in job and "gres=gpu:h100:" in job for job in jobs)
    widest = next(job for job in jobs if "nodes=24," in job)
    assert "tasks_per_node=4" in widest and "mpi=srun" in widest


@pytest.mark.parametrize(
    ("site", "image"),
    [({}, "hopper-cu130"), ({"GPU_MODEL": "A100"}, "ampere-cu130"), ({"GPUS_PER_NODE": "0"}, "cpu")],
)
@pytest.mark.sample(3)
def test_jobs_of_a_cluster_work_in_the_image_of_its_gpus(site, image, with_apptainer, tmp_path):
    """The image's rule is run in any case, whether the image is there or not."""
    study = tmp_path / "study.yaml"
    study.write_text("grids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1'}]")
    done = snakemake(
        "--profile",
        "slurm",
        "--dry-run",
        "--printshellcmds",
        "--forcerun",
        "image",
        "--config",
        f"study={study}",
        f"results={tmp_path}",
        PATH=with_apptainer,
        **{f"LONGCA_SITE_{name}": value for name, value in site.items()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"image get {image} " in done.stdout and f"images/{image}.sif" in done.stdout


def test_a_wrong_site_is_refused():
    done = snakemake("--profile", "slurm", "--dry-run", LONGCA_SITE_ACOUNT="bench")
    assert done.returncode != 0 and "did you mean 'LONGCA_SITE_ACCOUNT'" in done.stdout + done.stderr


def test_slurm_is_found_by_its_bare_name():
    assert (ROOT / "slurm").is_symlink() and (ROOT / "slurm" / "config.yaml").exists()


def test_no_profile_is_loaded_unasked():
    assert not (ROOT / "workflow/profiles/default").exists() and not (ROOT / "profiles/default").exists()


def test_lint():
    done = snakemake("--lint", "--profile", "workflow/profiles/local")
    assert done.returncode == 0, done.stdout + done.stderr


def test_format():
    snakefmt = shutil.which("snakefmt", path=str(Path(sys.executable).parent)) or "snakefmt"
    done = subprocess.run(
        [snakefmt, "--check", "Snakefile", "workflow"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_snakefile_is_short():
    assert len((ROOT / "Snakefile").read_text().splitlines()) < 40


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("study=quik", "quick"), ("shard_minutes=-1", "shard_minutes"), ("shart_minutes=3", "shart_minutes")],
)
@pytest.mark.sample(3)
def test_bad_settings_are_refused(setting, expected):
    done = snakemake("--profile", "workflow/profiles/local", "--dry-run", "--config", setting)
    assert done.returncode != 0
    assert expected in done.stdout + done.stderr
