"""Listings of software: installed distributions, and files that a process has loaded. A record refers to each
listing by its digest.

Listings are stored once, next to the records (`longca.lab.store.environments.listings`). Equal files have
equal listings in any folder.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from longca.core import Count, Frozen

MOST_DISTRIBUTIONS = 10_000
MOST_OBJECTS = 20_000
MOST_MODULES = 1_000

ListingDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a listing, as `listing_digest` makes it"""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(min_length=1, max_length=4_096)]
Word = Annotated[str, Field(max_length=500)]


class Distribution(Frozen):
    """An installed distribution."""

    name: Word
    version: Word
    record: Sha256 | None = None
    """hash of its RECORD: paths and hashes of its files, without scripts, bytecode and files of the
    installer; None without RECORD"""


class SharedObject(Frozen):
    """A loaded shared object or executable, identified by its build id, a hash, or both."""

    origin: Literal["distribution", "module", "python", "system", "elsewhere"]
    """origin: a distribution; modules without distribution; Python; the system; elsewhere"""
    owner: Word = ""
    """the distribution or the top-level module"""
    path: FileName
    """relative to the folder of packages or of Python; the whole path for system files, otherwise only the
    name"""
    build_id: Annotated[str, Field(pattern=r"^[0-9a-f]{2,128}$")] | None = None
    sha256: Sha256 | None = None
    hashed: Literal["content", "record", "sample"] | None = None
    """source of `sha256`: the content; the RECORD of its distribution, if the size agrees; size and 16
    samples of a large file"""


class LooseModule(Frozen):
    """An imported top-level module without distribution, such as a manually unpacked build."""

    name: Word
    num_files: Count
    num_bytes: Count
    sha256: Sha256
    """over paths and hashes of all its files"""
    is_whole: bool = True
    """False if, because of its size, only names and file sizes were hashed"""


class Installation(Frozen):
    """The software available to a process, and its system."""

    kind: Literal["installed"] = "installed"
    python: Word
    machine: Word
    """kind of processor: x86_64"""
    kernel: Word
    libc: Word
    driver: Word | None = None
    """of the GPU; None without one"""
    firmware: Annotated[dict[Word, Word], Field(max_length=100)] = {}
    """of the GPU, as far as NVML reports it: vbios, gsp, inforom"""
    container: Word | None = None
    """digest of the image"""
    lock: Word | None = None
    """digest of the lock of the installed packages"""
    distributions: Annotated[tuple[Distribution, ...], Field(max_length=MOST_DISTRIBUTIONS)] = ()


class LoadedSoftware(Frozen):
    """The software that a process had loaded after a cell."""

    kind: Literal["loaded"] = "loaded"
    distributions: Annotated[tuple[Word, ...], Field(max_length=MOST_DISTRIBUTIONS)] = ()
    """names of distributions with an imported module"""
    changed: Annotated[tuple[FileName, ...], Field(max_length=MOST_OBJECTS)] = ()
    """imported files of distributions whose size differs from RECORD: they were edited after installation"""
    modules: Annotated[tuple[LooseModule, ...], Field(max_length=MOST_MODULES)] = ()
    objects: Annotated[tuple[SharedObject, ...], Field(max_length=MOST_OBJECTS)] = ()


class RankEnvironment(Frozen):
    """The environment of one rank, by digests of its listings."""

    installed: ListingDigest
    loaded: ListingDigest | None = None
    """None if the system does not list loaded files of a process"""

    def __hash__(self) -> int:
        return hash((self.installed, self.loaded))


Listing = Annotated[Installation | LoadedSoftware, Field(discriminator="kind")]
_LISTING: TypeAdapter[Listing] = TypeAdapter(Listing)


def listing_content(listing: Listing) -> dict[str, Any]:
    """The listing as JSON for `listing_digest`, without unknown values."""
    return listing.model_dump(mode="json", exclude_none=True)


def listing_digest(content: Any) -> str:
    """The SHA-256 of JSON, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_listing(digest: str, content: Any) -> Listing:
    """The listing from external JSON.

    Raises:
        ValueError: it is not a valid listing, or its digest differs. The message continues a sentence that
            begins with its name.
    """
    try:
        listing = _LISTING.validate_python(content)
    except ValidationError:
        raise ValueError("cannot be used (it is no listing of this longca)") from None
    if listing_digest(content) != digest:
        raise ValueError("is damaged (its digest says otherwise)")
    return listing
