"""An image file, and its stamp: the SHA-256 of the obtained image, in the format of `sha256sum --check`."""

import hashlib
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from longca.core import UserError
from longca.core.secrets import HIDDEN, without_secrets
from longca.lab.images.recipe import ELSEWHERE, names
from longca.lab.store import replace_file
from longca.lab.studies.checkout import IMAGES

# places in its header
SIF_MAGIC = slice(32, 41)
SIF_ARCH = slice(45, 47)
SIF_ARCHS = {"x86_64": b"02", "aarch64": b"04"}
PINNED = re.compile(r"(docker|oras|library)://.+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Image:
    """The path of an image, which may not exist yet."""

    wanted: str
    """name in containers/, file or URL, as given"""
    file: Path
    stamp: Path

    @property
    def log(self) -> Path:
        """The log of its build or pull; each step of a build begins with a line "+ command"."""
        return self.stamp.with_suffix(".log")

    @property
    def recipe(self) -> Path:
        """The digest of its recipe."""
        return self.stamp.with_suffix(".recipe")

    @property
    def bill(self) -> Path:
        """Its bill of materials (CycloneDX)."""
        return self.stamp.with_suffix(".cdx.json")


def locate(wanted: str) -> Image:
    """The paths of a requested image. Raises UserError for a URL without a digest, which could give another
    image later."""
    if wanted in names():
        file = IMAGES / f"{wanted}.sif"
    elif "://" in wanted:
        if not PINNED.fullmatch(wanted):
            raise UserError(
                f"Image '{wanted}' is not pinned", todo="Give docker://NAME@sha256:… or oras://NAME@sha256:…"
            )
        address = without_secrets(wanted).replace(f"{HIDDEN}@", "").partition("://")[2]
        file = IMAGES / (re.sub(r"[^A-Za-z0-9]+", "-", address)[-120:].strip("-") + ".sif")
    else:
        file = Path(wanted).expanduser().resolve()
    return Image(wanted, file, IMAGES / f"{file.name}.sha256")


def check(image: Image, digest: str = "", *, thorough: bool = False) -> str:
    """The image's digest, "sha256:…", after a check that the image is unchanged and the requested one.

    Args:
        digest: the required digest; any if empty.
        thorough: read the whole file even if it seems unchanged since its stamp.

    Raises:
        UserError: it is another image, or there is none.
    """
    if not image.file.is_file():
        if image.wanted not in names() and "://" not in image.wanted:
            known = names()
            why = f"it is neither a file nor one of {', '.join(known)}"
            why = why if known else f"it is no file, and {ELSEWHERE}"
            raise UserError(f"There is no image '{image.wanted}'", why=why)
        raise UserError(
            f"There is no image '{image.file}'", todo=f"`longca image get {image.wanted}` builds or pulls it"
        )
    stamped = _read(image.stamp)
    if stamped is not None and not thorough and _untouched(image):
        actual = stamped
    else:
        actual = f"sha256:{_sha256(image.file)}"
        if stamped not in (None, actual):
            raise UserError(
                f"Image '{image.file}' is not the obtained one",
                why=f"its digest is {actual}, it was {stamped}",
                todo=f"Put that one back, or remove it and {image.stamp.name} and get it anew",
            )
    if digest not in ("", actual):
        raise UserError(
            f"Image '{image.file}' is not the requested one",
            why=f"its digest is {actual}, not {digest}",
            todo="Get the right one, or correct image_digest",
        )
    return actual


def check_architecture(image: Image) -> None:
    """Raises UserError if the image is a SIF for another processor architecture."""
    with image.file.open("rb") as file:
        head = file.read(SIF_ARCH.stop)
    if (
        head[SIF_MAGIC] == b"SIF_MAGIC"
        and (here := SIF_ARCHS.get(platform.machine())) is not None
        and head[SIF_ARCH] != here
    ):
        architecture = next(
            (name for name, code in SIF_ARCHS.items() if code == head[SIF_ARCH]), "another architecture"
        )
        raise UserError(
            f"Image '{image.file}' is for {architecture}",
            why=f"this machine is {platform.machine()}",
            todo="Remove it, and get one for this machine",
        )


def stamped(image: Image) -> str:
    """The digest in the image's stamp, as in records of its jobs; empty without a stamp."""
    return _read(image.stamp) or ""


def check_or_exit(image: Image, digest: str = "") -> None:
    """Check for the workflow: a wrong image ends the process with a one-line message instead of a
    traceback."""
    if image.stamp.exists():
        try:
            check(image, digest)
        except UserError as error:
            print(f"longca: {error}", file=sys.stderr)
            sys.exit(UserError.exit_code)


def stamp(image: Image, digest: str = "") -> str:
    """Write the image's digest to its stamp, once. Raises UserError as `check` does."""
    digest_now = check(image, digest)
    replace_file(image.stamp, f"{digest_now.removeprefix('sha256:')}  {image.file}\n".encode())
    return digest_now


def _read(path: Path) -> str | None:
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    if not re.match(r"[0-9a-f]{64}  ", text):
        raise UserError(f"'{path}' is damaged", todo="Remove it, and get the image again")
    return f"sha256:{text[:64]}"


def _untouched(image: Image) -> bool:
    """True if neither the image's content nor its inode has changed since its stamp."""
    touched = image.file.stat()
    return max(touched.st_mtime_ns, touched.st_ctime_ns) <= image.stamp.stat().st_mtime_ns


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
