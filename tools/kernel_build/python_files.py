"""Python files of a source package, copied beside its extension with the note that pip and an SBOM read."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path


def install(
    package: str, version: str, paths: Iterable[Path], site: Path, left_out: Iterable[str] = ()
) -> None:
    """Copy files and folders into `site` and note the package there. What is in `left_out` is not copied."""
    for path in paths:
        if path.is_dir():
            shutil.copytree(
                path,
                site / path.name,
                ignore=shutil.ignore_patterns(*left_out, "__pycache__"),
                dirs_exist_ok=True,
            )
        else:
            shutil.copy(path, site)
    note = site / f"{package}-{version}.dist-info"
    note.mkdir(parents=True, exist_ok=True)
    (note / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n"
    )
    (note / "INSTALLER").write_text("kernel_build\n")


def version_of(file: Path) -> str:
    """The `__version__` that a Python file sets."""
    match = re.search(r'^__version__ = "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None, f"{file} sets no __version__"
    return match[1]
