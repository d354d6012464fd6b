"""The list of a bundle's files with their SHA-256, in the form that `sha256sum --check` reads."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

NAME = "manifest-sha256.txt"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")
LEFT_BY_USE = (".venv", ".snakemake", "results", "images", "*.egg-info", ".pytest_cache", ".hypothesis", ".ruff_cache")  # at the top


@dataclass(frozen=True)
class Difference:
    """A file that differs from the manifest."""

    path: str
    what: str


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest(files: Mapping[str, bytes]) -> bytes:
    """The list of these files, by name."""
    return "".join(f"{sha256(content)}  {path}\n" for path, content in sorted(files.items())).encode()


def read_manifest(content: bytes) -> dict[str, str]:
    """Path → digest. Raises ValueError: it is no such list, or names a file outside its folder."""
    found = {}
    for number, line in enumerate(content.decode("utf-8").splitlines(), 1):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is no digest and path")
        path = PurePosixPath(match[2])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"line {number} names a file outside the bundle")
        found[match[2]] = match[1]
    return found


def differences(folder: Path, listed: Mapping[str, str]) -> Iterator[Difference]:
    """Files that are missing, changed or not listed. Files that the use of an unpacked bundle leaves there do not count."""
    for path, digest in sorted(listed.items()):
        place = folder / path
        if not place.is_file() or place.is_symlink():
            yield Difference(path, "is missing")
        elif sha256(place.read_bytes()) != digest:
            yield Difference(path, "was changed")
    for place in sorted(folder.rglob("*")):
        path = place.relative_to(folder)
        known = path.as_posix() in listed or path.as_posix() == NAME or place.is_dir()
        if not known and "__pycache__" not in path.parts and not any(fnmatch(path.parts[0], pattern) for pattern in LEFT_BY_USE):
            yield Difference(path.as_posix(), "is not in the manifest")
