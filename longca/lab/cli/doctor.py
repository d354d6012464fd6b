"""The command `longca doctor`: checks if this machine can measure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from longca.core import Registry
from longca.lab.cli.list import device_type
from longca.lab.cli.options import Json, line_width, print_json, print_table, print_text
from longca.lab.studies import load_config


def command(as_json: Json = False) -> None:
    """Check this machine: Python, torch, GPUs, kernels, space. Exit code 3 if nothing can be measured."""
    machine = [*_software(), *_gpus(), *_room()]
    kernels = _kernels()
    checks = [*machine, *kernels]
    if as_json:
        print_json([dict(zip(("check", "state", "detail"), check, strict=True)) for check in checks])
    else:
        print_text(_finding(machine, kernels))
        print_table("", ["check", "state", "detail"], [list(check) for check in machine])
        _print_kernels(kernels)
    if any(state == "fails" for _, state, _ in checks):
        raise typer.Exit(3)


Check = tuple[str, str, str]  # name, "ok" | "note" | "fails", detail


def _finding(machine: list[Check], kernels: list[Check]) -> str:
    """The conclusion: can it measure, on what, and with how many kernels?"""
    failing = [f"{name} ({detail})" for name, state, detail in machine if state == "fails"]
    if failing:
        return f"This machine cannot measure: {'; '.join(failing)}."
    num_gpus = sum(name.startswith("GPU ") for name, _, _ in machine)
    devices = f"{num_gpus} GPU{'s' if num_gpus > 1 else ''}" if num_gpus else "its CPU"
    return (
        f"This machine can measure on {devices}: {sum(state == 'ok' for _, state, _ in kernels)} of "
        f"{len(kernels)} kernels run here."
    )


def _print_kernels(kernels: list[Check]) -> None:
    """The kernels that run here, and why the others do not: a paragraph for each reason."""
    import textwrap

    groups: dict[str, list[str]] = {}
    for check, state, detail in kernels:
        reason = "run here" if state == "ok" else f"not here, {detail.removeprefix('it ')}"
        groups.setdefault(reason, []).append(check.removeprefix("kernel "))
    print("Kernels")
    for reason, names in sorted(groups.items(), key=lambda item: item[0] != "run here"):
        print(
            textwrap.fill(
                f"{reason}: {', '.join(names)}", line_width(), initial_indent="  ", subsequent_indent="    "
            )
        )


def _software() -> list[Check]:
    checks: list[Check] = [("python", "ok", f"{sys.version.split()[0]}, {sys.executable}")]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import torch; print(torch.__version__, torch.version.cuda or 'CPU build')",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    detail = (
        done.stdout.strip()
        if done.returncode == 0
        else (done.stderr.strip().splitlines() or ["does not start"])[-1]
    )
    checks.append(("torch", "ok" if done.returncode == 0 else "fails", detail))
    tools = {
        "snakemake": "runs the workflow",
        "sbatch": "runs it on a Slurm cluster",
        "apptainer": "runs it in containers",
        "chromium": "tests the page",
    }
    for tool, purpose in tools.items():
        path = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
        checks.append((tool, "ok" if path else "note", path or f"not found: {purpose}"))
    return checks


def _gpus() -> list[Check]:
    if device_type() == "cpu":
        return [("GPU", "note", "none: cells run on the CPU")]
    import pynvml

    checks: list[Check] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        facts = [
            f"{pynvml.nvmlDeviceGetName(handle)}, {memory.total / 2**30:.0f} GiB, driver "
            f"{pynvml.nvmlSystemGetDriverVersion()}",
            f"SM clock {_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)} MHz",
            f"power limit {_ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)} mW",
        ]
        others = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        busy = len(others) if isinstance(others, list) else 0
        checks.append(
            (
                f"GPU {index}",
                "note" if busy else "ok",
                ", ".join(facts) + (f"; {busy} other processes use it" if busy else ""),
            )
        )
    return checks


def _ask(question: Any, *arguments: Any) -> Any:
    import pynvml

    try:
        return question(*arguments)
    except pynvml.NVMLError as error:  # not every GPU or container answers every question
        return f"unknown ({error})"


def _room() -> list[Check]:
    from longca.lab.bench import num_cores

    results = load_config().results
    existing = next(folder for folder in (results, *results.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    state = "fails" if not writable else "note" if free < 2**30 else "ok"
    return [
        (
            "results",
            state,
            f"{results.absolute()}: {free / 2**30:.1f} GiB free" + ("" if writable else ", not writable"),
        ),
        ("cores", "ok", f"{num_cores()}, load {os.getloadavg()[0]:.1f}"),
    ]


def _kernels() -> list[Check]:
    device = device_type()
    checks = []
    for kernel in Registry("kernel").load_all():
        reason = kernel.available(device)
        checks.append((f"kernel {kernel.name}", "note" if reason else "ok", reason or kernel.summary))
    return checks
