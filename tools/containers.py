"""Keeps the definition files and the locks of the images.

    python tools/containers.py write          apptainer.def and Dockerfile of every image, from its image.yaml
    python tools/containers.py lock [NAME]    resolve Python packages again, look up the base's digest, then write

Locks are resolved by uv from the indexes that pip is set to, with hashes of every file. The digest of the
base is asked of its registry; where that cannot be reached it stays, and a line says so.
"""  # noqa: E501

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from longca.lab.images.fetch import reachable
from longca.lab.images.recipe import Base, Recipe, load_recipe, names
from longca.lab.images.render import definitions

ROOT = Path(__file__).resolve().parent.parent
NOT_INSIDE = ("snakemake",)  # runs outside of the images
HUB = {"docker.io": "registry-1.docker.io"}  # names that are no hosts
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
SECONDS = 10
SCHEME = "https"
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "lock"))
    parser.add_argument("name", nargs="*", help="only these images")
    arguments = parser.parse_args()
    for name in arguments.name or names():
        if arguments.action == "lock":
            lock(load_recipe(name))
        for file, content in definitions(load_recipe(name)).items():
            (load_recipe(name).folder / file).write_text(content, encoding="utf-8")


def lock(recipe: Recipe) -> None:
    """requirements.lock, sources.lock and the base's digest in image.yaml."""
    index = []
    if recipe.index and not reachable(recipe.index):
        print(f"{recipe.name}: {recipe.index} cannot be reached, its packages have to be in PIP_FIND_LINKS")
        index = ["--find-links", os.environ.get("PIP_FIND_LINKS", ".")]
    elif recipe.index:
        index = ["--extra-index-url", recipe.index, "--index-strategy", "unsafe-best-match"]
    _resolve(
        recipe, [*own_dependencies(), *recipe.requirements], ROOT / "requirements.lock", recipe.lock, index
    )
    if recipe.kernels:
        _resolve(recipe, recipe.build_requirements, recipe.lock, recipe.build_lock)
        own = set(PINNED.findall(recipe.lock.read_text(encoding="utf-8")))
        _leave_out(own, recipe.build_lock)
    if recipe.sources:
        lines = [
            f"{digest}  {url}"
            for source in recipe.sources
            for digest, url in [source_file(source.package, source.version)]
        ]
        recipe.sources_lock.write_text("\n".join(lines) + "\n", encoding="utf-8")
    current = current_digest(recipe.base)
    if current is None:
        print(
            f"{recipe.name}: {recipe.base.image} cannot be asked for here, its digest stays "
            f"{recipe.base.digest}"
        )
    elif current != recipe.base.digest:
        path = recipe.folder / "image.yaml"
        path.write_text(
            path.read_text(encoding="utf-8").replace(recipe.base.digest, current), encoding="utf-8"
        )
        print(f"{recipe.name}: {recipe.base.image} is now {current}")


def _resolve(
    recipe: Recipe, wanted: Iterable[str], constraint: Path, lock: Path, index: Iterable[str] = ()
) -> None:
    """Pin what is wanted and all that it needs, with hashes, to the versions of the constraint where it has
    them."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "-q",
        "-",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--python-version",
        recipe.python,
        "--python-platform",
        "x86_64-unknown-linux-gnu",
        "--constraint",
        str(constraint),
        "--no-emit-index-url",
        "--no-emit-find-links",
        *index,
        "-o",
        str(lock),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join(recipe.overrides))
        overrides.flush()
        subprocess.run(
            [*command, "--override", overrides.name], input="\n".join(wanted), text=True, check=True
        )


def _leave_out(names: set[str], lock: Path) -> None:
    """Take packages out of a lock: those that another one has."""
    entries = re.split(r"^(?=[a-z0-9])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lock.write_text(
        "".join(entry for entry in entries if entry.partition("==")[0] not in names), encoding="utf-8"
    )


def own_dependencies() -> list[str]:
    """The packages that longca needs inside of an image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
    return [needed for needed in wanted if not needed.startswith(NOT_INSIDE)]


def source_file(package: str, version: str) -> tuple[str, str]:
    """(SHA-256, URL) of a source package on PyPI."""
    with urllib.request.urlopen(f"https://pypi.org/simple/{package}/", timeout=SECONDS) as answer:
        page = answer.read().decode()
    file = rf"{package.replace('-', '[-_]')}-{re.escape(version)}\.tar\.gz"
    match = re.search(rf'href="(https://[^"#]+/{file})#sha256=([0-9a-f]{{64}})"', page)
    if match is None:
        sys.exit(f"PyPI has no source package {package} {version}")
    return match[2], match[1]


def current_digest(base: Base) -> str | None:
    """The present digest of the base's tag in its registry; None if the registry cannot be reached."""
    host, _, rest = base.image.partition("/")
    repository, _, tag = rest.rpartition(":")
    url = f"{SCHEME}://{HUB.get(host, host)}/v2/{repository}/manifests/{tag}"
    try:
        return _digest(url, {})
    except urllib.error.HTTPError as error:
        if error.code != 401:
            return None
        challenge = dict(_parts(error.headers.get("WWW-Authenticate", "")))
    except OSError:
        return None
    try:
        query = urllib.parse.urlencode(
            {key: challenge[key] for key in ("service", "scope") if key in challenge}
        )
        with urllib.request.urlopen(f"{challenge['realm']}?{query}", timeout=SECONDS) as answer:
            token = json.load(answer)["token"]
        return _digest(url, {"Authorization": f"Bearer {token}"})
    except (OSError, KeyError, ValueError):
        return None


def _digest(url: str, headers: dict[str, str]) -> str | None:
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": INDEX_TYPES, **headers})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return answer.headers.get("Docker-Content-Digest")


def _parts(challenge: str) -> Iterator[tuple[str, str]]:
    """The parts of `Bearer realm="…",service="…",scope="…"`."""
    for match in re.finditer(r'(\w+)="([^"]*)"', challenge):
        yield match[1], match[2]


if __name__ == "__main__":
    main()
