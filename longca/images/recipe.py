"""The recipe of an image: `containers/<name>/image.yaml`, the one source of its definition files."""

from pathlib import Path
from typing import Any

from pydantic import Field

from longca.core.errors import UserError, unknown
from longca.core.plugin import PACKAGE_ROOT
from longca.core.schema import Frozen, parse, read_yaml

CONTAINERS = PACKAGE_ROOT.parent / "containers"
ELSEWHERE = "the installed package has no recipes of images; a checkout has them"
DEFAULT = "hopper-cu130"
DIGEST = r"^sha256:[0-9a-f]{64}$"


class Base(Frozen):
    """The base image."""

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
    """A source package of PyPI that is compiled inside the image."""

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
    """packages of the system that are taken out again when all is compiled"""
    index: str = ""
    """a package index beside PyPI"""
    requirements: tuple[str, ...] = ()
    """pinned Python packages beside longca's own dependencies"""
    overrides: tuple[str, ...] = ()
    """pinned Python packages that replace the version which another package asks for"""
    build_requirements: tuple[str, ...] = ()
    """pinned Python packages that compile the kernels and are taken out again: CUDA's compiler"""
    sources: tuple[SourcePackage, ...] = ()
    kernels: tuple[str, ...] = ()
    """what tools/kernel_build makes, in this order"""
    archs: tuple[str, ...] = ()
    """compute capabilities for which it does, without the dot"""
    gpus: tuple[str, ...] = ()
    """the models of GPUs that take this image, as Slurm calls them"""
    disk_gb: float = Field(gt=0)
    """what a build takes beside the wheels, at most: the unpacked system and the image"""
    env: dict[str, str] = {}
    modules: tuple[str, ...] = Field(min_length=1)
    """Python modules that the finished image must have"""

    @property
    def folder(self) -> Path:
        return CONTAINERS / self.name

    @property
    def lock(self) -> Path:
        """Python packages, with hashes."""
        return self.folder / "requirements.lock"

    @property
    def build_lock(self) -> Path:
        """Python packages that only compile, with hashes."""
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
    """The recipe of this name. Raises UserError if there is none, or it is not valid."""
    if name not in names():
        raise no_recipe(name)
    return parse(Recipe, {"name": name, **_merged(name)}, f"containers/{name}/image.yaml")


def _merged(name: str) -> dict[str, Any]:
    """The settings of a recipe over those of the one that it is like."""
    own = read_yaml(CONTAINERS / name / "image.yaml")
    like = own.pop("like", None)
    if like is not None and (like == name or like not in names()):
        raise UserError(f"Image '{name}' is like '{like}', and there is no such recipe", todo="Name a folder in containers/")
    return {**(_merged(like) if like else {}), **own}


def fitting(gpu_model: str, *, on_cpu: bool) -> str:
    """The name of the image for a node: by the model of its GPU, as Slurm calls it. Hopper's if the model is not said.

    Raises:
        UserError: no image is for that model.
    """
    if not names():
        todo = ("Set `containers: off` in config/site.yaml, or image in config/config.yaml to a file or "
                "docker://NAME@sha256:… that has longca in it")
        raise UserError("There is no image for the jobs", why=ELSEWHERE, todo=todo)
    if on_cpu:
        return "cpu"
    if not gpu_model:
        return DEFAULT
    recipes = [load_recipe(name) for name in names()]
    found = next((recipe.name for recipe in recipes if any(model in gpu_model.lower() for model in recipe.gpus)), None)
    if found is None:
        known = ", ".join(model for recipe in recipes for model in recipe.gpus)
        raise UserError(f"No image in containers/ is for the GPU '{gpu_model}'", why=f"they are for {known}",
                        todo="Set image in config/config.yaml, or `containers: off` in config/site.yaml")
    return found
