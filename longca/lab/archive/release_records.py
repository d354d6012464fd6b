"""The whole records of a release in a folder of the user: fetched, checked, and never written over other
files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longca.core import VERSION, UserError
from longca.lab.archive import manifest, signature
from longca.lab.archive.download import ReleaseSource
from longca.lab.archive.packing import opened
from longca.lab.archive.releases import SUMS, archive_name, release_address
from longca.lab.store import replace_file

KIND = "records"
CACHE = ".longca-release"  # below the target folder, while files are being fetched


@dataclass(frozen=True)
class FetchedRecords:
    """The records of a release that now lie in a folder."""

    version: str
    address: str
    sha256: str
    """of the packed file"""
    files: tuple[Path, ...]
    num_bytes: int


def get_records(
    folder: Path,
    address: str = "",
    version: str = VERSION,
    key: Path | None = None,
    report: Callable[[str], None] = print,
) -> FetchedRecords:
    """Bring the records of a release to `folder/reports`.

    Nothing is written there before all is fetched and each file has its hash. A transfer that was cut off is
    resumed by the next call.

    Args:
        address: a folder or an address that has the release's files; that of the releases if empty.
        key: a public key of minisign: without a signature of SHA256SUMS by it, nothing else is fetched.
        report: called with each line of progress.

    Raises:
        UserError: the release cannot be reached, is damaged, or has a file that differs from one that is
        there.
    """
    cache = folder / CACHE
    source = ReleaseSource(address or release_address(version), cache)
    try:
        packed, digest = _fetched(source, archive_name(version, KIND), key, cache, report)
        files = _unpacked(packed, folder)
        shutil.rmtree(cache)
    finally:
        with suppress(OSError):  # it holds what has come so far
            cache.rmdir()
    size = sum(path.stat().st_size for path in files)
    return FetchedRecords(version, source.address, digest, files, size)


def _fetched(
    source: ReleaseSource, name: str, key: Path | None, cache: Path, report: Callable[[str], None]
) -> tuple[Path, str]:
    """The packed file in the cache, and its SHA-256. Raises UserError."""
    sums = source.sums()
    if key is not None:
        source.fetch_unchecked(SUMS + signature.SUFFIX)
        if refusal := signature.refusal(cache / SUMS, key):
            raise UserError(f"The release in '{source.address}' is not signed with '{key}'", why=refusal)
    if name not in sums:
        raise UserError(
            f"The release in '{source.address}' has no {name}",
            why=f"its {SUMS} lists {', '.join(sorted(sums)) or 'nothing'}",
            todo="Name the version of that release by `--release`",
        )
    return source.fetch(name, sums[name], report), sums[name]


def _unpacked(packed: Path, folder: Path) -> tuple[Path, ...]:
    """The files of the archive in the folder. Raises UserError if one differs from a file that is there."""
    with opened(packed) as (unpacked, _):
        listed = manifest.read_manifest((unpacked / manifest.NAME).read_bytes())
        problems = [
            f"{difference.path} {difference.what}" for difference in manifest.differences(unpacked, listed)
        ]
        if problems:
            raise UserError(f"'{packed.name}' is damaged", why=problems[0])
        targets = {path: folder / path for path in sorted(listed) if path.startswith("reports/")}
        other = [
            target
            for path, target in targets.items()
            if target.exists() and not (target.is_file() and manifest.file_sha256(target) == listed[path])
        ]
        if other:
            raise UserError(
                f"'{other[0]}' is another file than that of the release",
                why=(
                    f"{len(other)} of {len(targets)} files are there with other contents, and none is "
                    f"replaced"
                ),
                todo="Give another folder by `--out`",
            )
        return tuple(replace_file(target, (unpacked / path).read_bytes()) for path, target in targets.items())
