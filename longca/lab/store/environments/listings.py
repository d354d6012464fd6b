"""Environments of records: software listings, each stored once under its digest together with the records.

In a results folder each is a file, `environments/<digest>.json`, so that concurrent shards do not conflict. A
file of records contains the listings of its records: `records.json` under the key `environments`,
`records.parquet` in its metadata.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longca.core import UserError, shown
from longca.core.reading import ENVIRONMENTS, JsonError, read_file, read_json
from longca.lab.store.files import write_atomically
from longca.lab.studies import Environment
from longca.lab.studies.facts import Installation, Listing, LoadedSoftware, RankEnvironment, read_listing

FOLDER = "environments"
KEY = "environments"
PRESET = 1  # of lzma: listings of one study repeat each other over 100 KB, which its window covers
MOST_MEMORY = 64 << 20  # working memory of unpacking
MOST_PROBLEMS = 20


class Environments:
    """Listings by digest. Each is checked when it is added, and parsed on demand."""

    def __init__(self) -> None:
        self._contents: dict[str, Any] = {}
        self._parsed: dict[str, Listing] = {}
        self.problems: list[str] = []
        """problems of listings, as continuations of a file name"""

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, digest: object) -> bool:
        return digest in self._contents

    def add(self, contents: Any) -> None:
        """Add these listings, JSON by digest. Invalid listings, and those with another digest, become
        problems."""
        if not isinstance(contents, Mapping):
            self.refuse("its environments are no listings by digest")
            return
        for digest, content in contents.items():
            if digest in self._contents:
                continue
            try:
                self._parsed[digest] = read_listing(digest, content)
            except ValueError as error:
                self.refuse(f"environment '{digest!s:.80}' {error}")
                continue
            self._contents[digest] = content

    def merge(self, other: Environments) -> None:
        """Add the checked listings of another collection."""
        self._contents = other._contents | self._contents
        self._parsed = other._parsed | self._parsed
        self.problems += other.problems

    def installed(self, rank: RankEnvironment) -> Installation | None:
        """The installed software of a rank; None without a listing."""
        listing = self._parsed.get(rank.installed)
        return listing if isinstance(listing, Installation) else None

    def loaded(self, rank: RankEnvironment) -> LoadedSoftware | None:
        """The loaded software of a rank; None without a listing."""
        listing = self._parsed.get(rank.loaded) if rank.loaded else None
        return listing if isinstance(listing, LoadedSoftware) else None

    def contents(self, taken: Iterable[Environment | None]) -> dict[str, Any]:
        """The listings of these environments, as JSON by digest, in the order of digests."""
        named = {digest for rank in ranks_of(taken) for digest in (rank.installed, rank.loaded) if digest}
        return {digest: self._contents[digest] for digest in sorted(named & self._contents.keys())}

    def refuse(self, why: str) -> None:
        """Record why a listing is invalid; only the first of many problems."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(shown(why))


def ranks_of(taken: Iterable[Environment | None]) -> set[RankEnvironment]:
    """The environments of all ranks."""
    return {rank for environment in taken if environment is not None for rank in environment.ranks}


def write_listings(folder: Path, listings: Mapping[str, Any]) -> None:
    """Write missing listings to a results folder.

    Raises:
        UserError: they cannot be written.
    """
    for digest, content in listings.items():
        path = folder / FOLDER / f"{digest}.json"
        if path.exists():
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(
                path, json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"
            )
        except OSError as error:
            raise UserError(
                f"Cannot write '{path}'",
                why=error.strerror or str(error),
                todo="Finished cells are safe: make room or give another folder, and run again",
            ) from error


def read_listings(folder: Path) -> Environments:
    """The listings in a results folder. Invalid files are problems."""
    environments = Environments()
    num_bytes = 0
    for path in sorted((folder / FOLDER).glob("*.json")):
        if path.name.startswith("."):
            continue
        try:
            num_bytes += path.stat().st_size
            if num_bytes > ENVIRONMENTS.num_bytes():
                environments.refuse(
                    f"environments have more than {ENVIRONMENTS.value()} MiB; {ENVIRONMENTS.todo}"
                )
                break
            environments.add({path.stem: read_json(read_file(path, ENVIRONMENTS))})
        except OSError as error:
            environments.refuse(f"environment '{path.stem}' cannot be read ({error.strerror})")
        except JsonError as error:
            environments.refuse(f"environment '{path.stem}' is damaged (it {error})")
    return environments


def packed(contents: Mapping[str, Any]) -> bytes:
    """Listings as text for the metadata of a Parquet file: JSON, compressed by lzma, in base 64. Equal
    listings give equal bytes."""
    text = json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()
    return base64.b64encode(lzma.compress(text, preset=PRESET))


def unpacked(text: bytes) -> Environments:
    """The valid listings of such a text. Unpacking stops at the limit."""
    environments = Environments()
    try:
        stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MOST_MEMORY)
        content = stream.decompress(
            base64.b64decode(text, validate=True), max_length=ENVIRONMENTS.num_bytes()
        )
        if not stream.eof:
            environments.refuse(
                f"its environments are truncated, or have more than {ENVIRONMENTS.value()} MiB; "
                f"{ENVIRONMENTS.todo}"
            )
            return environments
        environments.add(read_json(content))
    except (lzma.LZMAError, binascii.Error, ValueError, MemoryError) as error:
        environments.refuse(f"its environments are damaged ({' '.join(str(error).split())[:200]})")
    return environments
