"""Versions of Triton beside the installed one, for tests: fetched by hash from the index into
`.cache/triton`, once.

    python -m tests.ops.triton_versions    # fetches all of them

A wheel has 190 to 290 MB. Half of it stays, 0.4 to 0.6 GB unpacked: neither AMD's code generator nor the
profiler's libraries.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.helpers.support import ROOT
from tools.setup import INDEX_GONE

LOCK = Path(__file__).parent / "triton.lock"
FOLDER = ROOT / ".cache" / "triton"
PINNED = {
    entry[1]: entry[0]
    for entry in re.finditer(
        r"^triton==(\S+) .*\n(?:    .*\n)+", LOCK.read_text(encoding="utf-8"), re.MULTILINE
    )
}
LEFT_OUT = re.compile(r"/lib/cupti|/amd/lib/|libproton|/cuobjdump$")


class IndexGoneError(Exception):
    """The package index cannot be reached."""


def site_of(version: str) -> Path:
    """A folder for `PYTHONPATH` that has this version.

    Raises:
        IndexGoneError: it is not here yet, and the package index cannot be reached.
    """
    site = FOLDER / f"{version}-py3{sys.version_info.minor}"
    if not site.is_dir():
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=site.parent) as folder:
            unpacked = Path(folder) / "site"
            with zipfile.ZipFile(_wheel(version, Path(folder))) as wheel:
                for member in wheel.infolist():
                    if not LEFT_OUT.search(member.filename):
                        path = Path(wheel.extract(member, unpacked))
                        path.chmod(path.stat().st_mode | (member.external_attr >> 16 & 0o111))
            try:
                unpacked.rename(site)
            except OSError:  # another process was quicker
                assert site.is_dir()
    return site


def _wheel(version: str, folder: Path) -> Path:
    lock = folder / "lock"
    lock.write_text(PINNED[version], encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "-r",
        str(lock),
        "-d",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if INDEX_GONE.search(done.stderr):
            raise IndexGoneError(
                f"Triton {version} is not in {FOLDER}, and the package index does not answer: "
                f"{done.stderr[-300:]}"
            )
        raise RuntimeError(done.stderr)
    return next(folder.glob("*.whl"))


def environment_with(version: str) -> dict[str, str]:
    """Variables of a process that gets this version. Without the index a test is skipped for a person, and
    fails where `CI` is set."""
    try:
        site = site_of(version)
    except IndexGoneError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    others = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), *others])}


def main() -> None:
    for version in PINNED:
        site = site_of(version)
        size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
        print(f"{version}: {site}, {size / 1e9:.2f} GB; {shutil.disk_usage(site).free / 1e9:.0f} GB are free")


if __name__ == "__main__":
    main()
