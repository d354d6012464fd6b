"""Bundles signed and checked by the real minisign, and what is said where it is not there."""

import getpass
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.packing import BundleFile, pack
from longca.lab.archive.signature import refusal, sign

needs_minisign = pytest.mark.skipif(
    shutil.which("minisign") is None,
    reason="there is no minisign: tools/install_minisign.sh gets it, as root, on Debian or Ubuntu",
)


@pytest.fixture
def packed(tmp_path) -> Path:
    path = tmp_path / "small.tar.gz"
    path.write_bytes(pack({MANIFEST: BundleFile(b"")}, "top", 0))
    return path


def pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A new pair of keys without a password: (secret, public)."""
    secret = folder / f"{name}.key"
    public = folder / f"{name}.pub"
    subprocess.run(["minisign", "-G", "-W", "-s", secret, "-p", public], check=True, capture_output=True)
    return secret, public


@needs_minisign
def test_a_signature_holds_for_this_file_and_key_alone(packed, tmp_path):
    secret, public = pair(tmp_path, "mine")
    assert "there is no signature" in refusal(packed, public)
    assert sign(packed, secret) == tmp_path / "small.tar.gz.minisig"
    assert refusal(packed, public) == ""
    assert "another key" in refusal(packed, pair(tmp_path, "theirs")[1])
    packed.write_bytes(pack({MANIFEST: BundleFile(b"x")}, "top", 0))
    assert "another file" in refusal(packed, public)
    sign(packed, secret)
    assert refusal(packed, public) == ""
    signature = tmp_path / "small.tar.gz.minisig"
    signature.write_text(
        signature.read_text().replace("small.tar.gz sha256", "other.tar.gz sha256")
    )  # the signed comment
    assert "another file" in refusal(packed, public)


@needs_minisign
def test_keys_that_are_none_are_named(packed, tmp_path):
    secret, public = pair(tmp_path, "mine")
    with pytest.raises(UserError, match=r"There is no key '.*nowhere\.key'.*minisign -G"):
        sign(packed, tmp_path / "nowhere.key")
    with pytest.raises(UserError, match="cannot be signed"):
        sign(packed, public)
    sign(packed, secret)
    (tmp_path / "odd.pub").write_text("no key\n")
    with pytest.raises(UserError, match=r"'.*odd\.pub' is not a public key of minisign"):
        refusal(packed, tmp_path / "odd.pub")
    with pytest.raises(UserError, match="is not a packed bundle"):
        refusal(tmp_path, public)


@pytest.mark.slow  # keys are made from passwords so that it takes seconds
@needs_minisign
def test_a_key_with_a_password_is_asked_for_it(packed, tmp_path, monkeypatch):
    secret = tmp_path / "mine.key"
    public = tmp_path / "mine.pub"
    pair = ["minisign", "-G", "-s", secret, "-p", public]
    subprocess.run(pair, input="open\nopen\n", text=True, check=True, capture_output=True)
    given = iter(["shut", "open"])
    monkeypatch.setattr(getpass, "getpass", lambda _: next(given))
    with pytest.raises(UserError, match=r"cannot be signed: .*[Ww]rong password"):
        sign(packed, secret)
    sign(packed, secret)
    assert refusal(packed, public) == ""


@needs_minisign
def test_nothing_is_unpacked_that_is_not_signed(longca, packed, tmp_path):
    public = pair(tmp_path, "mine")[1]
    packed.write_bytes(b"no bundle at all")
    done = longca("verify", packed, "--key", public)
    assert (
        done.returncode == 1 and "there is no signature" in " ".join(done.stdout.split()) and not done.stderr
    ), done.stdout + done.stderr


@pytest.mark.slow  # the page is made twice
@needs_minisign
def test_the_commands_sign_and_print_the_same_sums(longca, bundle, study_file, results, tmp_path):
    secret, public = pair(tmp_path, "mine")
    target = tmp_path / "three.tar.gz"
    done = longca("archive", study_file, "--results", results.parent, "--out", target, "--sign", secret)
    assert done.returncode == 0, done.stdout + done.stderr
    sums = [line for line in done.stdout.splitlines() if "sha256:" in line]
    assert len(sums) == 2 and Path(f"{target}.minisig").is_file() and "password" not in done.stdout.lower()
    done = longca("verify", target, "--key", public)
    assert done.returncode == 0 and sums == [
        line for line in done.stdout.splitlines() if " sha256:" in line
    ], done.stdout + done.stderr
    target.write_bytes(b"no bundle at all")
    done = longca("verify", target, "--key", public)
    assert (
        done.returncode == 1
        and "signature" in done.stdout
        and "sha256:" not in done.stdout
        and not done.stderr
    )


def test_where_minisign_is_missing_one_line_says_what_to_install(longca, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    for act in (sign, refusal):
        missing = (
            "minisign, the program that signs and checks signatures, is missing.*Install it: `apt-get "
            "install minisign`"
        )
        with pytest.raises(UserError, match=missing):
            act(packed, tmp_path / "any.key")


def test_a_signature_beside_a_bundle_is_mentioned(longca, packed, monkeypatch):
    """Also without minisign: whoever forgets `--key` hears of it."""
    monkeypatch.setattr(
        "longca.lab.archive.verify.verify", lambda folder: []
    )  # a bundle of nothing but a manifest
    assert "--key" not in longca("verify", packed).stdout
    Path(f"{packed}.minisig").write_text("any")
    done = longca("verify", packed)
    assert "small.tar.gz.minisig" in done.stdout.replace("\n", "") and "--key" in done.stdout, (
        done.stdout + done.stderr
    )
    data = json.loads(longca("verify", packed, "--json").stdout)
    assert data["unchecked_signature"] == f"{packed}.minisig"
