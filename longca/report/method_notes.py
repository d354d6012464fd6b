"""Descriptions of methods: what each is, its source, and the packages that its records ran with. Plug-ins are
read, not imported, since a page needs neither torch nor kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from longca.core.plugin import Registry
from longca.core.record import Record

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
}


@dataclass(frozen=True)
class MethodNote:
    """A method of a page: a kernel, or a strategy with its kernel."""

    method: str
    summary: str
    """what it is; "" for a plug-in that is not installed"""
    urls: tuple[str, ...]
    packages: tuple[str, ...]
    """the packages that it runs on, with the versions of its records"""
    num_cells: int

    @property
    def tip(self) -> str:
        lines = [self.method, self.summary, ", ".join(self.packages)]
        return "\n".join(line for line in lines if line)


def method_notes(records: Iterable[Record], methods: Sequence[str]) -> list[MethodNote]:
    """A note on each method, in their order."""
    versions: dict[str, dict[str, set[str]]] = {method: {} for method in methods}
    counts = dict.fromkeys(methods, 0)
    for record in records:
        method = record.cell.method
        if method not in versions:
            continue
        counts[method] += 1
        for package, version in record.environment.software.packages.items() if record.environment else ():
            versions[method].setdefault(package, set()).add(version)
    return [_note(method, versions[method], counts[method]) for method in methods]


def _note(method: str, versions: dict[str, set[str]], num_cells: int) -> MethodNote:
    strategy, _, kernel = method.rpartition("+")
    parts = [_plugin("strategy", strategy)] if strategy else []
    parts.append(_plugin("kernel", kernel))
    known = {part["label"]: part["summary"] for part in parts if part.get("summary")}
    summary = (
        "; ".join(f"{label}: {text}" for label, text in known.items())
        if len(known) > 1
        else "".join(known.values())
    )
    modules = [module for part in parts for module in part.get("needs", ("torch",))]
    needed = [
        package
        for module in modules
        for package in PACKAGES.get(module, PACKAGES.get(module.partition(".")[0], ()))
    ]
    packages = [
        f"{package} {' and '.join(sorted(versions[package]))}"
        for package in dict.fromkeys(needed)
        if package in versions
    ]
    return MethodNote(
        method, summary, tuple(part["url"] for part in parts if part.get("url")), tuple(packages), num_cells
    )


def _plugin(kind: str, name: str) -> dict[str, Any]:
    path = Registry(kind).paths().get(name)
    return {"label": name, **_constants(path)} if path else {"label": name}


@cache
def _constants(path: Path) -> dict[str, Any]:
    """The constants of the classes of a plug-in's file, without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, Any] = {}
    for node in (node for part in tree.body if isinstance(part, ast.ClassDef) for node in part.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("label", "summary", "url", "needs"):
                try:
                    values[name] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    return values
