"""The files of a release, made from the last commit: `make release`, and the job of
`.github/workflows/release.yaml`.

    python -m tools.release [--out dist/release] [--sign longca.key] [--tag v1.0.0]

Source distribution, wheel, records, pages, lists of images, and SHA256SUMS over all of them. Uncommitted
files are left out. Equal commits give equal archives; a wheel also depends on the packages that build it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import yaml

from longca.core import UserError
from longca.lab.archive import manifest, signature
from longca.lab.archive.packing import BundleFile, pack
from longca.lab.archive.releases import SUMS, archive_name
from longca.lab.store import replace_file
from longca.lab.studies.checkout import git

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "dist/release"
LICENCE = "LICENSE"
VERSION = re.compile(r'^VERSION = "([^"]+)"$', re.MULTILINE)
BUILD = "from setuptools.build_meta import {0}; print({0}({1!r}))"


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file of the project states."""
    project = tomllib.loads(_text(root, "pyproject.toml"))["project"]
    module = VERSION.search(_text(root, "longca/core/version.py"))
    return {
        "pyproject.toml": project["version"],
        "longca/core/version.py": module[1] if module else "",
        "CITATION.cff": str(yaml.safe_load(_text(root, "CITATION.cff"))["version"]),
        "codemeta.json": json.loads(_text(root, "codemeta.json"))["version"],
        ".zenodo.json": json.loads(_text(root, ".zenodo.json"))["version"],
    }


def version_of(root: Path, tag: str = "") -> str:
    """The one version of these files. Raises UserError if they differ, or if the tag or CHANGELOG.md names
    another."""
    stated = versions(root)
    version = stated["pyproject.toml"]
    others = [f"{name} {value!r}" for name, value in stated.items() if value != version]
    if tag and tag != f"v{version}":
        others.append(f"the tag {tag!r}")
    if tag and f"## [{version}] - " not in _text(root, "CHANGELOG.md"):
        others.append("no section of CHANGELOG.md")
    if others:
        raise UserError(
            f"pyproject.toml has version {version!r}, which others do not have", why=", ".join(others)
        )
    return version


def release(out: Path, tag: str = "", key: Path | None = None) -> list[Path]:
    """Write all files of the release of the last commit.

    Args:
        tag: the tag of this release, which must name its version; empty for a trial.
        key: a secret key of minisign that signs SHA256SUMS.

    Raises:
        UserError: there is no Git, versions differ, something cannot be built, or the key cannot sign.
    """
    if key is not None:
        signature.check_key(key)
    commit = git(ROOT, "rev-parse", "HEAD")
    when = git(ROOT, "log", "-1", "--format=%ct")
    if commit is None or when is None:
        raise UserError(f"'{ROOT}' is no clone", why="a release is made from a commit")
    if git(ROOT, "status", "--porcelain", "--untracked-files=no"):
        print("release: changes that are in no commit are left out", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    for earlier in out.glob("longca-*"):
        earlier.unlink()
    with tempfile.TemporaryDirectory() as name:
        source = _exported(Path(name), commit)
        version = version_of(source, tag)
        files = [
            _archive(out, version, kind, list(chosen(source)), source, int(when))
            for kind, chosen in ARCHIVES.items()
        ]
        (source / "COMMIT").write_text(f"{commit}\n", encoding="utf-8")
        files += _distributions(source, out, int(when))
    lines = sorted(f"{manifest.file_sha256(file)}  {file.name}\n" for file in files)
    sums = replace_file(out / SUMS, "".join(lines).encode())
    return [*files, sums, *([] if key is None else [signature.sign(sums, key)])]


def _exported(folder: Path, commit: str) -> Path:
    """The files of a commit in a folder of their own."""
    packed = folder / "source.tar"
    source = folder / "source"
    if git(ROOT, "archive", "-o", str(packed), commit) is None:
        raise UserError(f"Git cannot write the files of {commit}", why="`git archive` has failed")
    with tarfile.open(packed) as tar:
        tar.extractall(source, filter="data")
    packed.unlink()
    return source


def _records(source: Path) -> Iterator[Path]:
    """Tables of records and all other measured data."""
    for suffix in ("parquet", "csv", "json", "txt"):
        yield from (path for path in source.glob(f"reports/**/*.{suffix}") if "paper" not in path.parts)


def _pages(source: Path) -> Iterator[Path]:
    """Pages that open in a browser without a network."""
    yield from source.glob("reports/**/*.html")
    yield from (
        path for path in source.glob("reports/paper/**/*") if path.is_file() and path.suffix != ".html"
    )


def _images(source: Path) -> Iterator[Path]:
    """Recipes, locks and lists of the contents of container images."""
    yield from (path for path in source.glob("containers/**/*") if path.is_file())
    yield from source.glob("reports/images/*.json")


ARCHIVES: dict[str, Callable[[Path], Iterator[Path]]] = {
    "records": _records,
    "pages": _pages,
    "images": _images,
}


def _archive(out: Path, version: str, kind: str, paths: list[Path], source: Path, when: int) -> Path:
    """A packed folder with these files, the licence, and a manifest that `sha256sum --check` takes."""
    if not paths:
        raise UserError(f"The commit has no {kind}", why="a release has some")
    contents = {path.relative_to(source).as_posix(): path.read_bytes() for path in [*paths, source / LICENCE]}
    entries = {path: BundleFile(content) for path, content in contents.items()}
    entries[manifest.NAME] = BundleFile(manifest.manifest(contents))
    name = archive_name(version, kind)
    content = pack(entries, name.removesuffix(".tar.gz"), when)
    return replace_file(out / name, content)


def _distributions(source: Path, out: Path, when: int) -> list[Path]:
    """The source distribution, and the wheel that is built from it."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(when)}
    sdist = out / _built("build_sdist", source, out, environ)
    with tarfile.open(sdist) as packed:
        packed.extractall(source.parent, filter="data")
    unpacked = source.parent / PurePosixPath(sdist.name.removesuffix(".tar.gz"))
    return [sdist, out / _built("build_wheel", unpacked, out, environ)]


def _built(function: str, source: Path, out: Path, environ: dict[str, str]) -> str:
    """The name of the file that this function of setuptools has written."""
    command = [sys.executable, "-c", BUILD.format(function, str(out.resolve()))]
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"setuptools' {function} has failed", why=" ".join(done.stderr.split())[-300:])
    return done.stdout.split()[-1]


def _text(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="The files of a release, made from the last commit")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of these files")
    parser.add_argument(
        "--sign", type=Path, metavar="KEY", help="sign SHA256SUMS with this secret key of minisign"
    )
    parser.add_argument("--tag", default="", help="the tag of the release, which must name its version")
    asked = parser.parse_args()
    try:
        files = release(asked.out, asked.tag, asked.sign)
    except UserError as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file}")


if __name__ == "__main__":
    main()
