"""Comparison of the software that records loaded with the contents of an image, as listed by `longca image
contents`.

A process outside of any image may still have run the same files, so that its numbers are those of the image.
The comparison covers Python packages: shared objects by hash or build id, Python files by the RECORD of their
distribution, modules without a distribution by their tree. Objects of the system and of Python itself are
counted separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from longca.core import PACKAGE_ROOT, Frozen
from longca.core.reading import ENVIRONMENTS, JsonError, read_file, read_json
from longca.lab.studies.facts import Distribution, Installation, LoadedSoftware, LooseModule, SharedObject

# in the folder of an image's recipe
FOLDER = "containers"
NAME = "contents.json"
OF_PACKAGES = ("distribution", "module")


class ImageContents(Frozen, extra="ignore"):
    """The part of an image's contents for comparison with records."""

    files: dict[str, str]
    """path below the folder of packages → SHA-256"""
    distributions: tuple[Distribution, ...] = Field(default=(), max_length=10_000)
    """empty in lists before 2026-11-26, whose Python files cannot be compared"""
    modules: tuple[LooseModule, ...] = ()
    objects: tuple[SharedObject, ...] = ()


@dataclass(frozen=True)
class ImageComparison:
    """The agreement of loaded software with an image."""

    same: tuple[str, ...]
    """files, distributions and modules equal to the image's"""
    differing: tuple[str, ...]
    """those that differ from the image or are missing in it"""
    num_system: int = 0
    """loaded objects of the system and of Python"""
    num_system_same: int = 0

    @property
    def is_image(self) -> bool:
        """True if all files of packages equal the image's."""
        return bool(self.same) and not self.differing


class ImageList:
    """The contents of one image, by name and path."""

    def __init__(self, name: str, contents: ImageContents) -> None:
        self.name = name
        self._files = contents.files
        self._distributions = {distribution.name: distribution for distribution in contents.distributions}
        self._modules = {module.name: module.sha256 for module in contents.modules}
        self._objects = {(shared.origin in OF_PACKAGES, shared.path): shared for shared in contents.objects}

    @classmethod
    def of(cls, name: str, contents: Mapping[str, Any]) -> ImageList:
        """The image of a list printed by `longca image contents`. Raises ValueError for other input."""
        try:
            return cls(name, ImageContents.model_validate(contents))
        except ValidationError as error:
            raise ValueError(
                f"it is not a list of an image's contents ({error.error_count()} problems)"
            ) from None

    def compared(self, installed: Installation, loaded: LoadedSoftware) -> ImageComparison:
        """The agreement of the loaded software of a process with this image."""
        parts: dict[str, bool] = {}
        system = [shared for shared in loaded.objects if shared.origin not in OF_PACKAGES]
        for shared in loaded.objects:
            if shared.origin in OF_PACKAGES:
                parts[shared.path] = self._has(shared)
        if self._distributions:
            records = {distribution.name: distribution for distribution in installed.distributions}
            for name in loaded.distributions:
                here = records.get(name)
                there = self._distributions.get(name)
                if (
                    here is not None and name != "longca"
                ):  # its code is mounted into the image: records name its commit
                    parts[f"{name} {here.version}"] = (
                        there is not None and here.record is not None and here.record == there.record
                    )
            for module in loaded.modules:
                parts[module.name] = self._modules.get(module.name) == module.sha256
        parts |= dict.fromkeys(loaded.changed, False)
        return ImageComparison(
            tuple(sorted(name for name, same in parts.items() if same)),
            tuple(sorted(name for name, same in parts.items() if not same)),
            len(system),
            sum(map(self._has, system)),
        )

    def _has(self, shared: SharedObject) -> bool:
        """True if the image has the same object at the same path."""
        is_packages = shared.origin in OF_PACKAGES
        there = self._objects.get((is_packages, shared.path))
        sha256 = self._files.get(shared.path) if is_packages else there and there.sha256
        if sha256 and shared.sha256 and shared.hashed in ("content", "record"):
            return sha256 == shared.sha256
        return there is not None and there.build_id is not None and there.build_id == shared.build_id


def own_lists(root: Path = PACKAGE_ROOT.parent) -> list[Path]:
    """The files of a project that list the contents of its images: `containers/<name>/contents.json`."""
    return sorted(root.glob(f"{FOLDER}/*/{NAME}"))


def image_lists(paths: Iterable[Path]) -> list[ImageList]:
    """The images of these lists, each named after the folder of its list. Unreadable lists are skipped."""
    return [image for path in paths if (image := _read(path)) is not None]


def best(
    images: Iterable[ImageList], installed: Installation, loaded: LoadedSoftware
) -> tuple[ImageList, ImageComparison] | None:
    """The image that contains most of the loaded software; None without images."""
    compared = [(image, image.compared(installed, loaded)) for image in images]
    return min(
        compared, key=lambda pair: (len(pair[1].differing), -len(pair[1].same), pair[0].name), default=None
    )


def _read(path: Path) -> ImageList | None:
    try:
        return ImageList.of(path.parent.name, read_json(read_file(path, ENVIRONMENTS)))
    except (OSError, JsonError, ValueError):
        return None
