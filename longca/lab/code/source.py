"""The program's own files: those that some module runs, found by following imports, and a digest of them.

Imports are read from the text by a pattern. Parsing all files takes two seconds, and Snakemake asks for these
digests each time it reads the workflow, in every job. A test compares the pattern with the parser on each
file of the package.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from longca.core import KINDS, PACKAGE_ROOT, Registry
from longca.core.lazy import Offers, offers

PACKAGE = PACKAGE_ROOT.name
IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+((?:{PACKAGE}\b|\.)[.\w]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)"
    rf"|import[ \t]+([^\n]*\b{PACKAGE}\b[^\n]*))",
    re.MULTILINE,
)
TYPING_ONLY = re.compile(
    r"^([ \t]*)if (?:typing\.)?TYPE_CHECKING:[^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\n)+", re.MULTILINE
)
STARTED = re.compile(rf'"-m", "({PACKAGE}[.\w]*)"')  # a module that another process runs
SCANNED = re.compile(r'\bRegistry\("(\w+)"')  # a kind of plug-in that is looked for by name


class _Text(NamedTuple):
    """One file: a hash of its bytes, and what it names of other files."""

    sha256: str
    modules: tuple[str, ...]
    """imported from the package; also names in modules and faces, and all packages above; none under
    TYPE_CHECKING"""
    whole: tuple[str, ...]
    """those of them that may be imported as modules, by `import a.b` or `from a import b`. `longca` itself is
    not among them: a plug-in that imports it would run everything"""
    kinds: tuple[str, ...]  # of plug-ins


def source_digest(*modules: str, without: tuple[str, ...] = ()) -> str:
    """12 hexadecimal digits over the names and contents of every file that these modules run.

    Those are all modules that they import (at their beginning or inside functions, directly or not), the
    modules that they start as processes, every plug-in of the kinds that they look up, and the templates and
    other data files of all packages reached.

    Args:
        modules: full names, such as "longca.lab.cli.run".
        without: packages and modules that are not followed, since they do not run here.
    """

    def follow(module: str) -> bool:
        return not any(f"{module}.".startswith(f"{name}.") for name in without)

    known = modules_of_package()
    waiting = {known[name] for name in modules}
    files: set[Path] = set()
    kinds: set[str] = set()
    while waiting:
        files |= reached(waiting, follow)
        new = {kind for path in files for kind in _text(path).kinds if kind in KINDS} - kinds
        kinds |= new
        waiting = {
            path
            for kind in new
            if follow(f"{PACKAGE}.{KINDS[kind].folder.replace('/', '.')}")
            for path in (*Registry(kind).paths().values(), known[KINDS[kind].contract.partition(":")[0]])
        }
    packages = {path.parent for path in files if path.name == "__init__.py"}
    return files_digest({*files, *(path for package in packages for path in _data_files(package))})


@functools.cache
def package_digest() -> str:
    """12 hexadecimal digits over the names and contents of all Python files of the package."""
    return files_digest(modules_of_package().values())


def reached(start: Iterable[Path], follow: Callable[[str], bool] = lambda module: True) -> set[Path]:
    """These files and the package's files that they import, directly or not, with the `__init__` of each
    package on the way. A name from a package's face leads to the module that defines it, not to all that the
    face offers.

    Args:
        follow: says whether a module with this full name counts. One that does not is not followed either.
    """
    known = modules_of_package()
    files: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        if path.suffix == ".py":
            names = {*imported_modules(path), *_with_parents(module_name(path) or "")}
            waiting += [known[name] for name in names if name in known and follow(name)]
    return files


def imported_modules(path: Path) -> set[str]:
    """Full names of the modules that a file imports from the package, and of all packages above them.

    A package that is imported as a module, as by `import longca.masks`, stands for all that its face offers.
    """
    known = modules_of_package()
    text = _text(path)
    offered = list(text.whole)
    for package in offered:  # grows meanwhile, by packages that a face offers as a whole
        offered += [f"{package}.{name}" for name in _face(package)]
    names = {*text.modules, *offered}
    modules: set[str] = set()
    for name in names:
        module = name if name in known else definition(*name.rpartition(".")[::2])[0]
        modules.update(_with_parents(module))
    return modules & known.keys()


def definition(module: str, name: str) -> tuple[str, str]:
    """The module that defines a name of a module, and the name there: "" where the module itself is meant.

    A name of a package's face is followed to where the face has it from. Names that a module merely imports
    are not followed.
    """
    if f"{module}.{name}" in modules_of_package():
        return f"{module}.{name}", ""
    origin, attribute = _face(module).get(name, (module, name))
    return definition(origin, attribute) if attribute and origin != module else (origin, attribute)


def files_digest(paths: Iterable[Path]) -> str:
    """12 hexadecimal digits over the names and contents of these files. A file outside the package counts
    without its folder."""
    root = f"{PACKAGE_ROOT}{os.sep}"
    lines = [
        f"{str(path).removeprefix(root) if str(path).startswith(root) else path.name}\0{_text(path).sha256}\n"
        for path in paths
    ]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]


@functools.cache
def modules_of_package() -> dict[str, Path]:
    """Full name → file of each module of the package; a package's file is its `__init__`."""
    modules = {}
    for folder, _, files in os.walk(PACKAGE_ROOT):
        package = ".".join([PACKAGE, *Path(folder).relative_to(PACKAGE_ROOT).parts])
        for file in files:
            if file.endswith(".py"):
                modules[package if file == "__init__.py" else f"{package}.{file[:-3]}"] = Path(folder, file)
    return modules


