"""Downloads the packages of an image by hash into one folder, with this machine's pip settings (mirrors,
proxies, certificates)."""

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from longca.core import PACKAGE_ROOT, UserError
from longca.lab.images.recipe import Recipe
from longca.lab.images.render import WHEELS
from longca.lab.store import TransferError, WrongDigest, fetch_file

# of wheels: at least glibc 2.5, at most that of Debian 12 (2.36) or Ubuntu 24.04 (2.39)
OLDEST_GLIBC = 5
GLIBC = {"3.11": 36, "3.12": 39}
PATIENCE_S = 5


def fetch(recipe: Recipe) -> Path:
    """Wheels and sources of the recipe's locks, in `images/wheels`. Existing files with the right hash are
    kept.

    Raises:
        UserError: a file cannot be downloaded, or differs from the lock.
    """
    folder = PACKAGE_ROOT.parent / WHEELS
    folder.mkdir(parents=True, exist_ok=True)
    version = recipe.python.replace(".", "")
    platforms = [
        f"--platform=manylinux_2_{glibc}_x86_64"
        for glibc in range(GLIBC[recipe.python], OLDEST_GLIBC - 1, -1)
    ]
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={recipe.python}",
        f"--abi=cp{version}",
        "--abi=abi3",
        "--abi=none",
        *platforms,
        "--platform=manylinux2014_x86_64",
        "--platform=any",
        "-d",
        str(folder),
        "-r",
        str(recipe.lock),
        *(("-r", str(recipe.build_lock)) if recipe.kernels else ()),
    ]
    if recipe.index and reachable(recipe.index):  # otherwise pip must find its packages by its own settings
        command.append(f"--extra-index-url={recipe.index}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines() or ["pip says nothing"]
        first = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        raise UserError(
            f"The packages of image '{recipe.name}' cannot be fetched", why=first.removeprefix("ERROR: ")
        )
    for digest, url in locked_sources(recipe):
        _fetch_source(url, digest, folder / url.rpartition("/")[2])
    return folder


def locked_sources(recipe: Recipe) -> list[tuple[str, str]]:
    """The (SHA-256, URL) of each source package."""
    lines = recipe.sources_lock.read_text(encoding="utf-8").splitlines() if recipe.sources else []
    return [(digest, url) for digest, _, url in (line.partition("  ") for line in lines)]


def reachable(url: str) -> bool:
    """True if a server answers at that address."""
    try:
        urllib.request.urlopen(url, timeout=PATIENCE_S).close()
    except urllib.error.HTTPError:  # also an answer
        return True
    except (OSError, ValueError):
        return False
    return True


def _fetch_source(url: str, digest: str, target: Path) -> None:
    try:
        fetch_file(url, target, digest)
    except TransferError as error:
        raise UserError(f"Cannot fetch '{url}'", why=str(error)) from error
    except WrongDigest as error:
        raise UserError(
            f"'{url}' is not what the lock says", why=f"its SHA-256 is {error}, the lock has {digest}"
        ) from error
