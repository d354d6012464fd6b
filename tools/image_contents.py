"""Lists what is in an image, from inside: packages of the system and of Python, and the hash of each file of Python's packages.

    python image_contents.py FILE.json

It is the last step of a build. `longca image diff` compares two of these lists; `longca image sbom` makes a bill of materials of one.
It needs Python's standard library and Debian's dpkg.
"""

import hashlib
import json
import platform
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

LEFT_OUT = ("__pycache__",)  # made of the files beside them


def contents() -> dict[str, Any]:
    """The list. Files are named from the folder of Python's packages."""
    site = Path(sysconfig.get_path("platlib"))
    query = ["dpkg-query", "--show", "--showformat=${Package}:${Architecture}\t${Version}\n"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True)
    paths = sorted(path for path in site.rglob("*") if path.is_file() and not path.is_symlink() and not set(LEFT_OUT) & set(path.parts))
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": dict(line.split("\t") for line in listed.stdout.splitlines()),
        "packages": {found.metadata["Name"]: found.version for found in sorted(distributions(), key=lambda found: found.metadata["Name"])},
        "files": {str(path.relative_to(site)): _sha256(path) for path in paths},
        "bytes": sum(path.stat().st_size for path in paths),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(contents(), indent=1) + "\n", encoding="utf-8")
