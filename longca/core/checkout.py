"""The version of this code: of the package, and of the Git checkout that it runs from or was copied from."""

import functools
import os
import subprocess
from pathlib import Path

from longca import __version__
from longca.core.plugin import PACKAGE_ROOT
from longca.core.record import Source

ROOT = PACKAGE_ROOT.parent  # of the checkout, of a copy of it, or of an unpacked bundle
COMMIT = "LONGCA_COMMIT"  # for a copy of a checkout: `git describe --always --abbrev=40 --exclude '*' --dirty` of its origin
COMMIT_FILE = "COMMIT"  # the same as a file in the root: bundles have it
DIRTY = "-dirty"


@functools.cache
def source() -> Source:
    """The commit as `LONGCA_COMMIT` gives it, or else the checkout itself, or else the file `COMMIT`."""
    sha, dirty = _commit(ROOT)
    return Source(version=__version__, git_sha=sha, git_dirty=dirty)


def described(source: Source) -> str:
    """The commit in the form that `LONGCA_COMMIT` has; empty where it is unknown."""
    return f"{source.git_sha}{DIRTY if source.git_dirty else ''}" if source.git_sha else ""


def git(root: Path, *args: str) -> str | None:
    """The output of a Git command; None without Git, or where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit, and True if files were changed since."""
    told = os.environ.get(COMMIT)
    if not told and (root / ".git").exists():
        status, sha = git(root, "status", "--porcelain", "--untracked-files=no"), git(root, "rev-parse", "HEAD")
        return (None, None) if status is None or sha is None else (sha, bool(status))
    if not told and (root / COMMIT_FILE).is_file():
        told = (root / COMMIT_FILE).read_text(encoding="utf-8").strip()
    return (told.removesuffix(DIRTY), told.endswith(DIRTY)) if told else (None, None)
