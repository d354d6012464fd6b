"""Installed distributions by their RECORD files, and modules beside them that no distribution has brought.
Standard library only.

Python files are taken as their distribution's RECORD lists them, which costs milliseconds where hashing them
all would cost seconds.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path

from longca.lab.environment.elf import sha256_of

SUFFIX = ".dist-info"
WRITTEN_BY_INSTALLERS = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")
HASH = "sha256="
BYTECODE = ".pyc,"
OUTSIDE = ("..", "/", '"..', '"/')
"""begins the paths of scripts and data, which differ with the place of installation"""
MOST_FILES = 20_000
MOST_BYTES = 1 << 30
"""of a module without a distribution; of a larger one names and sizes are hashed"""
LEFT_OUT = ("__pycache__", ".git")


@dataclass(frozen=True)
class Installed:
    """One distribution."""

    name: str
    version: str
    record: str | None
    """SHA-256 over the sorted lines of its RECORD; None where there is none. Scripts, bytecode and what an
    installer writes are left out, since they hold paths and times of one installation"""
    files: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """path below the folder of packages → [path, "sha256=" and the hash in base 64, bytes], as RECORD has
    them"""

    def sha256(self, path: str) -> str | None:
        """The SHA-256 that RECORD has of a file, in hexadecimal digits."""
        text = self.files[path][1].removeprefix(HASH)
        try:
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            return None
        return content.hex() if len(content) == 32 else None

    def size(self, path: str) -> int | None:
        """The bytes that RECORD says a file has."""
        size = self.files[path][2]
        return int(size) if size.isdecimal() and size.isascii() and len(size) < 20 else None


@dataclass(frozen=True)
class Tree:
    """Files of a top-level module that belong to no distribution."""

    name: str
    num_files: int
    num_bytes: int
    sha256: str
    """over the paths below the folder of packages and the hash of each file"""
    is_whole: bool = True
    """False where there are so many files or bytes that only names and sizes were hashed"""


class PackageFolder:
    """A folder that holds packages: the distributions in it, and the owner of each file.

    Args:
        folder: such as `site-packages`, or one of `PYTHONPATH`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def distributions(self) -> list[Installed]:
        """By name."""
        installed = [_distribution(path) for path in self.folder.glob(f"*{SUFFIX}") if path.is_dir()]
        installed += [_of_egg(path) for path in self.folder.glob("*.egg-info")]
        return sorted(installed, key=lambda distribution: (distribution.name, distribution.version))

    @cached_property
    def owners(self) -> dict[str, Installed]:
        """Path below the folder → the distribution whose RECORD lists it."""
        return {path: distribution for distribution in self.distributions for path in distribution.files}

    def tree(self, top: str, is_owned: Callable[[str], bool] | None = None) -> Tree | None:
        """The files of a top-level module or package here that no distribution lists; None if there are none.

        Args:
            top: the name of its folder, or of its file.
            is_owned: says whether a distribution lists a path below this folder; one of this folder if not
                given.
        """
        paths = sorted(
            path for path in self._files(top) if not (is_owned(path) if is_owned else path in self.owners)
        )
        if not paths:
            return None
        sizes = [(self.folder / path).stat().st_size for path in paths]
        is_whole = len(paths) <= MOST_FILES and sum(sizes) <= MOST_BYTES
        facts = [sha256_of(self.folder / path) for path in paths] if is_whole else list(map(str, sizes))
        lines = "".join(f"{path}\0{fact}\n" for path, fact in zip(paths, facts, strict=True))
        return Tree(
            module_name(top),
            len(paths),
            sum(sizes),
            hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest(),
            is_whole,
        )

    def _files(self, top: str) -> Iterable[str]:
        start = self.folder / top
        if start.is_file():
            yield top
        for folder, folders, names in os.walk(start):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            below = Path(folder).relative_to(self.folder)
            yield from ((below / name).as_posix() for name in names if (Path(folder) / name).is_file())


def module_name(top: str) -> str:
    """The module of a top-level file or folder: "flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so" →
    "flash_attn_2_cuda"."""
    return top.partition(".")[0] or top


def _distribution(folder: Path) -> Installed:
    name, _, version = folder.name.removesuffix(SUFFIX).partition("-")
    try:
        text = (folder / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return Installed(normal_name(name), version, None)
    left_out = tuple(f"{folder.name}/{file}," for file in WRITTEN_BY_INSTALLERS)
    lines = sorted(
        [
            line
            for line in text.replace("\r\n", "\n").split("\n")
            if HASH in line
            and not line.startswith(OUTSIDE)
            and not line.startswith(left_out)
            and BYTECODE not in line
        ]
    )
    parts = [line.rsplit(",", 2) for line in lines]
    files = {_unquoted(part[0]): part for part in parts if len(part) == 3}
    digest = hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
    return Installed(normal_name(name), version, digest, files)


def _unquoted(path: str) -> str:
    """A path of RECORD, which stands in quotes where it has a comma."""
    return path[1:-1].replace('""', '"') if path[:1] == '"' else path


def _of_egg(path: Path) -> Installed:
    """A distribution in the old form, which lists no hashes."""
    try:
        facts = metadata.PathDistribution(path).metadata if path.is_dir() else None
        name, version = (facts["Name"], facts["Version"]) if facts is not None else path.stem.split("-")[:2]
    except (KeyError, ValueError, OSError):
        name = path.stem
        version = ""
    return Installed(normal_name(name or path.stem), version or "", None)


def normal_name(name: str) -> str:
    """A distribution's name as indexes write it: "flash_attn.Four" → "flash-attn-four"."""
    return re.sub(r"[-_.]+", "-", name).lower()
