"""Texts that benchmarks share: the machine of a caption, percent, milliseconds, and an option that lists
names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def machine(device: torch.device) -> str:
    """Names the device and the versions that a number depends on."""
    from longca.lab.bench.measure.environment import device_name, node, software
    from longca.lab.studies.checkout import source

    packages = software().packages
    sha = source().git_sha
    driver = node(device).gpu.get("driver")
    facts = [
        device_name(device),
        f"driver {driver}" if driver else "",
        *(f"{name} {packages[name]}" for name in ("torch", "triton") if name in packages),
        f"commit {sha[:9]}" if sha else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def percent(value: float, signed: bool = True) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f} %"


def milliseconds(value: float) -> str:
    """Shows four digits."""
    return f"{value:#.4g}".rstrip(".")


def names(text: str, known: Sequence[str]) -> list[str]:
    """Splits a comma-separated list of known names; the result is in the order of `known`.

    Raises:
        argparse.ArgumentTypeError: a name is not known; argparse shows the text.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not among {', '.join(known)}")
    return [name for name in known if name in given]
