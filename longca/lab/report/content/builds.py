"""Builds of methods: the binaries and files that their records ran, by the digests in their environments."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longca.lab.store.environments import Environments
    from longca.lab.studies import Environment
    from longca.lab.studies.facts import Installation, LoadedSoftware

DIGITS = 12  # of a digest that are shown
MOST_NAMED = 3  # files of one method
UNKNOWN = "not recorded"
BUNDLED = ".libs/"  # libraries that a wheel carries along
_ABI = re.compile(r"\.cpython-[^.]+")  # of a file's name, which is the same for all on a machine


@dataclass
class Builds:
    """The environments of one kernel's or one strategy's records."""

    toolkits: set[str] = field(default_factory=set)
    """the versions of CUDA that torch is built for"""
    loaded: dict[str, LoadedSoftware] = field(default_factory=dict)
    """listings by digest"""
    installed: dict[str, Installation] = field(default_factory=dict)

    def add(self, environment: Environment, listings: Environments) -> None:
        if environment.software.cuda:
            self.toolkits.add(f"CUDA {environment.software.cuda}")
        for rank in environment.ranks:
            if rank.loaded and (loaded := listings.loaded(rank)):
                self.loaded[rank.loaded] = loaded
            if installed := listings.installed(rank):
                self.installed[rank.installed] = installed

    def names(self, modules: Collection[str], packages: Collection[str]) -> tuple[str, ...]:
        """The builds: "flash_attn_3/_C.abi3.so 5eee4fb7b1c0".

        Args:
            modules: those that the method needs beside torch and Triton.
            packages: the distributions that provide them.
        """
        files = self._files({*(module.partition(".")[0] for module in modules), *packages}, packages)
        if modules and not files:
            files = [UNKNOWN]
        left = len(files) - MOST_NAMED
        more = [f"and {left} more"] if left > 0 else []
        return (*sorted(self.toolkits), *files[:MOST_NAMED], *more)

    def _files(self, owners: Collection[str], packages: Collection[str]) -> list[str]:
        """Binaries of these owners; of packages without one the hash of their list of files, and of modules
        without one that of their files."""
        objects = {
            (shared.owner, f"{_ABI.sub('', shared.path)} {(shared.build_id or shared.sha256 or '')[:DIGITS]}")
            for loaded in self.loaded.values()
            for shared in loaded.objects
            if shared.owner in owners and BUNDLED not in shared.path
        }
        binary = {owner for owner, _ in objects}
        lists = {
            f"{distribution.name} {distribution.record[:DIGITS]}"
            for installed in self.installed.values()
            for distribution in installed.distributions
            if distribution.name in packages and distribution.name not in binary and distribution.record
        }
        modules = {
            f"{module.name} {module.sha256[:DIGITS]}"
            for loaded in self.loaded.values()
            for module in loaded.modules
            if module.name in owners and module.name not in binary
        }
        return [*sorted(text for _, text in objects), *sorted(lists), *sorted(modules)]
