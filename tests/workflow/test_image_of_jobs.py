"""Under `--sdm apptainer` every stage works in the image; jobs that measure get the GPUs in there."""

import re
from functools import cache

import pytest

from tests.helpers.forked import snakemake

KERNELS, ONE_NODE, TWO_NODES, ALL_HERE = (
    f"run quick --shard {shard}" for shard in ("kernel-", "cp-w2", "cp-w4", "all-0")
)
MEASURING = {"slurm": (KERNELS, ONE_NODE, TWO_NODES), "workflow/profiles/local": (ALL_HERE,)}
OTHERS = ("data sample", "data masks", "export", "report")


@pytest.fixture(scope="module")
def commands(with_apptainer: str, tmp_path_factory: pytest.TempPathFactory):
    """commands(profile, *settings) → stage: what stands before `env … longca`, as a dry run prints it."""
    tmp_path = tmp_path_factory.mktemp("image")
    (tmp_path / "some.sif").write_text("")

    @cache
    def dry_run(profile: str, *settings: str) -> dict[str, str]:
        by_hand = () if profile == "slurm" else ("--sdm", "apptainer")  # on a cluster it is the default
        done = snakemake(
            "--profile",
            profile,
            "--dry-run",
            "--quiet",
            "host",
            "--printshellcmds",
            *by_hand,
            "--apptainer-args=--bind /data",
            "--config",
            "study=quick",
            f"results={tmp_path}",
            f"image={tmp_path}/some.sif",
            *settings,
            PATH=with_apptainer,
            LONGCA_SITE_GPUS_PER_NODE="2",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        texts = re.findall(
            r"^ *(?:Shell command: )?(.*)env LONGCA_CONTAINER=\S+ \S+ \S+ python -m longca (.*)",
            done.stdout,
            re.M,
        )
        return {
            stage: next(enter for enter, run in texts if run.startswith(stage))
            for stage in (*OTHERS, *MEASURING[profile])
        }

    return dry_run


@pytest.mark.parametrize(
    "profile", [pytest.param("workflow/profiles/local", marks=pytest.mark.slow), "slurm"]
)
def test_jobs_that_measure_get_the_gpus(commands, profile):
    entering = commands(profile)
    for stage in (*OTHERS, *MEASURING[profile]):
        measures = stage in MEASURING[profile]
        assert ("exec --nv --home" in entering[stage]) == measures, (
            "the others are put into it by Snakemake, without GPUs"
        )
        assert ("--bind /data" in entering[stage]) == measures, "Snakemake's own arguments hold here, too"


def test_ranks_of_several_nodes_enter_it_each(commands):
    entering = commands("slurm")
    by_srun = "${SLURM_JOB_ID:+srun --nodes=2 --ntasks-per-node=2 --cpus-per-task=8} "
    assert entering[TWO_NODES] == by_srun + entering[ONE_NODE]


def test_no_gpus_where_none_are_wanted(commands):
    assert not any("--nv" in enter for enter in commands("slurm", "device=cpu").values())
