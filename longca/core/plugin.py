"""The registry of plug-ins. A plug-in is a file in the folder of its kind, where the registry discovers it;
there is no list of plug-ins.

Kernels, masks, strategies, figures and claims are Python files that define one subclass of their kind's
contract; corpora are JSON files. The file name is the name of the plug-in. `LONGCA_PLUGINS` lists further
folders (separated like `PATH`), each with sub-folders named after the plurals of the kinds.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from longca.core.children.first_call import with_first_call
from longca.core.children.trial import MEND, refusals
from longca.core.errors import UserError, unknown
from longca.core.reading import PACKAGE_ROOT
from longca.core.signature import refused_signature, unable_without_methods

IN_WORKERS = ("prepare",)  # methods that only worker processes call


class BrokenPlugin(UserError):
    """The file of a plug-in is invalid: it is reported and skipped, and everything else continues."""


class Plugin:
    """Base class of every contract. The registry sets `name` and `path` from the file."""

    name: str = ""
    path: Path = Path()
    label: str = ""


@dataclass(frozen=True)
class Kind:
    """One kind of plug-in: its folder and its base class."""

    name: str
    plural: str
    folder: str  # relative to the package
    contract: str  # "module:class"
    suffix: str = ".py"
    replaced: Mapping[str, str] = field(default_factory=dict)
    """attributes of earlier contracts, which nothing reads any more, with what replaces each; an external
    plug-in that defines one is refused"""
    instead: Mapping[str, str] = field(default_factory=dict)
    """method that must be defined → another one that may be defined in its place"""


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("mask", "masks", "masks/patterns", "longca.masks.contract:Pattern"),
        Kind("corpus", "corpora", "data/corpora", "longca.data.corpus:Corpus", ".json"),
        Kind(
            "kernel",
            "kernels",
            "kernels/backends",
            "longca.kernels.contract:Kernel",
            replaced={"paper_row": "no longer read: the study's report knows the rows of its tables"},
        ),
        Kind(
            "strategy",
            "strategies",
            "cp/strategies",
            "longca.cp.contract:Strategy",
            replaced={
                "supports": (
                    "now the reason that local_calls(self, traits, call, world) returns instead of calls"
                ),
                "refusal_of": "now refusal(mask, call, world, kernel, device_type)",
                "refusal_with": "now refusal(mask, call, world, kernel, device_type)",
            },
            instead={"local_calls": "refusal"},
        ),
        Kind("figure", "figures", "lab/report/figures", "longca.lab.report.contract:Figure"),
        Kind("paper_figure", "paper_figures", "lab/paper/figures", "longca.lab.paper.contract:Exhibit"),
        Kind("claim", "claims", "lab/claims/study", "longca.lab.claims.contract:Claim"),
    )
}


class Registry:
    """All plug-ins of one kind. Listing only reads folders; loading imports one file."""

    def __init__(self, kind: str, extra_folders: list[Path] | None = None) -> None:
        self.kind = KINDS[kind]
        extra = plugin_folders() if extra_folders is None else extra_folders
        self.folders = [PACKAGE_ROOT / self.kind.folder, *(folder / self.kind.plural for folder in extra)]

    def paths(self) -> dict[str, Path]:
        """Name → file, sorted by name; of two with the same name the package's own, or the first."""
        return {name: folder / file for name, (folder, file) in sorted(self._files().items())}

    def _files(self) -> dict[str, tuple[Path, str]]:
        """Name → folder and file name. Studies call this thousands of times, so it avoids `glob` and a `Path`
        for each file."""
        files: dict[str, tuple[Path, str]] = {}
        for folder in self.folders:
            for file in sorted(entry.name for entry in os.scandir(folder)) if folder.is_dir() else []:
                name = file.removesuffix(self.kind.suffix)
                if name == file or not name or name.startswith("_"):
                    continue
                files.setdefault(name, (folder, file))
        return files

    def _clash(self, name: str) -> UserError | None:
        """The error if two files have this name: records would be ambiguous."""
        file = f"{name}{self.kind.suffix}"
        found = [str(folder / file) for folder in self.folders if (folder / file).exists()]
        what, why = f"Two {self.kind.plural} are named '{name}'", " and ".join(found[:2])
        return UserError(what, why=why, todo="Rename one of the files") if len(found) > 1 else None

    def names(self) -> list[str]:
        return sorted(self._files())

    def load(self, name: str) -> Any:
        """The plug-in of that name.

        Raises:
            UserError: no file has that name (the message suggests similar names), or two external ones do.
                The package's own file is taken before an external one, which is reported on stderr.
            BrokenPlugin: the file does not contain exactly one plug-in.
        """
        files = self._files()
        if not isinstance(name, str) or name not in files:
            todo = f"`longca list {self.kind.plural}` shows all"
            todo += "" if _named_folders() else ", and LONGCA_PLUGINS names no folder with others"
            raise unknown(self.kind.name, name, sorted(files), todo=todo)
        path = Path(*files[name])
        if len(self.folders) > 1 and (clash := self._clash(name)):
            if not path.is_relative_to(PACKAGE_ROOT):
                raise clash
            say_left_out(str(clash))
        contract = _contract(self.kind)
        if self.kind.suffix == ".py":
            self.check([name])
            plugin = load_file(self.kind, path)
        else:
            try:
                plugin = contract.from_file(path)
            except UserError as error:
                raise BrokenPlugin(
                    error.what, why=error.why, todo=error.todo, problems=error.problems
                ) from error
        plugin.name = name
        plugin.path = path
        return plugin

    def check(self, names: Sequence[str]) -> None:
        """Import external files in one separate process. Raises BrokenPlugin for the first that fails."""
        files = self._files()
        paths = [Path(*files[name]) for name in names if name in files]
        untried = [
            path
            for path in paths
            if not path.is_relative_to(PACKAGE_ROOT) and path.is_file() and not _is_imported(path)
        ]
        if self.kind.suffix == ".py" and untried:
            for what, why, todo in refusals(self.kind.name, untried).values():
                raise BrokenPlugin(what, why=why, todo=todo)

    def load_all(self) -> list[Any]:
        """All plug-ins. An external plug-in that cannot be loaded is reported on stderr and skipped."""
        with suppress(BrokenPlugin):  # of each below
            self.check(self.names())
        plugins = []
        for name, path in self.paths().items():
            try:
                plugins.append(self.load(name))
            except UserError as error:
                if path.is_relative_to(PACKAGE_ROOT):
                    raise
                say_left_out(str(error))
        return plugins


