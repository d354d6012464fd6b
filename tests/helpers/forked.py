"""Processes that are forked from one server, which imports once what takes seconds: torch, and Snakemake."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.support import ROOT

PRELOADED = [
    "torch",
    "torch.distributed",
    "numpy",
    "pydantic",
    "pytest",
    "hypothesis",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.tensor.experimental",
    "longca.cp.planned",
    "tests.helpers.kernels.cases",
    "snakemake.cli",
    "tests.helpers.frozen",
]


def start_server() -> None:
    """Unless it runs."""
    with contextlib.chdir(ROOT):  # where it finds this checkout
        multiprocessing.set_forkserver_preload(PRELOADED)
        multiprocessing.forkserver.ensure_running()


def snakemake(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m snakemake` in this checkout, finished."""
    start_server()
    with tempfile.TemporaryDirectory() as name:
        streams = Path(name, "stdout"), Path(name, "stderr")
        process = multiprocessing.get_context("forkserver").Process(
            target=_snakemake, args=(arguments, {**os.environ, **env}, streams)
        )
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(
            arguments, process.exitcode, *(stream.read_text() for stream in streams)
        )


def _snakemake(arguments: tuple[str, ...], environ: dict[str, str], streams: tuple[Path, Path]) -> None:
    os.chdir(ROOT)
    os.environ.clear()  # a server has that of its start
    os.environ.update(environ)
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["snakemake", *arguments]
    from snakemake.cli import main

    main()
