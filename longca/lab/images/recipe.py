"""The recipe of an image: `containers/<name>/image.yaml`, the only source of its definition files."""

from pathlib import Path
from typing import Any

from pydantic import Field

from longca.core import PACKAGE_ROOT, Frozen, UserError, parse, read_yaml, unknown

CONTAINERS = PACKAGE_ROOT.parent / "containers"
ELSEWHERE = "the installed package has no recipes of images; a checkout has them"
DEFAULT = "hopper-cu130"
DIGEST = r"^sha256:[0-9a-f]{64}$"


class Base(Frozen):
    """The base image."""

    image: str = Field(pattern=r"^[a-z0-9.-]+/.+:[^@]+$")
    """registry/name:tag; the tag is informative, the digest counts"""
    digest: str = Field(pattern=DIGEST)

    @property
    def pinned(self) -> str:
        """The image's address by digest, since Apptainer accepts no tag with a digest."""
        return f"{self.image.rpartition(':')[0]}@{self.digest}"


class Debian(Frozen):
    """The same system from Debian's packages, for machines without access to a registry."""

    suite: str
    mirror: str


class SourcePackage(Frozen):
    """A source package of PyPI, compiled inside of the image."""

    package: str
    version: str


class Recipe(Frozen):
    """The recipe of one image."""

    name: str
    about: str
    base: Base
    debian: Debian | None = None
    python: str = Field(pattern=r"^3\.\d+$")
    apt: tuple[str, ...]
    """packages of the system"""
    build_apt: tuple[str, ...] = ()
    """system packages that are removed after compilation"""
    index: str = ""
    """a package index in addition to PyPI"""
    requirements: tuple[str, ...] = ()
    """pinned Python packages in addition to longca's dependencies"""
    overrides: tuple[str, ...] = ()
    """pinned Python packages that override versions required by other packages"""
    build_requirements: tuple[str, ...] = ()
    """pinned Python packages for compiling the kernels, removed afterwards: CUDA's compiler"""
    sources: tuple[SourcePackage, ...] = ()
    kernels: tuple[str, ...] = ()
    """builds of tools/kernel_build, in this order"""
    archs: tuple[str, ...] = ()
    """their compute capabilities, without the dot"""
    gpus: tuple[str, ...] = ()
    """GPU models of this image, by Slurm's names"""
    disk_gb: float = Field(gt=0)
    """disk space for a build without the wheels: the unpacked system and the image"""
    env: dict[str, str] = {}
    modules: tuple[str, ...] = Field(min_length=1)
    """required Python modules of the finished image"""

    @property
    def folder(self) -> Path:
        return CONTAINERS / self.name

    @property
    def lock(self) -> Path:
        """Python packages, with hashes."""
        return self.folder / "requirements.lock"

    @property
    def build_lock(self) -> Path:
        """Python packages for compilation only, with hashes."""
        return self.folder / "build.lock"

    @property
    def sources_lock(self) -> Path:
        """SHA-256 and URL of each source package."""
        return self.folder / "sources.lock"


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.parent.name for path in CONTAINERS.glob("*/image.yaml"))


def no_recipe(name: str) -> UserError:
    """The error for an image that no recipe has."""
    if not names():
        todo = "Give a file, or docker://NAME@sha256:…"
        return UserError(f"Image '{name}' cannot be built here", why=ELSEWHERE, todo=todo)
    todo = "Images are the folders in containers/; a file or a URL can be given, too"
    return unknown("image", name, names(), todo=todo)


def load_recipe(name: str) -> Recipe:
    """The recipe of this name. Raises UserError if it is missing or invalid."""
    if name not in names():
        raise no_recipe(name)
    return parse(Recipe, {"name": name, **_merged(name)}, f"containers/{name}/image.yaml")


def _merged(name: str) -> dict[str, Any]:
    """The settings of a recipe, merged over those of its `like` recipe."""
    own = read_yaml(CONTAINERS / name / "image.yaml")
    like = own.pop("like", None)
    if like is not None and (like == name or like not in names()):
        raise UserError(
            f"Image '{name}' is like '{like}', and there is no such recipe",
            todo="Name a folder in containers/",
        )
    return {**(_merged(like) if like else {}), **own}


def fitting(gpu_model: str, *, on_cpu: bool) -> str:
    """The name of the image for a node, by Slurm's name of its GPU model; Hopper's image without a model.

    Raises:
        UserError: there is no image for that model.
    """
    if not names():
        todo = (
            "Set `containers: off` in config/site.yaml, or image in config/config.yaml to a file or "
            "docker://NAME@sha256:… that has longca in it"
        )
        raise UserError("There is no image for the jobs", why=ELSEWHERE, todo=todo)
    if on_cpu:
        return "cpu"
    if not gpu_model:
        return DEFAULT
    recipes = [load_recipe(name) for name in names()]
    image = next(
        (recipe.name for recipe in recipes if any(model in gpu_model.lower() for model in recipe.gpus)), None
    )
    if image is None:
        known = ", ".join(model for recipe in recipes for model in recipe.gpus)
        raise UserError(
            f"No image in containers/ is for the GPU '{gpu_model}'",
            why=f"they are for {known}",
            todo="Set image in config/config.yaml, or `containers: off` in config/site.yaml",
        )
    return image