def is_of_package(kind: str, name: str) -> bool:
    """True for a plug-in of the package; False for an external or unknown one."""
    path = Registry(kind).paths().get(name)
    return path is not None and path.is_relative_to(PACKAGE_ROOT)


@functools.cache
def say_left_out(reason: str) -> None:
    """Report a skipped plug-in and the reason on stderr, once."""
    print(f"longca: left out: {reason}", file=sys.stderr)


def plugin_folders(*, may_be_new: bool = False) -> list[Path]:
    """Folders of external plug-ins, from `LONGCA_PLUGINS`. Raises UserError for a missing folder or one
    without plug-ins.

    Args:
        may_be_new: skip a missing folder instead, since a first plug-in is about to be written into it.
    """
    folders = [folder for folder in _named_folders() if folder.is_dir() or not may_be_new]
    for folder in folders:
        _check_folder(folder)
    return folders


def folder_for_new(kind: str) -> Path | None:
    """The folder for a new plug-in of the user, in the first folder of `LONGCA_PLUGINS`; None if that is not
    set.

    It may not exist yet.
    """
    folders = _named_folders()
    return folders[0] / KINDS[kind].plural if folders else None


def _named_folders() -> list[Path]:
    parts = os.environ.get("LONGCA_PLUGINS", "").split(os.pathsep)
    return list(dict.fromkeys(Path(part).expanduser().resolve() for part in parts if part))


@functools.cache
def _check_folder(folder: Path) -> None:
    plurals = [kind.plural for kind in KINDS.values()]
    if not folder.is_dir():
        raise UserError(
            f"LONGCA_PLUGINS names '{folder}'",
            why="there is no such folder",
            todo="Give a folder of plug-ins, or unset it",
        )
    if not any((folder / plural).is_dir() for plural in plurals) and any(folder.iterdir()):
        todo = (
            f"Give '{folder.parent}'"
            if folder.name in plurals
            else f"Plug-ins lie in sub-folders: {', '.join(plurals)}"
        )
        raise UserError(f"LONGCA_PLUGINS names '{folder}'", why="it holds no plug-ins", todo=todo)


def as_broken(path: Path, error: Exception) -> BrokenPlugin:
    """The error of an external plug-in that raised an unexpected exception. For a file of the package, raises
    the original exception."""
    if path.is_relative_to(PACKAGE_ROOT):
        raise error
    return BrokenPlugin(f"Plug-in '{path}' fails", why=_described(error), todo=MEND)


def _contract(kind: Kind) -> Any:
    module_name, _, class_name = kind.contract.partition(":")
    return getattr(importlib.import_module(module_name), class_name)


