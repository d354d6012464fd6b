"""The method version: a hash of all that defines how a cell's number is made.

A finished cell is measured again only if it changed. It covers the code that makes the mask and that runs in
and around the timed call, as far as imports lead; where documents come from; how it is timed and judged; the
settings; the packages that kernel and strategy need; the device's model; the container. Code that only
reports on the measurement (environment, records, pages) is excluded. `longca.core` is excluded because the
cell's id and the settings are hashed directly. Comments and the like do not count: see
`longca.lab.code.digest`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from longca.core import Registry
from longca.lab.bench.measure.environment import CONTAINER
from longca.lab.code import code_digest, modules_of_package, reached
from longca.lab.studies import Cell, Measure, Study
from longca.lab.studies.playoff.rules import PlayoffRules

FOLLOWED = (
    "longca.masks",
    "longca.kernels",
    "longca.lowering",
    "longca.ops",
    "longca.cp",
    "longca.lab.studies.masks",
    "longca.lab.studies.strategies",
    "longca.lab.studies.samples",
    "longca.lab.bench.check",
    "longca.lab.bench.measure",
    "longca.lab.bench.playoff",
)
FOLLOWED_FOR_DOCUMENTS = ("longca.data",)
LEFT_OUT = {
    "longca",  # holds the release's number only
    "longca.lab.bench.measure.environment",
    "longca.lab.bench.measure.failure",
    "longca.lab.bench.measure.nvml",
    "longca.lab.bench.measure.result",
}
MEASURED_BY = {
    "kernel": "longca.lab.bench.measure.kernel",
    "cp": "longca.lab.bench.measure.cp",
    "playoff": "longca.lab.bench.playoff.measuring",
}


def method_version(cell: Cell, measure: Measure, device_name: str) -> str:
    """12 hexadecimal digits.

    Args:
        device_name: model of the device, as `longca.lab.bench.measure.environment.device_name` gives it.
    """
    return _version(_content(cell, measure, _Sources()), device_name)


def method_versions(
    cells: Iterable[Cell], study: Study, rules: PlayoffRules | None = None
) -> Callable[[str], dict[str, str]]:
    """A function from the device's model to the method version of each cell of a study, by its id.

    What takes long is done before the device is known. Cells that differ in lengths, heads or seeds alone
    share one version.

    Args:
        rules: of play-offs: the versions are then those of the cells' parts in play-offs by these rules.
    """
    return MethodVersions(study).of(cells, rules)


class MethodVersions:
    """The method versions of the cells of a study. What several cells share, and what was asked for before,
    is worked out once."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._sources = _Sources()
        self._contents: dict[tuple[object, ...], dict[str, Any]] = {}

    def of(self, cells: Iterable[Cell], rules: PlayoffRules | None = None) -> Callable[[str], dict[str, str]]:
        """A function from the device's model to the method version of each cell: see `method_versions`."""
        timing = None if rules is None else json.dumps(rules.of_timing)
        keys: dict[str, tuple[object, ...]] = {}
        for cell in cells:
            measure = self._study.measure_of(cell)
            key = keys[cell.cell_id] = (
                cell.kind,
                cell.kernel,
                cell.strategy,
                cell.mask,
                cell.corpus,
                id(measure),
                timing,
            )
            if key not in self._contents:
                self._contents[key] = _content(cell, measure, self._sources, rules)

        def on(device_name: str) -> dict[str, str]:
            versions = {
                key: _version(self._contents[key], device_name) for key in dict.fromkeys(keys.values())
            }
            return {cell_id: versions[key] for cell_id, key in keys.items()}

        return on


def _version(content: dict[str, Any], device_name: str) -> str:
    return hashlib.sha256(
        json.dumps({**content, "device": device_name}, sort_keys=True).encode()
    ).hexdigest()[:12]


def _content(
    cell: Cell, measure: Measure, sources: _Sources, rules: PlayoffRules | None = None
) -> dict[str, Any]:
    """All that defines how the number is made, but the device."""
    needs = sorted(
        {
            "torch",
            *sources.needs("kernel", cell.kernel),
            *(sources.needs("strategy", cell.strategy) if cell.strategy else ()),
        }
    )
    unless = {"messages"} if cell.kind == "kernel" or measure.messages == "nccl" else set()
    played = {} if rules is None else {"playoff": rules.of_timing}
    return {
        **played,
        "code": code_digest(sources.files(cell, "playoff" if played else "")),
        "measure": measure.model_dump(exclude=unless),
        "packages": {module: _module_version(module) for module in needs},
        "container": os.environ.get(CONTAINER),
    }


class _Sources:
    """The files that have a part in cells' numbers. Each folder is listed, and the imports of each plug-in
    are followed, once."""

    def __init__(self) -> None:
        self._paths: dict[str, dict[str, Path]] = {}
        self._reached: dict[tuple[Path, tuple[str, ...]], set[Path]] = {}
        self._needs: dict[tuple[str, str], tuple[str, ...]] = {}

    def files(self, cell: Cell, measured_by: str = "") -> set[Path]:
        """Every file that has a part in the cell's number."""
        followed = FOLLOWED if cell.corpus is None else FOLLOWED + FOLLOWED_FOR_DOCUMENTS
        names = {"mask": cell.mask, "kernel": cell.kernel, "strategy": cell.strategy, "corpus": cell.corpus}
        plugins = [self._path(kind, name) for kind, name in names.items() if name is not None]
        start = [modules_of_package()[MEASURED_BY[measured_by or cell.kind]], *plugins]
        return set().union(*(self._reached_from(path, followed) for path in start))

    def needs(self, kind: str, name: str) -> tuple[str, ...]:
        """The modules that a plug-in needs."""
        if (kind, name) not in self._needs:
            self._needs[kind, name] = tuple(Registry(kind).load(name).needs)
        return self._needs[kind, name]

    def _path(self, kind: str, name: str) -> Path:
        if kind not in self._paths:
            self._paths[kind] = Registry(kind).paths()
        return self._paths[kind][name]

    def _reached_from(self, path: Path, followed: tuple[str, ...]) -> set[Path]:
        if (path, followed) not in self._reached:
            self._reached[path, followed] = reached([path], lambda module: _is_followed(module, followed))
        return self._reached[path, followed]


@functools.cache
def _is_followed(module: str, followed: tuple[str, ...]) -> bool:
    """True for these packages, all that they hold, and the packages that hold them, but for what is left
    out."""
    inside = any(f"{module}.".startswith(f"{name}.") or name.startswith(f"{module}.") for name in followed)
    return inside and module not in LEFT_OUT


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
