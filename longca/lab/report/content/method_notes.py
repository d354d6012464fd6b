"""Descriptions of methods: what each is, its source, and the packages that its records ran with. Plug-ins are
read, not imported, since a page needs neither torch nor kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from longca.core import PACKAGE_ROOT, Registry
from longca.lab.report.content.builds import Builds
from longca.lab.store import RecordTable
from longca.lab.store.environments import Environments
from longca.lab.studies import Record

PACKAGES = {  # module that a kernel needs → distributions that provide it
    "torch": ("torch",),
    "triton": ("triton",),
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    "cutlass": ("nvidia-cutlass-dsl",),
    "tvm_ffi": ("apache-tvm-ffi",),
    "quack": ("flash-attn-4", "quack-kernels"),  # FlashAttention-4 shares its module's name with version 2
    "flash_attn.cute": ("flash-attn-4",),
    "flash_attn": ("flash-attn",),
    "flash_attn_2_cuda": ("flash-attn",),
    "flash_attn_interface": ("flash-attn-3",),
    "flashinfer": ("flashinfer-python",),
    "fastvideo_kernel": ("fastvideo-kernel",),
    "magi_attention": ("magi-attention",),
    "ring_flash_attn": ("ring-flash-attn",),
    "yunchang": ("yunchang",),
}


INHERITED = ("needs", "url")
PROJECT = PACKAGE_ROOT.parent
UNNAMED = "no recorded package provides it, such as a build from sources"
DOCUMENTS = {"kernel": "docs/design/kernels.md", "strategy": "docs/design/context-parallelism.md"}


@dataclass(frozen=True)
class PartNote:
    """A kernel, or a strategy of context parallelism."""

    name: str
    label: str
    summary: str
    """what it is; "" for a plug-in that is not installed"""
    url: str
    packages: tuple[str, ...]
    """the packages that it runs on, with the versions of its records"""
    builds: tuple[str, ...]
    """the toolkit that torch is built for, and the files of its own packages by their digests"""
    unnamed: tuple[str, ...]
    """modules that it needs beside torch, if no recorded package provides any of them"""
    document: str
    """the file of the documents that describes its kind"""
    num_cells: int

    @property
    def anchor(self) -> str:
        """The id of its row on the page."""
        return f"about-{self.name}"


@dataclass(frozen=True)
class MethodNotes:
    """Descriptions of the methods of a page."""

    parts: tuple[PartNote, ...]
    """each once, strategies last"""
    tips: dict[str, str]
    """method → text of its tip"""
    anchors: dict[str, str]
    """method → anchor of its kernel, or of its strategy"""


def method_notes(
    records: RecordTable | Iterable[Record], methods: Sequence[str], listings: Environments | None = None
) -> MethodNotes:
    """Notes on these methods.

    Args:
        listings: of the software of the records, for the builds that they ran.
    """
    listings = Environments() if listings is None else listings
    builds: dict[str, Builds] = {}
    versions: dict[str, dict[str, set[str]]] = {}
    counts: dict[str, int] = {}
    for environment, (method,), count in RecordTable.of(records).environments("method"):
        packages = environment.software.packages if environment else {}
        for name in method.split("+"):
            counts[name] = counts.get(name, 0) + count
            if environment:
                builds.setdefault(name, Builds()).add(environment, listings)
            for package, version in packages.items():
                versions.setdefault(name, {}).setdefault(package, set()).add(version)
    kinds = {name: "kernel" for method in methods for name in method.split("+")[-1:]}
    kinds |= {name: "strategy" for method in methods for name in method.split("+")[:-1]}
    parts = {
        name: _note(kind, name, versions.get(name, {}), builds.get(name, Builds()), counts.get(name, 0))
        for name, kind in kinds.items()
    }
    return MethodNotes(
        tuple(parts.values()),
        {method: _tip(method, [parts[name] for name in method.split("+")]) for method in methods},
        {method: parts[method.split("+")[0]].anchor for method in methods},
    )


def folder_of_documents(page: Path) -> str:
    """The way from a page to the project that it lies in, whose documents it may link to: "../../"; "" for a
    page elsewhere."""
    for depth, folder in enumerate(page.resolve().parents[:4]):
        if all((folder / document).is_file() for document in DOCUMENTS.values()):
            return "../" * depth or "./"
    return ""


def _tip(method: str, parts: Sequence[PartNote]) -> str:
    several = len(parts) > 1
    lines = [f"{part.label}: {part.summary}" if several else part.summary for part in parts if part.summary]
    packages = dict.fromkeys(package for part in parts for package in part.packages)
    unnamed = dict.fromkeys(module for part in parts for module in part.unnamed)
    built = f"{', '.join(unnamed)}: {UNNAMED}" if unnamed else ""
    builds = dict.fromkeys(build for part in parts for build in part.builds)
    lines = [line.replace("`", "") for line in lines]  # a tip is plain text
    return "\n".join(line for line in (method, *lines, ", ".join(packages), built, ", ".join(builds)) if line)


def packages_of(kind: str, name: str) -> tuple[str, ...]:
    """The distributions that a kernel or strategy runs on, by the modules that its file says it needs."""
    path = Registry(kind).paths().get(name)
    modules = (_constants(path) if path else {}).get("needs", ("torch",))
    return tuple(
        dict.fromkeys(
            package
            for module in modules
            for package in PACKAGES.get(module, PACKAGES.get(module.partition(".")[0], ()))
        )
    )


def _note(kind: str, name: str, versions: dict[str, set[str]], builds: Builds, num_cells: int) -> PartNote:
    path = Registry(kind).paths().get(name)
    known = _constants(path) if path else {}
    modules = known.get("needs", ("torch",))
    provided = {
        module: PACKAGES.get(module, PACKAGES.get(module.partition(".")[0], ())) for module in modules
    }
    special = [module for module in modules if module not in ("torch", "triton")]
    has_package = any(set(provided[module]) & versions.keys() for module in special)
    unnamed = special if versions and not has_package else []
    packages = [
        f"{package} {' and '.join(sorted(versions[package]))}"
        for package in packages_of(kind, name)
        if package in versions
    ]
    own = [package for module in special for package in provided[module] if package in versions]
    ran = builds.names(special, own) if num_cells else ()
    label, summary, url = (str(known.get(field, "")) for field in ("label", "summary", "url"))
    return PartNote(
        name, label or name, summary, url, tuple(packages), ran, tuple(unnamed), DOCUMENTS[kind], num_cells
    )


@cache
def _constants(path: Path) -> dict[str, Any]:
    """The constants of the classes of a plug-in's file, without running it. What a method needs, and its
    address, are those of the method that it is a variant of, where its own file does not say."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, Any] = {}
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    for file in _files_of_bases(tree, classes):
        values |= {name: value for name, value in _constants(file).items() if name in INHERITED}
    for node in (node for part in classes for node in part.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("label", "summary", "url", "needs"):
                try:
                    values[name] = ast.literal_eval(_resolved(node.value, constants))
                except ValueError:
                    continue
    return values


def _files_of_bases(tree: ast.Module, classes: Sequence[ast.ClassDef]) -> list[Path]:
    """The plug-ins' files that classes of a file have their bases from."""
    bases = {base.id for part in classes for base in part.bases if isinstance(base, ast.Name)}
    modules = [
        node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and node.module
        and bases & {alias.asname or alias.name for alias in node.names}
    ]
    known = {path for kind in DOCUMENTS for path in Registry(kind).paths().values()}
    files = [PROJECT.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    return [file for file in files if file in known]


def _resolved(value: ast.expr, constants: dict[str, ast.expr]) -> ast.expr:
    """The value, or the tuple of values, with names replaced by the constants of the file."""
    if isinstance(value, ast.Tuple):
        return ast.Tuple([_resolved(part, constants) for part in value.elts], value.ctx)
    return constants.get(value.id, value) if isinstance(value, ast.Name) else value
