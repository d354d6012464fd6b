"""Bundles of tests: the digest of their image, and a manifest that is made again."""

from pathlib import Path

from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.manifest import manifest

DIGEST = f"sha256:{'ab' * 32}"


def rehash(folder: Path) -> None:
    """The manifest of what is there now."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    (folder / MANIFEST).write_bytes(
        manifest({path: content for path, content in files.items() if path != MANIFEST})
    )
