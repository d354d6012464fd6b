"""The method version: a hash of all that defines how a cell's number is made.

A finished cell is measured again only if it changed. It covers the code that makes the mask and that runs in and around the timed
call, as far as imports lead inside the packages of masks, kernels, lowerings, operators and strategies; where documents come from; how
it is timed and judged; the settings; the packages that kernel and strategy need; the device's model; the container. What only reports
on it (environment, records, pages) is left out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from longca.bench.measure.environment import CONTAINER
from longca.core.cell import Cell
from longca.core.plugin import PACKAGE_ROOT, Registry
from longca.core.study import Measure

FOLLOWED = ("longca.masks", "longca.kernels", "longca.lowering", "longca.ops", "longca.cp")
CALL_FILES = ("masks/build.py", "kernels/contract.py")
BENCH_FILES = ("bench/measure/timer.py", "bench/check/inputs.py", "bench/measure/kernel.py", "bench/measure/memory.py",
               "bench/check/oracle.py", "bench/check/raster.py", "bench/check/reference.py", "bench/check/scope.py",
               "bench/check/tally.py", "bench/measure/trial.py")
CP_FILES = ("bench/measure/cp.py", "bench/measure/permute.py")
DATA_FILES = ("data/corpus.py", "data/sampler.py")


def method_version(cell: Cell, measure: Measure, device_name: str) -> str:
    """12 hexadecimal digits.

    Args:
        device_name: model of the device, as `longca.bench.measure.environment.device_name` gives it.
    """
    plugins = [Registry("kernel").load(cell.kernel), *([Registry("strategy").load(cell.strategy)] if cell.strategy else [])]
    needs = sorted({"torch", *(module for plugin in plugins for module in plugin.needs)})
    unless = {"messages"} if cell.kind == "kernel" or measure.messages == "nccl" else set()
    content = {"files": {name: _digest(path, path.stat().st_mtime_ns) for name, path in sorted(_named(_files(cell)).items())},
               "measure": measure.model_dump(exclude=unless), "packages": {module: _module_version(module) for module in needs},
               "device": device_name, "container": os.environ.get(CONTAINER)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _files(cell: Cell) -> set[Path]:
    """Every file that has a part in the cell's number."""
    start = [Registry("mask").paths()[cell.mask], Registry("kernel").paths()[cell.kernel], *(PACKAGE_ROOT / name for name in CALL_FILES)]
    fixed = [PACKAGE_ROOT / name for name in BENCH_FILES]
    if cell.corpus is not None:
        fixed += [Registry("corpus").paths()[cell.corpus], *(PACKAGE_ROOT / name for name in DATA_FILES)]
    if cell.strategy is not None:
        start.append(Registry("strategy").paths()[cell.strategy])
        fixed += [PACKAGE_ROOT / name for name in CP_FILES]
    return set(fixed) | _reached(start)


def _reached(start: Iterable[Path]) -> set[Path]:
    """These files and what they import, directly or not, from the packages that are followed."""
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(path, path.stat().st_mtime_ns)
    return found


@functools.cache
def _imports(path: Path, _mtime_ns: int) -> tuple[Path, ...]:
    modules: set[str] = set()
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            modules |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            modules |= {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    files = (PACKAGE_ROOT.parent / (module.replace(".", "/") + ".py") for module in modules if module.startswith(FOLLOWED))
    return tuple(sorted(file for file in files if file.exists()))


@functools.cache
def _digest(path: Path, _mtime_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _named(files: Iterable[Path]) -> dict[str, Path]:
    """Files by a name that is the same in every checkout."""
    return {str(file.relative_to(PACKAGE_ROOT) if file.is_relative_to(PACKAGE_ROOT) else file.name): file for file in files}


@functools.cache
def _module_version(module: str) -> str | None:
    """Version of the distribution that a module comes from; None if it is not installed."""
    names = _distributions().get(module.partition(".")[0], [module])
    try:
        return ",".join(sorted(metadata.version(name) for name in set(names)))
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())
