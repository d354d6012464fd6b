"""The manifest of a bundle: its files with their SHA-256, in the format of `sha256sum --check`."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from longca.lab.store import file_sha256

NAME = "manifest-sha256.txt"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")
LEFT_BY_USE = (
    ".venv",
    ".venv-audit",
    ".venv-site",
    "build",
    "site",
    ".snakemake",
    "results",
    "images",
    "*.egg-info",
    ".pytest_cache",
    ".hypothesis",
    ".ruff_cache",
)  # at the top


@dataclass(frozen=True)
class Difference:
    """A file that differs from the manifest."""

    path: str
    what: str


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(content: bytes | Path) -> str:
    """The SHA-256 of a content, or of the file that holds it."""
    return sha256(content) if isinstance(content, bytes) else file_sha256(content)


def manifest(files: Mapping[str, bytes | Path]) -> bytes:
    """The manifest of these files, sorted by path."""
    return of_digests({path: digest(content) for path, content in files.items()})


def of_digests(digests: Mapping[str, str]) -> bytes:
    """The manifest of files with these digests, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()


def read_manifest(content: bytes) -> dict[str, str]:
    """Path → digest. Raises ValueError if it is not a manifest, or names a file outside its folder."""
    digests = {}
    for number, line in enumerate(content.decode("utf-8").splitlines(), 1):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not a digest and a path")
        path = PurePosixPath(match[2])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"line {number} names a file outside the bundle")
        digests[match[2]] = match[1]
    return digests


def unreadable(folder: Path, path: str) -> str:
    """The reason why this file of an unpacked bundle is not read; empty if it is safe.

    Only regular files below `folder` are safe: links, and files with hard links, may lead outside.
    """
    current = folder
    for part in PurePosixPath(path).parts:
        if current.is_symlink() and current != folder:
            return "lies behind a link"
        current /= part
    try:
        facts = current.lstat()
    except (OSError, ValueError):
        return "is missing"
    if stat.S_ISLNK(facts.st_mode):
        return "is a link"
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    return (
        "is a hard link, which may be a file of another place too: copy the folder"
        if facts.st_nlink > 1
        else ""
    )


def differences(folder: Path, listed: Mapping[str, str]) -> Iterator[Difference]:
    """Files that are missing, changed or not listed, except for files that the use of an unpacked bundle
    creates."""
    for path, digest in sorted(listed.items()):
        if why := unreadable(folder, path):
            yield Difference(path, why)
        elif file_sha256(folder / path) != digest:
            yield Difference(path, "was changed")
    for path in sorted(_entries(folder)):
        if path not in listed and path != NAME:
            yield Difference(path, "is not in the manifest")


def _entries(folder: Path) -> Iterator[str]:
    """All files below `folder`, except for files that its use creates. Links are not followed."""
    for top, folders, files in os.walk(folder):
        at_top = Path(top) == folder
        kept = [name for name in folders if name != "__pycache__" and not (at_top and _left_by_use(name))]
        folders[:] = [name for name in kept if not (Path(top) / name).is_symlink()]
        for name in [*files, *(set(kept) - set(folders))]:
            if not (at_top and _left_by_use(name)):
                yield (Path(top) / name).relative_to(folder).as_posix()


def _left_by_use(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LEFT_BY_USE)
