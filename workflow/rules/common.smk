# What all stages share: the study, its shards, and the command.
import os
import sys

from snakemake.settings.types import DeploymentMethod

from longca.lab.bench.run.ending import VARIABLE as WORKFLOW
from longca.lab.bench.run.ending import this_process
from longca.lab.bench.run.freshness import (
    BEHIND,
    REST,
    STAMP,
    has_playoffs,
    local_device,
    refresh,
)
from longca.lab.bench.plan.shards import playoff_minutes, shards, shards_of_one_machine
from longca.lab.studies.checkout import COMMIT, described, source
from longca.lab.studies.config import load_config
from longca.lab.studies.select import loadable
from longca.lab.studies.site import MEASURING_RESOURCES, load_site
from longca.lab.code.source import files_digest, source_digest
from longca.lab.studies.study import load_study, study_path
from longca.lab.images.image import check_or_exit, locate, stamped
from longca.lab.images.recipe import fitting
from longca.core.hardware import hardware_files

# runs that outlive this workflow end at their next cell
os.environ[WORKFLOW] = this_process()

# without config/config.yaml, which load_config reads by itself: LONGCA_* variables come between the two
CONFIG = load_config(workflow.config_settings.overwrite_config)
STUDY_FILE = study_path(CONFIG.study)
STUDY = load_study(CONFIG.study)
CELLS, BROKEN = loadable(STUDY.cells())
LEFT_OUT = [*STUDY.left_out, *BROKEN]
SITE = load_site()
RESULTS = CONFIG.results / STUDY.name
STAMPS = RESULTS / "shards"
# measuring jobs that take turns on this machine (the local profile says so) are as well one job: it starts fewer processes
ONE_MACHINE = workflow.resource_settings.resources.get("device") == 1
SHARDS = {
    shard.name: shard
    for shard in (
        shards_of_one_machine(CELLS, measure=STUDY.measure_of)
        if ONE_MACHINE
        else shards(CELLS, CONFIG.shard_minutes, measure=STUDY.measure_of)
    )
}
CONTAINED = (
    SITE.containers
    and DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
)
ON_CPU = CONFIG.device == "cpu" or SITE.gpus_per_node == 0
IMAGE = (
    locate(CONFIG.image or fitting(SITE.gpu_model, on_cpu=ON_CPU))
    if CONTAINED
    else None
)
# `image` is run first; inside the container, records learn from its stamp which image it is
LONGCA = (
    f"env LONGCA_CONTAINER=sha256:$(cut -c-64 {IMAGE.stamp}) python -m longca"
    if IMAGE
    else f"{sys.executable} -m longca"
)
IMAGE_STAMP = [IMAGE.stamp] if IMAGE else []
if IMAGE:
    check_or_exit(IMAGE, CONFIG.image_digest)
    os.environ.setdefault(COMMIT, described(source()))  # there is no Git inside
IMAGE_DIGEST = stamped(IMAGE) if IMAGE else None


def image(wildcards):
    return str(IMAGE.file) if IMAGE else None


def outside(wildcards):
    return None


# over every file that a command runs: what it made is made again when one of them changes
def code_of(command, without=()):
    return source_digest(
        "longca.__main__", f"longca.lab.cli.{command}", without=without
    )


# a finished shard is looked at again when the measuring code changes; `longca run` then measures only what it must
def shard_files(kind):
    return [
        STAMPS / f"{name}{STAMP}"
        for name, shard in SHARDS.items()
        if shard.kind == kind
    ]


# on a cluster a job of its own plays off; on one machine the job that measures all kernels does
PLAYOFF_STAMP = STAMPS / f"playoff{STAMP}"
HAS_PLAYOFF_JOB = not ONE_MACHINE and has_playoffs(STUDY, CELLS)


def playoff_files():
    return [PLAYOFF_STAMP] if HAS_PLAYOFF_JOB else []


# and when its records are not those of today's method. Jobs read this file, too: they must not see what others are about to write
if workflow.is_main_process:
    measuring_device = (
        local_device(CONFIG.device) if ONE_MACHINE and not IMAGE else None
    )
    refresh(
        STAMPS,
        STUDY,
        SHARDS.values(),
        code_of("run"),
        measuring_device,
        IMAGE_DIGEST,
        PLAYOFF_STAMP if HAS_PLAYOFF_JOB else None,
    )


# changes where a stamp is missing beside tables that are there, and with records of cells that the study does not ask for
def rest_of_records(wildcards):
    return [STAMPS / REST] if (STAMPS / REST).exists() else []


# changes where a table or a page is not of the records of now, whatever the times of files say
def behind(name):
    return lambda wildcards: (
        [STAMPS / f"{name}{BEHIND}"] if (STAMPS / f"{name}{BEHIND}").exists() else []
    )


# what tables and pages take from outside of the package: the peak rates of GPUs
HARDWARE = files_digest(hardware_files())


# what a retry asks for: more of it, in a new job
def growing(first):
    return lambda wildcards, attempt: first * attempt


def shard_minutes(wildcards, attempt):
    return (int(SHARDS[wildcards.shard].minutes * 2) + 10) * attempt


def num_cells(wildcards):
    return len(SHARDS[wildcards.shard].cells)


def measuring(name):
    return lambda wildcards, attempt: SITE.measuring_job(
        SHARDS[wildcards.shard].world, attempt
    ).get(name)


def playoff_runtime(wildcards, attempt):
    return (int(playoff_minutes(CELLS, STUDY.playoff) * 2) + 10) * attempt


def playing(name):
    return lambda wildcards, attempt: SITE.measuring_job(1, attempt).get(name)


CPU_JOB = SITE.cpu_job()
MEASURING_JOB = {
    "runtime": shard_minutes,
    "retry": lambda wildcards, attempt: "error" if attempt > 1 else "",
    **{name: measuring(name) for name in MEASURING_RESOURCES},
}


# Measuring jobs enter the image by themselves: with the node's GPUs, and once on each rank, since srun is not inside it
def enter_image():
    if not IMAGE:
        return ""
    gpus = "" if CONFIG.device == "cpu" else "--nv"  # does nothing where no driver is
    arguments = workflow.deployment_settings.apptainer_args
    return f'$(command -v apptainer || command -v singularity) --quiet exec {gpus} --home "$PWD" {arguments} {IMAGE.file} '


def longca_on_one_device(wildcards):
    return enter_image() + LONGCA


def longca_measuring(wildcards):
    launch = SITE.launch(SHARDS[wildcards.shard].world)
    by_srun = f"${{SLURM_JOB_ID:+{launch}}} " if launch else ""
    return by_srun + enter_image() + LONGCA