def module_name(path: Path) -> str | None:
    """The full name of a file's module; None outside the package."""
    return _names_of_files().get(path)


def absolute(module: str, path: Path) -> str:
    """The full name of a module that the file at `path` imports as `module`, which may begin with dots."""
    name = module.lstrip(".")
    if name == module:
        return module
    base = (module_name(path) or "").split(".")
    levels = len(module) - len(name) - (path.name == "__init__.py")
    return ".".join([*base[: len(base) - levels], *([name] if name else [])])


@functools.cache
def _names_of_files() -> dict[Path, str]:
    return {path: name for name, path in modules_of_package().items()}


def _face(package: str) -> Offers:
    """The names that the face of a package offers; none for a module."""
    path = modules_of_package().get(package)
    if path is None or path.name != "__init__.py":
        return {}
    return _offers(path, path.stat().st_mtime_ns, package)


@functools.cache
def _offers(path: Path, _mtime_ns: int, package: str) -> Offers:
    return offers(path.read_text(encoding="utf-8"), package)


def _text(path: Path) -> _Text:
    return _read(path, path.stat().st_mtime_ns)


@functools.cache
def _read(path: Path, _mtime_ns: int) -> _Text:
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if path.suffix != ".py":
        return _Text(sha256, (), (), ())
    text = content.decode()
    names: set[str] = set(STARTED.findall(text)) if '"-m"' in text else set()
    whole: set[str] = set()
    for module, imported, plain in IMPORT.findall(
        TYPING_ONLY.sub("", text) if "TYPE_CHECKING:" in text else text
    ):
        if module:
            base = absolute(module, path)
            names.add(base)
            whole |= {base if name == "*" else f"{base}.{name}" for name in _listed(imported)}
        else:
            whole |= {name for name in _listed(plain) if name.partition(".")[0] == PACKAGE}
    kinds = set(SCANNED.findall(text)) if "Registry(" in text else set()
    modules = {each for name in names | whole for each in _with_parents(name)}
    return _Text(sha256, tuple(modules), tuple(whole - {PACKAGE}), tuple(kinds))


def _listed(names: str) -> list[str]:
    """The names in an import's list, which may have brackets, comments and new names."""
    if "#" in names:
        names = re.sub(r"#[^\n]*", "", names)
    return [part.split()[0] for part in names.strip(" \t()").split(",") if part.strip()]


@functools.cache
def _with_parents(name: str) -> tuple[str, ...]:
    """ "a.b.c" → "a", "a.b", "a.b.c"."""
    parts = name.split(".")
    return tuple(".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _data_files(package: Path) -> list[Path]:
    """Files of a package that are no Python, in it and in its folders that are no packages."""
    files = []
    with os.scandir(package) as entries:
        for entry in entries:
            if entry.is_file() and not entry.name.endswith((".py", ".pyc")):
                files.append(Path(entry.path))
            elif (
                entry.is_dir()
                and entry.name != "__pycache__"
                and not Path(entry.path, "__init__.py").exists()
            ):
                files += [
                    file
                    for file in Path(entry.path).rglob("*")
                    if file.is_file() and "__pycache__" not in file.parts
                ]
    return files
