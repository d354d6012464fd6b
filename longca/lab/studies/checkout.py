"""The version of the package and of its Git checkout, and the folders of studies and results."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import VERSION
from longca.core.reading import MARK, ROOT, SHIPPED, in_project, origin, project_root

if TYPE_CHECKING:
    from longca.lab.studies.record import Source

# for a copy of a checkout: `git describe --always --abbrev=40 --exclude '*' --dirty` of its origin
COMMIT = "LONGCA_COMMIT"
COMMIT_FILE = "COMMIT"  # the same as a file in the root of a bundle, or in what a wheel holds
DIRTY = "-dirty"


@functools.cache
def source() -> Source:
    """The commit as `LONGCA_COMMIT` gives it, or else the checkout itself, or else a file `COMMIT`."""
    from longca.lab.studies.record import Source

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
    commit = os.environ.get(COMMIT)
    if not commit and (root / ".git").exists():
        status = git(root, "status", "--porcelain", "--untracked-files=no")
        sha = git(root, "rev-parse", "HEAD")
        return (None, None) if status is None or sha is None else (sha, bool(status))
    written = next((path for folder in (root, SHIPPED) if (path := folder / COMMIT_FILE).is_file()), None)
    if not commit and written is not None:
        commit = written.read_text(encoding="utf-8").strip()
    return (commit.removesuffix(DIRTY), commit.endswith(DIRTY)) if commit else (None, None)


def is_checkout() -> bool:
    """True where the package lies in a checkout, its copy or a bundle; False for an installed wheel."""
    return (ROOT / MARK).is_dir()


IMAGES = (ROOT if is_checkout() else Path()) / "images"  # of containers; a wheel's are in the working folder


def studies_folder() -> Path:
    """The project's `config/studies`; that of `origin` if `config` belongs to another program and has
    none."""
    own = in_project(MARK)
    root = origin()
    return own if own.is_dir() or root is None else root / MARK


def home_of_results() -> Path:
    """The base of a relative results folder: the project around the working folder, or else the working
    folder."""
    root = project_root()
    return root if Path.cwd().is_relative_to(root.absolute()) else Path()
