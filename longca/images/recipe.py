"""The recipe of an image: `containers/<name>/image.yaml`, the one source of its definition files."""

from pathlib import Path

from pydantic import Field

from longca.core.errors import unknown
from longca.core.plugin import PACKAGE_ROOT
from longca.core.schema import Frozen, parse, read_yaml

CONTAINERS = PACKAGE_ROOT.parent / "containers"
DIGEST = r"^sha256:[0-9a-f]{64}$"


class Base(Frozen):
    """The image that it begins with."""

    image: str = Field(pattern=r"^[a-z0-9.-]+/.+:[^@]+$")
    """registry/name:tag; the tag is for people, the digest decides"""
    digest: str = Field(pattern=DIGEST)

    @property
    def pinned(self) -> str:
        """The image's address by digest alone: Apptainer takes no tag beside it."""
        return f"{self.image.rpartition(':')[0]}@{self.digest}"


class Debian(Frozen):
    """The same system from Debian's packages, for machines that reach no registry."""

    suite: str
    mirror: str


class SourcePackage(Frozen):
    """A source package of PyPI that is built inside the image."""

    package: str
    version: str


class Recipe(Frozen):
    """One image."""

    name: str
    about: str
    base: Base
    debian: Debian | None = None
    python: str = Field(pattern=r"^3\.\d+$")
    apt: tuple[str, ...]
    """packages of the system"""
    index: str = ""
    """a package index beside PyPI"""
    requirements: tuple[str, ...] = ()
    """pinned Python packages beside longca's own dependencies"""
    sources: tuple[SourcePackage, ...] = ()
    build: str = ""
    """a script of the recipe's folder that builds the sources, run with the folder of the sources"""
    uses: tuple[str, ...] = ()
    """files of the project that the script needs"""
    env: dict[str, str] = {}
    modules: tuple[str, ...] = Field(min_length=1)
    """must be found in the finished image"""

    @property
    def folder(self) -> Path:
        return CONTAINERS / self.name

    @property
    def lock(self) -> Path:
        """Python packages, with hashes."""
        return self.folder / "requirements.lock"

    @property
    def sources_lock(self) -> Path:
        """SHA-256 and URL of each source package."""
        return self.folder / "sources.lock"


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.parent.name for path in CONTAINERS.glob("*/image.yaml"))


def load_recipe(name: str) -> Recipe:
    """Raises UserError: there is none of that name, or it is not valid."""
    if name not in names():
        raise unknown("image", name, names(), todo="Images are the folders in containers/; a file or a URL can be given, too")
    path = CONTAINERS / name / "image.yaml"
    return parse(Recipe, {"name": name, **read_yaml(path)}, str(path.relative_to(CONTAINERS.parent)))
