"""The software that this process has loaded: shared objects by `/proc/self/maps`, and imported modules by
`sys.modules`."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from longca.core import PACKAGE_ROOT, plugin_folders
from longca.lab.environment.elf import WHOLE_BYTES, build_id, is_elf, sample_of, sha256_of
from longca.lab.environment.packages import PackageFolder, Tree, module_name
from longca.lab.studies.facts import LoadedSoftware, LooseModule, SharedObject

MAPS = Path("/proc/self/maps")
DELETED = " (deleted)"
SYSTEM = ("/usr/", "/lib", "/opt/", "/nix/", "/.singularity.d/", "/run/")
"""folders of the system. Packages and Python are looked for first, so that one of them may lie in there"""
TEMPORARY = re.compile(r"/(tmp\w{8}|torchinductor_[^/]*|\.triton)/")


class FileState(NamedTuple):
    """The state of a file by which it is known to be unchanged."""

    path: Path
    num_bytes: int
    time_ns: int


class LoadedFiles:
    """Looks up what this process has loaded. It keeps its results about a file until the file's size or
    time changes.

    Objects that Triton, Inductor and the like compile while they run are left out: they follow from the rest,
    and each call has its own.

    Args:
        sites: folders of packages. Of folders inside each other that one counts whose distributions list a
            file, else the inner one.
    """

    def __init__(self, sites: Iterable[PackageFolder]) -> None:
        self._sites = tuple(sites)
        self._insides: dict[str, list[tuple[PackageFolder, str]]] = {}
        self._objects: dict[FileState, SharedObject] = {}
        self._modules: dict[tuple[Path, str], LooseModule | None] = {}
        self._imported = set[str]()
        self._distributions = set[str]()
        self._changed = set[str]()
        self._tops = set[tuple[PackageFolder, str]]()
        self._last: tuple[frozenset[str], int, LoadedSoftware] | None = None

    def look(
        self, maps: str | None = None, modules: Mapping[str, ModuleType] | None = None
    ) -> LoadedSoftware | None:
        """All that is mapped now and was imported until now; None where the system does not tell.

        Args:
            maps: the content of `/proc/self/maps`, which is read if not given.
            modules: `sys.modules` if not given.
        """
        if maps is None:
            try:
                maps = MAPS.read_text(encoding="utf-8", errors="surrogateescape")
            except OSError:
                return None
        mapped = mapped_files(maps)
        imported = dict(sys.modules if modules is None else modules)
        if self._last is None or self._last[:2] != (mapped, len(imported)):
            self._last = mapped, len(imported), self._looked(mapped, imported)
        return self._last[2]

    def _looked(self, mapped: frozenset[str], imported: Mapping[str, ModuleType]) -> LoadedSoftware:
        objects = [shared for text in sorted(mapped) if (shared := self._object(text)) is not None]
        files = {
            file for module in imported.values() if isinstance(file := getattr(module, "__file__", None), str)
        }
        for text in files - self._imported:
            self._import(text)
        self._imported |= files
        modules = [module for site, top in self._tops if (module := self._loose(site, top)) is not None]
        return LoadedSoftware(
            distributions=tuple(sorted(self._distributions)),
            changed=tuple(sorted(self._changed)),
            modules=tuple(sorted(modules, key=lambda module: (module.name, module.sha256))),
            objects=tuple(sorted(objects, key=lambda shared: (shared.origin, shared.owner, shared.path))),
        )

    def _object(self, text: str) -> SharedObject | None:
        """The object of a mapped file; None for other files and for what was compiled while this process
        ran."""
        path = Path(text)
        inside = self._inside(text)
        if inside is None and is_compiled(path):
            return None
        if text.endswith(DELETED):  # another file may be in its place by now
            return SharedObject(origin="elsewhere", path=_plain(path.name)) if ".so" in path.name else None
        if inside is not None and inside[1] not in inside[0].owners:
            self._tops.add((inside[0], inside[1].partition("/")[0]))
        try:
            facts = path.stat()
        except OSError:
            return None
        state = FileState(path, facts.st_size, facts.st_mtime_ns)
        if state not in self._objects:
            if not is_elf(path):
                return None
            self._objects[state] = self._described(state, inside)
        return self._objects[state]

    def _described(self, state: FileState, inside: tuple[PackageFolder, str] | None) -> SharedObject:
        path = state.path
        identity = None
        with suppress(OSError):
            identity = build_id(path)
        if inside is None:
            origin, name = self._origin(path)
            shared = SharedObject(origin=origin, path=_plain(name), build_id=identity)
            return (
                shared if identity is not None and origin in ("python", "system") else _hashed(state, shared)
            )
        site, below = inside
        owner = site.owners.get(below)
        if owner is None:
            name = module_name(below.partition("/")[0])
            return _hashed(
                state,
                SharedObject(origin="module", owner=_plain(name), path=_plain(below), build_id=identity),
            )
        shared = SharedObject(origin="distribution", owner=owner.name, path=_plain(below), build_id=identity)
        if owner.size(below) == state.num_bytes and (sha256 := owner.sha256(below)) is not None:
            return shared.model_copy(update={"sha256": sha256, "hashed": "record"})
        return _hashed(state, shared)

    def _origin(self, path: Path) -> tuple[Literal["python", "system", "elsewhere"], str]:
        """Origin and name of an object that lies in no folder of packages."""
        for folder in python_folders():
            if path.is_relative_to(folder):
                return "python", path.relative_to(folder).as_posix()
        if path == Path(sys.executable).resolve():
            return "python", "python"
        if path.name.startswith("libpython"):
            return "python", path.name
        return ("system", str(path)) if str(path).startswith(SYSTEM) else ("elsewhere", path.name)

    def _import(self, text: str) -> None:
        """Sort the file of an imported module: into a distribution, or into the top-level modules that belong
        to none."""
        inside = self._inside(text)
        if inside is None:
            return
        site, below = inside
        owner = site.owners.get(below)
        if owner is None:
            self._tops.add((site, below.partition("/")[0]))
            return
        self._distributions.add(owner.name)
        with suppress(OSError):
            if owner.size(below) not in (None, Path(text).stat().st_size):
                self._changed.add(_plain(below))

    def _loose(self, site: PackageFolder, top: str) -> LooseModule | None:
        key = site.folder, top
        if key not in self._modules:
            with suppress(OSError):  # files that are just being changed: tried again after the next cell
                tree = site.tree(top, lambda path: self._is_owned(site, path))
                self._modules[key] = None if tree is None else _module(tree)
        return self._modules.get(key)

    def _is_owned(self, site: PackageFolder, path: str) -> bool:
        """True if a distribution lists this path below a folder of packages, be it one of another folder
        around it."""
        inside = self._inside(str(site.folder / path))
        return inside is not None and inside[1] in inside[0].owners

    def _inside(self, text: str) -> tuple[PackageFolder, str] | None:
        """The folder of packages of a file, and its path in there; None for files of Python, of longca itself
        and of its plug-ins."""
        folder, _, name = text.rpartition("/")
        if folder not in self._insides:
            self._insides[folder] = self._insides_of(Path(folder).resolve())
        insides = [(site, f"{below}{name}") for site, below in self._insides[folder]]
        owned = next((inside for inside in insides if inside[1] in inside[0].owners), None)
        return owned or next(iter(insides), None)

    def _insides_of(self, folder: Path) -> list[tuple[PackageFolder, str]]:
        """The folders of packages that hold a folder, the inner ones first, each with the way from there, ""
        or one that ends in "/"."""
        if any(folder.is_relative_to(own.resolve()) for own in (PACKAGE_ROOT, *plugin_folders())):
            return []
        deepest = max(
            (len(python.parts) for python in python_folders() if folder.is_relative_to(python)), default=0
        )
        sites = [
            site
            for site in self._sites
            if folder.is_relative_to(site.folder) and len(site.folder.parts) > deepest
        ]
        sites.sort(key=lambda site: -len(site.folder.parts))
        ways = [folder.relative_to(site.folder).as_posix() for site in sites]
        return [(site, "" if way == "." else f"{way}/") for site, way in zip(sites, ways, strict=True)]


def search_folders(entries: Iterable[str] | None = None) -> list[Path]:
    """The folders where this Python finds packages, in order, without those of its own modules.

    Args:
        entries: of the search path; `sys.path` if not given.
    """
    folders = dict.fromkeys(
        Path(entry or ".").resolve() for entry in (sys.path if entries is None else entries)
    )
    return [folder for folder in folders if folder.is_dir() and folder not in python_folders()]


@functools.cache
def python_folders() -> tuple[Path, ...]:
    """Folders of Python's own modules. In a virtual environment they are those of the Python that it is
    of."""
    shared = sysconfig.get_config_var("DESTSHARED")
    folders = [Path(sysconfig.get_path("stdlib")), *([Path(shared).parent, Path(shared)] if shared else [])]
    return tuple(dict.fromkeys(folder.resolve() for folder in folders))


def _module(tree: Tree) -> LooseModule:
    return LooseModule(
        name=_plain(tree.name),
        num_files=tree.num_files,
        num_bytes=tree.num_bytes,
        sha256=tree.sha256,
        is_whole=tree.is_whole,
    )


def _hashed(state: FileState, shared: SharedObject) -> SharedObject:
    """The same with a hash of its content, of a very large one of parts; without one if it cannot be read."""
    is_whole = state.num_bytes <= WHOLE_BYTES
    with suppress(OSError):
        return shared.model_copy(
            update={
                "sha256": sha256_of(state.path) if is_whole else sample_of(state.path),
                "hashed": "content" if is_whole else "sample",
            }
        )
    return shared


def mapped_files(maps: str) -> frozenset[str]:
    """The files of which `/proc/self/maps` shows code."""
    files = set()
    for line in maps.splitlines():
        parts = line.split(maxsplit=5)
        if (
            len(parts) == 6
            and "x" in parts[1]
            and parts[5].startswith("/")
            and not parts[5].startswith(("/memfd:", "/dev/", "/anon"))
        ):
            files.add(parts[5])
    return frozenset(files)


def is_compiled(path: Path) -> bool:
    """True for a file in a folder where compilers put what they make while a program runs."""
    text = str(path)
    caches = (os.environ.get("TRITON_CACHE_DIR"), os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    if any(cache and path.is_relative_to(cache) for cache in caches):
        return True
    match = TEMPORARY.search(text)
    return match is not None and (match[1] == ".triton" or text.startswith(tempfile.gettempdir()))


def _plain(text: str) -> str:
    """A name that JSON holds: bytes that are no Unicode are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
