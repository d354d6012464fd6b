"""The versions of Triton that band attention works with. Imports neither torch nor, by itself, Triton."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

# Every build is compiled with the last release of each (`tests/ops/band/test_versions.py`). GPUs have run
# 3.6 alone.
KNOWN = ("3.6", "3.7", "3.8", "3.9")
REMEDY = (
    f"install Triton {KNOWN[0]} to {KNOWN[-1]}, best by one of torch 2.11 to 2.15, each of which "
    f"brings one of them"
)


def unusable_triton() -> str | None:
    """The reason why band attention cannot run with the Triton that is installed, and the remedy; None if it
    can. Compiles nothing."""
    version = triton_version()
    if version is None:
        return f"Triton's version is unknown: {REMEDY}"
    if not version.startswith(tuple(f"{known}." for known in KNOWN)):
        return f"Triton {version} is not known to work: {REMEDY}"
    try:
        importlib.import_module("longca.ops.band.sm90.compat")
    except Exception as error:  # whatever a build of Triton, or a broken one, makes of names that it lacks
        return f"Triton {version} lacks a function that the kernels need ({error}): {REMEDY}"
    return None


def triton_version() -> str | None:
    """The version of the Triton that is imported, or would be; None if it does not say one."""
    if "triton" in sys.modules:
        return getattr(sys.modules["triton"], "__version__", None)
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    version = re.search(
        r"^__version__ = ['\"]([^'\"]+)['\"]", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE
    )
    return version[1] if version else None