def load_file(kind: Kind, path: Path) -> Plugin:
    """The plug-in of this Python file, imported in this process. Raises BrokenPlugin."""
    contract: type[Plugin] = _contract(kind)
    if path.exists() and not path.is_file():
        raise BrokenPlugin(f"'{path}' is not a plug-in", why="it is no file", todo="Remove it or make it one")
    module = _import_file(path)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, contract)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]
    if len(classes) != 1:
        raise BrokenPlugin(
            f"'{path}' is not a plug-in",
            todo="Remove it or make it one",
            why=f"it must define exactly one subclass of {contract.__name__}, found {len(classes)}",
        )
    if not path.is_relative_to(PACKAGE_ROOT):
        _check_replaced(path, classes[0], kind)
        _check_attributes(path, classes[0], contract)
        _check_methods(path, classes[0], contract)
        _try_methods_first(path, classes[0], contract)
        unable_without_methods(classes[0], contract, kind.instead)
    try:
        return classes[0]()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BrokenPlugin(f"Plug-in '{path}' cannot be made", why=_described(error), todo=MEND) from error


def _check_replaced(path: Path, plugin: type[Plugin], kind: Kind) -> None:
    """Raise BrokenPlugin if the plug-in defines an attribute of an earlier contract."""
    for name, now in kind.replaced.items():
        if hasattr(plugin, name):
            raise BrokenPlugin(f"Plug-in '{path}' cannot be used", why=f"`{name}` is {now}", todo=MEND)


def _check_attributes(path: Path, plugin: type[Plugin], contract: type[Plugin]) -> None:
    """Raise BrokenPlugin if an attribute has another type than its default in the contract: the text "torch"
    would be taken for five names."""
    for name, default in inspect.getmembers(contract, lambda value: isinstance(value, (str, int, tuple))):
        value = inspect.getattr_static(plugin, name)
        kinds = (tuple, list) if isinstance(default, tuple) else type(default)
        if name.startswith("_") or isinstance(value, kinds) or hasattr(type(value), "__get__"):
            continue
        raise BrokenPlugin(
            f"Plug-in '{path}' cannot be used",
            why=f"`{name}` is of type {type(value).__name__}, and must be of type {type(default).__name__}",
            todo=MEND,
        )


def _check_methods(path: Path, plugin: type[Plugin], contract: type[Plugin]) -> None:
    """Raise BrokenPlugin if the signature of a method is incompatible with the contract, since its first call
    would fail elsewhere."""
    for name, asked in inspect.getmembers(contract, inspect.isfunction):
        own = inspect.getattr_static(plugin, name)
        if name.startswith("_") or not inspect.isfunction(own) or own is asked:
            continue
        parameters = [*inspect.signature(asked).parameters.values()]
        keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        given = refused_signature(own, len(parameters) - len(keywords), keywords)
        if given is not None:
            expected = ", ".join(parameter.name for parameter in parameters)
            raise BrokenPlugin(
                f"Plug-in '{path}' cannot be used",
                why=f"{name}{given} is called as {name}({expected})",
                todo=MEND,
            )


def _try_methods_first(path: Path, plugin: type[Plugin], contract: type[Plugin]) -> None:
    """Make the first call of each method that commands call directly in a fork of the process."""

    def refuse(name: str, reason: str) -> BrokenPlugin:
        return BrokenPlugin(f"Plug-in '{path}' cannot be used", why=f"its method {name} {reason}", todo=MEND)

    for name, _ in inspect.getmembers(contract, inspect.isfunction):
        own = vars(plugin).get(name)
        if not name.startswith("_") and name not in IN_WORKERS and inspect.isfunction(own):
            setattr(plugin, name, with_first_call(own, functools.partial(refuse, name)))


def _import_file(path: Path) -> ModuleType:
    try:
        if path.is_relative_to(PACKAGE_ROOT):
            return importlib.import_module(
                "longca." + ".".join(path.relative_to(PACKAGE_ROOT).with_suffix("").parts)
            )
        return _import_from_outside(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BrokenPlugin(
            f"Plug-in '{path}' cannot be imported", why=_described(error), todo=MEND
        ) from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}{_place(error)}"


def _place(error: BaseException) -> str:
    """The last frame of the traceback outside of Python's own import machinery, in brackets."""
    if isinstance(error, SyntaxError):
        return ""  # its message names file and line
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__)
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _import_from_outside(path: Path) -> ModuleType:
    module_name = _module_name(path)
    if _is_imported(path):
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _is_imported(path: Path) -> bool:
    module = sys.modules.get(_module_name(path))
    return module is not None and module.__file__ == str(path)


def _module_name(path: Path) -> str:
    """The module name of an external plug-in."""
    return f"longca_plugins.{path.parent.name}.{path.stem}"
