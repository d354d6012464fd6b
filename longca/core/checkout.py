"""The version of the package and of its Git checkout, and the project: the folder whose `config` is in
force."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core.plugin import PACKAGE_ROOT
from longca.core.version import VERSION

if TYPE_CHECKING:
    from longca.core.record import Source

ROOT = PACKAGE_ROOT.parent  # of the checkout, of a copy of it, or of an unpacked bundle
# for a copy of a checkout: `git describe --always --abbrev=40 --exclude '*' --dirty` of its origin
COMMIT = "LONGCA_COMMIT"
COMMIT_FILE = "COMMIT"  # the same as a file in the root: bundles have it
DIRTY = "-dirty"
MARK = Path("config/studies")  # marks a project folder


@functools.cache
def source() -> Source:
    """The commit from `LONGCA_COMMIT`, else from the checkout, else from the file `COMMIT`."""
    from longca.core.record import Source

    sha, dirty = _commit(ROOT)
    return Source(version=VERSION, git_sha=sha, git_dirty=dirty)


def described(source: Source) -> str:
    """The commit in the format of `LONGCA_COMMIT`; empty if unknown."""
    return f"{source.git_sha}{DIRTY if source.git_dirty else ''}" if source.git_sha else ""


def git(root: Path, *args: str) -> str | None:
    """The output of a Git command; None without Git, or if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit, and True if files were changed since."""
    told = os.environ.get(COMMIT)
    if not told and (root / ".git").exists():
        status, sha = (
            git(root, "status", "--porcelain", "--untracked-files=no"),
            git(root, "rev-parse", "HEAD"),
        )
        return (None, None) if status is None or sha is None else (sha, bool(status))
    if not told and (root / COMMIT_FILE).is_file():
        told = (root / COMMIT_FILE).read_text(encoding="utf-8").strip()
    return (told.removesuffix(DIRTY), told.endswith(DIRTY)) if told else (None, None)


def project_root() -> Path:
    """The working folder or its nearest parent that is a project; else the checkout of the package; else the
    working folder.

    The working folder is `Path()`, so that messages show relative paths.
    """
    here = Path.cwd()
    if (here / "config").is_dir():
        return Path()
    above = next((folder for folder in here.parents if (folder / MARK).is_dir()), None)
    if above is not None:
        return above
    return ROOT if (ROOT / MARK).is_dir() else Path()


def in_project(path: Path) -> Path:
    """The path of a file or folder of the project."""
    return project_root() / path


def home_of_results() -> Path:
    """The base of a relative results folder: the project around the working folder, or else the working
    folder."""
    root = project_root()
    return root if Path.cwd().is_relative_to(root.absolute()) else Path()
