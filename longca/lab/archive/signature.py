"""Signatures of bundles by minisign, a program that needs neither a network nor an account
(https://jedisct1.github.io/minisign/)."""

import getpass
import re
import shutil
import subprocess
from pathlib import Path

from longca.core import UserError
from longca.lab.archive import manifest

SUFFIX = ".minisig"
"""the signature of `x.tar.gz` is the file `x.tar.gz.minisig`"""
PUBLIC_KEY = re.compile(rb"\n[A-Za-z0-9+/]{56}\s*$")  # the second line: 42 bytes in base64


def check_key(key: Path) -> None:
    """Raises UserError if minisign or the key is missing."""
    _program()
    if not key.is_file():
        raise UserError(
            f"There is no key '{key}'", todo="`minisign -G -s longca.key -p longca.pub` makes a pair"
        )


def sign(bundle: Path, key: Path) -> Path:
    """Sign a packed bundle with a secret key, and return the signature. A protected key prompts for its
    password.

    Raises:
        UserError: minisign is missing, or cannot sign.
    """
    check_key(key)
    signature = signature_of(bundle)
    comment = f"{bundle.name} sha256:{manifest.file_sha256(bundle)}"
    command = ("-S", "-s", str(key), "-m", str(bundle), "-x", str(signature), "-t", comment)
    done = _run(command)
    if "get_password" in done.stderr:  # no password on its input
        done = _run(command, _password(key))
    if done.returncode:
        raise UserError(
            f"'{bundle}' cannot be signed",
            why=_one_line(done.stderr),
            todo="Give the secret key of a pair that `minisign -G` made",
        )
    return signature


def refusal(bundle: Path, key: Path) -> str:
    """The reason why a packed bundle does not count as signed with this key; empty if it does.

    Args:
        key: a file with the public key.

    Raises:
        UserError: minisign is missing, or the key is invalid.
    """
    check_key(key)
    if not bundle.is_file():
        raise UserError(
            f"'{bundle}' is not a packed bundle",
            why="a signature is one of the file that `longca archive` wrote",
        )
    # minisign has the same exit code for this and for a damaged signature
    if PUBLIC_KEY.search(key.read_bytes()[:1000]) is None:
        raise UserError(
            f"'{key}' is not a public key of minisign", todo="Give the file that `minisign -G -p` wrote"
        )
    signature = signature_of(bundle)
    if not signature.is_file():
        return f"there is no signature '{signature}'"
    done = _run(("-V", "-q", "-p", str(key), "-m", str(bundle), "-x", str(signature)))
    if not done.returncode:
        return ""
    why = _one_line(done.stderr)
    return (
        f"'{signature.name}' was made for another file or with another key "
        f"({why or f'minisign ended with {done.returncode}'})"
    )


def signature_of(bundle: Path) -> Path:
    """The file that has the signature of a packed bundle, if there is one."""
    return bundle.with_name(bundle.name + SUFFIX)


def _run(arguments: tuple[str, ...], password: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_program(), *arguments],
        input=password,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _password(key: Path) -> str:
    try:
        return getpass.getpass(f"Password of '{key}': ") + "\n"
    except EOFError:
        raise UserError(
            f"'{key}' has a password",
            why="there is no terminal to ask for it",
            todo="Pipe it in, or use a key without one (`minisign -C -W`)",
        ) from None


def _program() -> str:
    program = shutil.which("minisign")
    if program is None:
        raise UserError(
            "minisign, the program that signs and checks signatures, is missing",
            todo="Install it: `apt-get install minisign`, `dnf install minisign` or `brew install minisign`",
        )
    return program


def _one_line(text: str) -> str:
    return " ".join(text.split()).removeprefix("Password: ")
