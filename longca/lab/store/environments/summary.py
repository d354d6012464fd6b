"""The environments of records: how many ran in a pinned image, with the files of an image, or with neither,
and which they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from longca.lab.store.environments.images import ImageComparison, ImageList, best
from longca.lab.store.environments.listings import Environments
from longca.lab.store.rows.record_table import RecordTable, environments_of
from longca.lab.store.text import plural
from longca.lab.studies import Environment, Record
from longca.lab.studies.facts import Installation, RankEnvironment

PINNED = "sha256:"  # prefix of the digest of an obtained and checked image
SHORT = 12  # digits of a digest on a page
MOST_SHOWN = 3  # names in a sentence
FAST = ("torch", "triton", "numpy")  # packages whose versions identify environments at a glance

Ran = Literal["pinned", "files", "neither", "unknown"]


@dataclass(frozen=True)
class EnvironmentUse:
    """One environment: its installed software, and its records."""

    digest: str
    installed: Installation | None
    """None without a listing"""
    num_records: int
    modules: tuple[str, ...]
    """imported modules without a distribution, "name hash"; one entry for each build"""
    compared: str
    """agreement with the most similar image; "" without image lists"""

    @property
    def packages(self) -> str:
        """Versions of some packages: "torch 2.11.0, numpy 2.1"."""
        known = (
            {}
            if self.installed is None
            else {each.name: each.version for each in self.installed.distributions}
        )
        return ", ".join(f"{name} {known[name]}" for name in FAST if name in known)


@dataclass(frozen=True)
class EnvironmentSummary:
    """The environments of some records."""

    num_records: int
    ran: dict[Ran, int]
    """number of records by environment"""
    uses: tuple[EnvironmentUse, ...]
    """most records first"""
    images: tuple[str, ...]
    """names of the most similar images of environments; of all compared images if none is known"""
    comparison: ImageComparison | None
    """agreement of all loaded software with the nearest image; None without a comparison"""

    @property
    def sentence(self) -> str:
        """The finding in one sentence: the number of environments, their images, and the origin of their
        files."""
        return "; ".join(filter(None, (self._where, self._files)))

    @property
    def _where(self) -> str:
        unknown = "they are of an older version, or their listings are missing"
        if self.ran["unknown"] == self.num_records:
            return f"Where the {plural(self.num_records, 'record')} ran is unknown: {unknown}"
        parts = [f"{_number(self.ran['pinned'])} in a pinned image"]
        if self.images:
            parts.append(f"{_number(self.ran['files'])} in the files of {self._names} alone")
        if self.ran["neither"]:
            where = "in other files"
            if not self.images:
                where = "outside of any, and no list of an image is here to compare their files with"
            parts.append(f"{self.ran['neither']:,} {where}")
        if self.ran["unknown"]:
            parts.append(f"of {self.ran['unknown']:,} it is unknown ({unknown})")
        head = f"{plural(self.num_records, 'record')} ran in {plural(len(self.uses), 'environment')}"
        return f"{head}: {', '.join(parts)}"

    @property
    def _files(self) -> str:
        """The share of loaded software that equals the nearest image; "" without a comparison."""
        if self.comparison is None:
            return ""
        differing = self.comparison.differing
        system = self.comparison.num_system
        shown = ", ".join(differing[:MOST_SHOWN]) + (" …" if len(differing) > MOST_SHOWN else "")
        verb = "differs" if len(differing) == 1 else "differ"
        differ = f"{len(differing):,} {verb}: {shown}" if differing else "none differs"
        return (
            f"of the loaded files, packages and modules {len(self.comparison.same):,} are those of "
            f"{self._names}, {differ}; of {plural(system, 'object')} of the system and of Python "
            f"{self.comparison.num_system_same:,}"
        )

    @property
    def _names(self) -> str:
        return " or ".join(self.images)


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def summary_of(
    records: RecordTable | Iterable[Record], environments: Environments, images: Sequence[ImageList] = ()
) -> EnvironmentSummary:
    """The environments of these records.

    Args:
        environments: their listings.
        images: image lists for comparison.
    """
    compared = _Compared(environments, images)
    ran: Counter[Ran] = Counter()
    counts: Counter[str] = Counter()
    ranks: dict[str, set[RankEnvironment]] = defaultdict(set)
    num_records = 0
    for environment, count in environments_of(records):
        num_records += count
        ran[compared.where(environment)] += count
        for digest in {rank.installed for rank in (environment.ranks if environment else ())}:
            counts[digest] += count
        for rank in environment.ranks if environment else ():
            ranks[rank.installed].add(rank)
    uses = [
        compared.use(digest, counts[digest], ranks[digest])
        for digest in sorted(counts, key=lambda digest: (-counts[digest], digest))
    ]
    whole = compared.whole({each for of in ranks.values() for each in of})
    return EnvironmentSummary(
        num_records,
        {kind: ran[kind] for kind in ("pinned", "files", "neither", "unknown")},
        tuple(uses),
        compared.names or tuple(image.name for image in images),
        whole,
    )


class _Compared:
    """Cached comparisons of environments with images."""

    def __init__(self, environments: Environments, images: Sequence[ImageList]) -> None:
        self._environments = environments
        self._images = images
        self._known: dict[RankEnvironment, tuple[ImageList, ImageComparison] | None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The images that are nearest to any environment."""
        return tuple(sorted({nearest[0].name for nearest in self._known.values() if nearest is not None}))

    def where(self, environment: Environment | None) -> Ran:
        if environment is None:
            return "unknown"
        if (environment.software.container or "").startswith(PINNED):
            return "pinned"
        if not environment.ranks or any(
            self._environments.installed(rank) is None or self._environments.loaded(rank) is None
            for rank in environment.ranks
        ):
            return "unknown"
        comparisons = [self.of(rank) for rank in environment.ranks]
        return "files" if all(each is not None and each.is_image for each in comparisons) else "neither"

    def of(self, rank: RankEnvironment) -> ImageComparison | None:
        """The comparison with the nearest image; None if there is none, or nothing is known."""
        if rank not in self._known:
            installed = self._environments.installed(rank)
            loaded = self._environments.loaded(rank)
            if installed is None or loaded is None:
                self._known[rank] = None
            else:
                self._known[rank] = best(self._images, installed, loaded)
        nearest = self._known[rank]
        return None if nearest is None else nearest[1]

    def whole(self, ranks: Iterable[RankEnvironment]) -> ImageComparison | None:
        """One comparison of the loaded software of these ranks. A difference on any rank counts."""
        comparisons = [each for rank in ranks if (each := self.of(rank)) is not None]
        if not comparisons:
            return None
        differing = {name for each in comparisons for name in each.differing}
        same = {name for each in comparisons for name in each.same} - differing
        system = max(comparisons, key=lambda each: each.num_system)
        return ImageComparison(
            tuple(sorted(same)), tuple(sorted(differing)), system.num_system, system.num_system_same
        )

    def use(self, digest: str, count: int, ranks: set[RankEnvironment]) -> EnvironmentUse:
        loaded = [each for rank in ranks if (each := self._environments.loaded(rank)) is not None]
        modules = {f"{module.name} {module.sha256[:SHORT]}" for each in loaded for module in each.modules}
        whole = self.whole(ranks)
        compared = (
            "" if whole is None else f"{len(whole.same):,} of {len(whole.same) + len(whole.differing):,}"
        )
        return EnvironmentUse(
            digest, self._environments.installed(next(iter(ranks))), count, tuple(sorted(modules)), compared
        )
