"""The contents of an image: packages of the system and of Python, and the hash of each file; comparison, and
bill of materials.

The last step of the build makes the list inside of the image (`tools/image_contents.py`).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longca.core import UserError
from longca.core.secrets import without_secrets
from longca.lab.images.image import locate
from longca.lab.images.render import CONTENTS

KEYS = {"machine": str, "python": str, "system": dict, "packages": dict, "files": dict, "bytes": int}
NUMBERS_SYSTEM = re.compile(
    r"^(libc6|libstdc\+\+|libgcc|libgomp|libatomic|libpython|python3|gcc|g\+\+|cpp|binutils|libbinutils)"
)
SILENT_FILES = re.compile(
    r"\.dist-info/|(^|/)(tests?|docs?|examples)/|\.(md|rst|txt|pyi|h|hpp|cuh|a|cmake|pxd)$|(^|/)(pip|setuptools)/"
)


@dataclass(frozen=True)
class ImageDifference:
    """A difference of two images."""

    what: str
    """"system package", "Python package", "file" or "Python" """
    name: str
    before: str
    """version or hash in the first image; empty if missing"""
    after: str
    touches_numbers: bool
    """True if a measurement runs or links it"""


def contents(wanted: str) -> dict[str, Any]:
    """The list of an image by name, file or URL, or from a JSON file. Raises UserError."""
    if wanted.endswith(".json"):
        try:
            text = Path(wanted).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"Cannot read '{wanted}'", why=str(error)) from error
    else:
        image = locate(wanted)
        if not image.file.is_file():
            raise UserError(
                f"There is no image '{image.file}'", todo=f"`longca image get {wanted}` builds or pulls it"
            )
        text = _asked(image.file)
    return _checked(text, wanted)


def comparable(listed: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a list for comparison with records: `containers/<name>/contents.json`, a tenth of the
    whole."""
    objects = {shared["path"] for shared in listed.get("objects", ())}
    return {
        **listed,
        "system": {},
        "files": {
            path: sha256 for path, sha256 in listed["files"].items() if path in objects or ".so" in path
        },
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ImageDifference]:
    """The differences of two lists; those that can affect a number come first."""
    changes = [
        ImageDifference("Python", key, before[key], after[key], touches_numbers=True)
        for key in ("machine", "python")
        if before[key] != after[key]
    ]
    changes += [
        ImageDifference("system package", *changed, touches_numbers=bool(NUMBERS_SYSTEM.match(changed[0])))
        for changed in _changed(before["system"], after["system"])
    ]
    # a package is compared by its files; a new version that changes only notes does not matter
    changes += [
        ImageDifference("Python package", *changed, touches_numbers=False)
        for changed in _changed(before["packages"], after["packages"])
    ]
    changes += [
        ImageDifference("file", *changed, touches_numbers=not SILENT_FILES.search(changed[0]))
        for changed in _changed(before["files"], after["files"])
    ]
    return sorted(changes, key=lambda difference: not difference.touches_numbers)


def finding(first: str, second: str, changes: list[ImageDifference], num_files: int) -> str:
    """A sentence on whether two images are the same, and whether the differences can affect a number."""
    if not changes:
        return (
            f"{first} and {second} are the same: {num_files} files of Python packages by hash, and all "
            f"system packages by version."
        )
    touching = sum(difference.touches_numbers for difference in changes)
    judged = f"{touching} of them can affect a number" if touching else "none of them can affect a number"
    return f"{first} and {second} differ in {len(changes)} things; {judged}."


def bill_of_materials(name: str, listed: Mapping[str, Any]) -> dict[str, Any]:
    """The packages as a CycloneDX 1.5 document; the password in an image's address is left out."""
    name = without_secrets(name)
    components = [
        _component(
            "deb",
            package.partition(":")[0],
            version,
            f"pkg:deb/debian/{package.partition(':')[0]}@{_escaped(version)}",
        )
        for package, version in sorted(listed["system"].items())
    ]
    components += [
        _component(
            "python", package, version, f"pkg:pypi/{package.lower().replace('_', '-')}@{_escaped(version)}"
        )
        for package, version in sorted(listed["packages"].items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "bom-ref": name}},
        "components": components,
    }


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name, ""), after.get(name, "")


def _component(kind: str, name: str, version: str, purl: str) -> dict[str, str]:
    return {
        "type": "library",
        "bom-ref": f"{kind}:{name}@{version}",
        "name": name,
        "version": version,
        "purl": purl,
    }


def _escaped(version: str) -> str:
    return version.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")


def _asked(file: Path) -> str:
    apptainer = shutil.which("apptainer") or shutil.which("singularity")
    if apptainer is None:
        raise UserError(
            "There is no apptainer on this machine",
            todo="Give the JSON files that `longca image contents` wrote elsewhere",
        )
    done = subprocess.run(
        [apptainer, "exec", "--contain", str(file), "cat", CONTENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"Image '{file}' has no list of its contents",
            why=(done.stderr.splitlines() or ["cat failed"])[-1],
            todo="Build it again: images have one since they are built from containers/ as it is now",
        )
    return done.stdout


def _checked(text: str, wanted: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(f"'{wanted}' is not a list of an image's contents", why=str(error)) from error
    if not isinstance(content, dict) or any(
        not isinstance(content.get(key), kind) for key, kind in KEYS.items()
    ):
        raise UserError(
            f"'{wanted}' is not a list of an image's contents", why=f"it has not {', '.join(KEYS)}"
        )
    return content
