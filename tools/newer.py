"""`python -m tools.newer`: packages of torch.lock and of the images' locks that have newer releases.

A package has its newest release by itself, and the newest one that can be installed together with the others
that we ask for: another package may pin an older one. Needs uv and the package index, and changes nothing.
Exit code 2 without them.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

from longca.lab.images.fetch import GLIBC
from longca.lab.images.recipe import Recipe, load_recipe, names
from tools.pages import ROOT
from tools.torch_locks import TORCH

PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", re.MULTILINE)
ALSO = ("triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")  # torch brings them, and they matter
CANNOT = 2


class Lock(NamedTuple):
    """A lock and what it was made from."""

    name: str
    requirements: tuple[str, ...]
    python: str
    versions: dict[str, str]


class Row(NamedTuple):
    """A package that is not the newest one."""

    lock: str
    package: str
    locked: str
    together: str
    """the newest that can be installed with the others"""
    alone: str


def main() -> int:
    try:
        rows = [row for lock in locks() for row in newer(lock)]
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or ["it says nothing"]
        reason = next((line for line in lines if "Failed to fetch" in line), lines[0]).strip()
        todo = "Install uv, and see that the index can be reached"
        print(f"newer: uv cannot look up releases: {reason}. {todo}", file=sys.stderr)
        return CANNOT
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())
    print(f"{len(rows)} have newer releases: lock, package, locked, newest with the others, newest alone")
    return 0


def locks() -> list[Lock]:
    """torch.lock, and those of the images that have GPU packages."""
    text = (ROOT / "torch.lock").read_text(encoding="utf-8")
    images = [recipe for recipe in map(load_recipe, names()) if not recipe.index]
    return [Lock("torch.lock", (f"torch=={TORCH}",), "3.11", versions(text)), *map(_lock_of, images)]


def _lock_of(recipe: Recipe) -> Lock:
    text = recipe.lock.read_text(encoding="utf-8")
    return Lock(recipe.name, recipe.requirements, recipe.python, versions(text))


def versions(lock: str) -> dict[str, str]:
    """Package → pinned version."""
    return dict(PINNED.findall(lock))


def newer(lock: Lock) -> list[Row]:
    """The requirements of a lock, and what matters of torch's own, that are not the newest ones.

    Raises:
        subprocess.CalledProcessError: uv cannot resolve them.
        OSError: there is no uv.
    """
    wanted = {re.split(r"[=<>]", requirement)[0] for requirement in lock.requirements}
    packages = sorted(wanted | {name for name in ALSO if name in lock.versions})
    # at least what is locked: else a resolver may take an old torch to have something else newer
    together = versions(resolved([pin.replace("==", ">=") for pin in lock.requirements], lock.python))
    alone = versions(resolved(packages, lock.python, "--no-deps"))
    return [
        Row(lock.name, name, lock.versions[name], together.get(name, "not needed"), alone[name])
        for name in packages
        if alone[name] != lock.versions[name]
    ]


def resolved(requirements: Iterable[str], python: str, *options: str) -> str:
    """The newest releases that fit these requirements on the images' Linux, as a lock without hashes.

    Wheels alone: images are built from them.
    """
    command = [
        "uv",
        "pip",
        "compile",
        "-",
        "-q",
        "--no-header",
        "--no-annotate",
        "--python-version",
        python,
        "--python-platform",
        f"x86_64-manylinux_2_{GLIBC[python]}",
        "--only-binary",
        ":all:",
        *options,
    ]
    asked = "\n".join(requirements)
    return subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
