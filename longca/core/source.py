"""Digests of the program's own files: what made a result, and whether it would be made the same way today."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from longca.core.plugin import PACKAGE_ROOT


def files_digest(paths: Iterable[Path]) -> str:
    """12 hexadecimal digits over the names and contents of these files."""
    content = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(PACKAGE_ROOT) if path.is_relative_to(PACKAGE_ROOT) else Path(path.name)
        content.update(f"{name.as_posix()}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:12]


def source_digest(*packages: str) -> str:
    """Digest of all files of these sub-packages ("core", "masks" …)."""
    return files_digest(path for package in packages for path in (PACKAGE_ROOT / package).rglob("*")
                        if path.is_file() and "__pycache__" not in path.parts)
