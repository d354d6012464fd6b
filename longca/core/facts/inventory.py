"""Listings of the software that measured: what is installed, and what a process has loaded. A record names
each by its digest.

Listings are stored once, beside the records (`longca.store.environments.listings`). Equal files have equal
listings in whatever folder they are.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from longca.core.schema import Count, Frozen

MOST_DISTRIBUTIONS, MOST_OBJECTS, MOST_MODULES = 10_000, 20_000, 1_000

ListingDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a listing, as `listing_digest` makes it"""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(min_length=1, max_length=4_096)]
Word = Annotated[str, Field(max_length=500)]


class Distribution(Frozen):
    """An installed distribution."""

    name: Word
    version: Word
    record: Sha256 | None
    """hash of its RECORD: paths and hashes of its files, less scripts, bytecode and what the installer wrote;
    None where it has no RECORD"""


class SharedObject(Frozen):
    """A shared object or executable that was loaded, known by its build id, a hash, or both."""

    origin: Literal["distribution", "module", "python", "system", "elsewhere"]
    """a distribution's own file; one beside modules that no distribution lists; of Python; of the system;
    anywhere else"""
    owner: Word = ""
    """the distribution or the top-level module"""
    path: FileName
    """below the folder of packages or of Python; of the system the whole path, elsewhere the name alone"""
    build_id: Annotated[str, Field(pattern=r"^[0-9a-f]{2,128}$")] | None = None
    sha256: Sha256 | None = None
    hashed: Literal["content", "record", "sample"] | None = None
    """where `sha256` is from: the content; the RECORD of its distribution, whose size agrees; of a large file
    its size and 16 parts"""


class LooseModule(Frozen):
    """A top-level module that was imported and belongs to no distribution, such as a build that was unpacked
    by hand."""

    name: Word
    num_files: Count
    num_bytes: Count
    sha256: Sha256
    """over paths and hashes of all its files"""
    is_whole: bool = True
    """False where it is so large that only names and sizes were hashed"""


class Installation(Frozen):
    """The software that a process could load, and the system below it."""

    kind: Literal["installed"] = "installed"
    python: Word
    machine: Word
    """kind of processor: x86_64"""
    kernel: Word
    libc: Word
    driver: Word | None = None
    """of the GPU; None without one"""
    firmware: Annotated[dict[Word, Word], Field(max_length=100)] = {}
    """of the GPU, as far as NVML tells: vbios, gsp, inforom"""
    container: Word | None = None
    """digest of the image"""
    lock: Word | None = None
    """digest of the lock that the packages were installed from"""
    distributions: Annotated[tuple[Distribution, ...], Field(max_length=MOST_DISTRIBUTIONS)] = ()


class LoadedSoftware(Frozen):
    """The software that a process had loaded after a cell."""

    kind: Literal["loaded"] = "loaded"
    distributions: Annotated[tuple[Word, ...], Field(max_length=MOST_DISTRIBUTIONS)] = ()
    """names of those of which a module was imported"""
    changed: Annotated[tuple[FileName, ...], Field(max_length=MOST_OBJECTS)] = ()
    """imported files of distributions whose size is not that of RECORD: they were edited after they were
    installed"""
    modules: Annotated[tuple[LooseModule, ...], Field(max_length=MOST_MODULES)] = ()
    objects: Annotated[tuple[SharedObject, ...], Field(max_length=MOST_OBJECTS)] = ()


class RankEnvironment(Frozen):
    """The environment of one rank, by digests of its listings."""

    installed: ListingDigest
    loaded: ListingDigest | None = None
    """None where the system does not tell what a process has loaded"""

    def __hash__(self) -> int:
        return hash((self.installed, self.loaded))


Listing = Annotated[Installation | LoadedSoftware, Field(discriminator="kind")]
_LISTING: TypeAdapter[Listing] = TypeAdapter(Listing)


def listing_content(listing: Listing) -> dict[str, Any]:
    """The listing as JSON that `listing_digest` takes. Values that are not known are left out."""
    return listing.model_dump(mode="json", exclude_none=True)


def listing_digest(content: Any) -> str:
    """The SHA-256 of JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_listing(digest: str, content: Any) -> Listing:
    """The listing that JSON from outside stands for.

    Raises:
        ValueError: it is no listing of this longca, or not the one of this digest. The message follows upon
        its name.
    """
    try:
        listing = _LISTING.validate_python(content)
    except ValidationError:
        raise ValueError("cannot be used (it is no listing of this longca)") from None
    if listing_digest(content) != digest:
        raise ValueError("is damaged (its digest says otherwise)")
    return listing
