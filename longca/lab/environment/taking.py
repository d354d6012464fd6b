"""The environment of this process, taken once a process as far as it stays, and after each cell as far as it
grows."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from longca.lab.environment.loaded import LoadedFiles, search_folders
from longca.lab.environment.packages import PackageFolder
from longca.lab.studies.facts import (
    Distribution,
    Installation,
    Listing,
    RankEnvironment,
    listing_content,
    listing_digest,
    read_listing,
)


class SystemFacts(NamedTuple):
    """The facts that lie below Python's packages and are not read here: of the GPU, and of the image."""

    driver: str | None = None
    firmware: Mapping[str, str] = {}
    container: str | None = None
    lock: str | None = None


class EnvironmentTaker:
    """Takes the environment of this process. Some 0.1 s of a core the first time, milliseconds after that,
    never during a timed call."""

    def __init__(self, facts: SystemFacts) -> None:
        self._facts = facts
        self._sites = [PackageFolder(folder) for folder in search_folders()]
        self._loaded = LoadedFiles(self._sites)
        self._latest: dict[str, tuple[Listing, str, dict[str, Any]]] = {}

    @cached_property
    def installation(self) -> Installation:
        """The software that this process can load: of a distribution that lies in two folders, the one that
        is found first."""
        facts = self._facts
        distributions = dict[str, Distribution]()
        for site in self._sites:
            for each in site.distributions:
                name = each.name.encode("utf-8", "backslashreplace").decode()
                distributions.setdefault(
                    name, Distribution(name=name, version=each.version, record=each.record)
                )
        libc = " ".join(part for part in platform.libc_ver() if part)
        return Installation(
            python=f"{platform.python_implementation()} {platform.python_version()}",
            machine=platform.machine(),
            kernel=f"{platform.system()} {platform.release()}",
            libc=libc,
            driver=facts.driver,
            firmware=dict(facts.firmware),
            container=facts.container,
            lock=facts.lock,
            distributions=tuple(distributions[name] for name in sorted(distributions)),
        )

    def take(self) -> tuple[RankEnvironment, dict[str, dict[str, Any]]]:
        """The digests of the present environment, and each listing by its digest."""
        installed, content = self._named(self.installation)
        listings = {installed: content}
        loaded = None
        software = self._loaded.look()
        if software is not None:
            loaded, content = self._named(software)
            listings[loaded] = content
        return RankEnvironment(installed=installed, loaded=loaded), listings

    def _named(self, listing: Listing) -> tuple[str, dict[str, Any]]:
        """Digest and content of a listing, which are made once for the latest one of each kind."""
        latest = self._latest.get(listing.kind)
        if latest is None or latest[0] is not listing:
            content = listing_content(listing)
            latest = self._latest[listing.kind] = listing, listing_digest(content), content
        return latest[1], latest[2]


def environments_of(
    answers: Sequence[Mapping[str, Any]],
) -> tuple[tuple[RankEnvironment, ...], dict[str, Any]]:
    """The environment of each rank, or of all where it is the same, and the listings that came with them by
    digest.

    None if a rank has not told, or something that cannot be.

    Args:
        answers: to a request to measure, in the order of the ranks.
    """
    try:
        ranks = tuple(RankEnvironment.model_validate(answer.get("environment")) for answer in answers)
    except ValidationError:
        return (), {}
    listings: dict[str, Any] = {}
    for answer in answers:
        content = answer.get("listings")
        for digest, listing in content.items() if isinstance(content, dict) else ():
            with suppress(ValueError):
                read_listing(digest, listing)
                listings[digest] = listing
    return ranks[:1] if len(set(ranks)) == 1 else ranks, listings
