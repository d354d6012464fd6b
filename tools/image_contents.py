"""Lists what is in an image, from inside: packages of the system and of Python, the hash of each file, the
build id of each object.

    python image_contents.py FILE.json

It is the last step of a build. `longca image diff` compares two of these lists, `longca environment --image`
compares one with records, and `longca image sbom` makes a bill of materials of one. Distributions, modules
and objects have the form of `longca.lab.studies.facts.inventory`. It needs Python's standard library,
Debian's dpkg, and the two files of `longca/lab/environment` that lie beside it in the image.
"""

import json
import os
import platform
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from longca.lab.environment.elf import build_id, is_elf, sha256_of
from longca.lab.environment.packages import SUFFIX, PackageFolder, module_name

LEFT_OUT = ("__pycache__",)  # made of the files beside them
SYSTEM = ("/lib", "/usr/lib", "/usr/local/lib", "/usr/local/cuda")


def contents() -> dict[str, Any]:
    """The list. Files are named from the folder of Python's packages."""
    folder = Path(sysconfig.get_path("platlib"))
    query = ["dpkg-query", "--show", "--showformat=${Package}:${Architecture}\t${Version}\n"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True)
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not set(LEFT_OUT) & set(path.parts)
    )
    files = {str(path.relative_to(folder)): sha256_of(path) for path in paths}
    site = PackageFolder(folder)
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": dict(line.split("\t") for line in listed.stdout.splitlines()),
        "packages": {
            distribution.metadata["Name"]: distribution.version
            for distribution in sorted(
                distributions(), key=lambda distribution: distribution.metadata["Name"]
            )
        },
        "files": files,
        "bytes": sum(path.stat().st_size for path in paths),
        "distributions": [
            {"name": each.name, "version": each.version, "record": each.record} for each in site.distributions
        ],
        "modules": modules(site),
        "objects": [*objects(site, files), *system_objects()],
    }


def modules(site: PackageFolder) -> list[dict[str, Any]]:
    """The top-level modules that no distribution has brought, such as kernels that were compiled in the
    image."""
    tops = sorted(
        path.name
        for path in site.folder.iterdir()
        if path.name not in LEFT_OUT and not path.name.endswith(SUFFIX)
    )
    return [vars(tree) for top in tops if (tree := site.tree(top)) is not None]


def objects(site: PackageFolder, files: dict[str, str]) -> list[dict[str, Any]]:
    """The shared objects among the files of packages."""
    listed = []
    for path, sha256 in files.items():
        if ".so" in path and is_elf(site.folder / path):
            owner = site.owners.get(path)
            listed.append(
                {
                    "origin": "module" if owner is None else "distribution",
                    "owner": module_name(path.partition("/")[0]) if owner is None else owner.name,
                    "path": path,
                    "build_id": build_id(site.folder / path),
                    "sha256": sha256,
                    "hashed": "content",
                }
            )
    return listed


def system_objects() -> list[dict[str, Any]]:
    """The shared objects of the system and of Python."""
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    site = Path(sysconfig.get_path("platlib")).resolve()
    listed: dict[tuple[str, str], dict[str, Any]] = {}
    for top in dict.fromkeys([*(Path(name).resolve() for name in SYSTEM if Path(name).is_dir()), stdlib]):
        for folder, _, names in os.walk(top):
            for path in (Path(folder, name) for name in names if ".so" in name):
                if path.is_symlink() or path.is_relative_to(site) or not is_elf(path):
                    continue
                is_python = path.is_relative_to(stdlib)
                name = (
                    path.name
                    if path.name.startswith("libpython")
                    else str(path.relative_to(stdlib))
                    if is_python
                    else str(path)
                )
                origin = "python" if is_python or path.name.startswith("libpython") else "system"
                listed[origin, name] = {"origin": origin, "path": name, "build_id": build_id(path)}
    return [listed[key] for key in sorted(listed)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(contents(), indent=1) + "\n", encoding="utf-8")
