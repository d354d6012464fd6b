"""Images are built or pulled once; what cannot be is said in a line. Apptainer and registries are stood in
for."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from longca.core.errors import UserError
from longca.lab.images import image as images
from longca.lab.images import obtain as obtaining
from longca.lab.images.image import locate
from longca.lab.images.obtain import definition, obtain
from longca.lab.images.recipe import Base, load_recipe
from tools.containers import current_digest

DIGEST = f"sha256:{'cd' * 32}"
APPTAINER = """#!/bin/sh
if [ "$1" = exec ]; then exec cat "{log}.contents"; fi
echo "$@" >> "{log}"
for word; do before=$last; last=$word; done
case "$*" in *fail*) echo "FATAL: no such image"; exit 255;; esac
target=$before
echo "image of $last" > "$target"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments of each call of apptainer, a line each."""
    log = tmp_path / "calls"
    tool = tmp_path / "bin" / "apptainer"
    tool.parent.mkdir()
    tool.write_text(APPTAINER.format(log=log))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    for module in (images, obtaining):
        monkeypatch.setattr(module, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(obtaining, "fetch", lambda recipe: None)
    monkeypatch.setattr(obtaining, "definition", lambda recipe: tmp_path / "containers" / "apptainer.def")
    return log


def quiet(line: str) -> None:
    assert line


def test_it_is_built_once(calls, tmp_path):
    first = obtain(locate("cpu"), announce=quiet)
    assert obtain(locate("cpu"), announce=quiet) == first
    assert len(calls.read_text().splitlines()) == 1 and "containers/apptainer.def" in calls.read_text()
    assert sorted(path.name for path in (tmp_path / "images").iterdir() if path.is_file()) == [
        "cpu.sif",
        "cpu.sif.log",
        "cpu.sif.recipe",
        "cpu.sif.sha256",
    ]


def test_its_bill_of_materials_lies_beside_it(calls, tmp_path):
    """That of the image which is there, also after another one was built; none where an image has no list of
    its contents."""
    bill = tmp_path / "images/cpu.sif.cdx.json"
    obtain(locate("cpu"), announce=quiet)
    assert not bill.exists()
    for version in ("2.11.0", "2.13.0"):
        listed = {
            "machine": "x86_64",
            "python": "3.11.2",
            "system": {},
            "packages": {"torch": version},
            "files": {},
            "bytes": 0,
        }
        calls.with_name("calls.contents").write_text(json.dumps(listed))
        obtain(locate("cpu"), announce=quiet)
        made = json.loads(bill.read_text())
        assert made["bomFormat"] == "CycloneDX" and [entry["purl"] for entry in made["components"]] == [
            f"pkg:pypi/torch@{version}"
        ]
        for ending in ("", ".sha256"):
            (tmp_path / f"images/cpu.sif{ending}").unlink()


def test_it_is_pulled_by_digest(calls):
    obtain(locate(f"docker://ghcr.io/us/longca@{DIGEST}"), announce=quiet)
    assert calls.read_text().startswith("pull ") and calls.read_text().endswith(
        f"docker://ghcr.io/us/longca@{DIGEST}\n"
    )


def test_a_failed_build_leaves_nothing(calls, tmp_path, capsys):
    with pytest.raises(UserError, match="could not be made"):
        obtain(locate(f"docker://ghcr.io/fail@{DIGEST}"), announce=quiet)
    assert "FATAL: no such image" in capsys.readouterr().err
    [log] = (tmp_path / "images").iterdir()
    assert log.suffix == ".log" and "FATAL: no such image" in log.read_text()


def test_another_image_than_asked_for_is_no_success(calls):
    with pytest.raises(UserError, match="not the requested one"):
        obtain(locate("cpu"), DIGEST, announce=quiet)


def test_without_apptainer(calls, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="There is no apptainer on this machine"):
        obtain(locate("cpu"), announce=quiet)


def test_without_a_registry_only_debian_can_be_built(monkeypatch):
    monkeypatch.setattr(obtaining, "reachable", lambda url: False)
    assert definition(load_recipe("cpu")).name == "apptainer-debian.def"
    with pytest.raises(
        UserError,
        match=r"-nvidia' cannot be built here: its base comes from docker\.io, which cannot be reached",
    ):
        definition(load_recipe("hopper-cu130-nvidia"))
    monkeypatch.setattr(obtaining, "reachable", lambda url: True)
    assert definition(load_recipe("hopper-cu130-nvidia")).name == "apptainer.def"


class Registry(http.server.BaseHTTPRequestHandler):
    """Wants a token, as registries do."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "let-me-in"}' if "scope=pull" in self.path else b"{}")

    def do_HEAD(self) -> None:
        known = self.headers.get("Authorization") == "Bearer let-me-in"
        self.send_response(200 if known else 401)
        if known:
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_header(
                "WWW-Authenticate",
                f'Bearer realm="http://{self.headers["Host"]}/token",service="here",scope="pull"',
            )
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_digest_of_a_tag_is_asked_of_its_registry(registry, monkeypatch):
    monkeypatch.setattr("tools.containers.HUB", {"here": registry})
    monkeypatch.setattr("tools.containers.SCHEME", "http")
    base = Base(image="here/library/debian:12", digest=f"sha256:{'0' * 64}")
    assert current_digest(base) == DIGEST
    monkeypatch.setattr("tools.containers.HUB", {"here": "127.0.0.1:1"})
    assert current_digest(base) is None


def test_an_image_of_another_recipe_is_not_used(calls, monkeypatch):
    obtain(locate("cpu"), announce=quiet)
    monkeypatch.setattr(obtaining, "recipe_digest", lambda recipe: "sha256:other")
    with pytest.raises(UserError, match=r"was built from another recipe.*Remove it and cpu\.sif\.sha256"):
        obtain(locate("cpu"), announce=quiet)


def test_space_is_looked_at_before_the_build(calls, monkeypatch):
    monkeypatch.setattr(obtaining.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1.5e9))
    with pytest.raises(UserError, match=r"has 1\.5 GB, and it takes up to 3 GB"):
        obtain(locate("cpu"), announce=quiet)
    assert not calls.exists()


def test_a_user_who_may_not_build_is_told_what_to_ask_for(calls, monkeypatch, tmp_path):
    tool = tmp_path / "bin/apptainer"
    tool.write_text(
        "#!/bin/sh\necho 'FATAL: could not use fakeroot: no mapping entry found in /etc/subuid' >&2\nexit "
        "255\n"
    )
    monkeypatch.setattr(obtaining.os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="may not build with --fakeroot"):
        obtain(locate("cpu"), announce=quiet)


def test_an_image_for_another_processor_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "some.sif"
    file.write_bytes(b"#!/usr/bin/env run-singularity".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"04\0")
    monkeypatch.setattr(images.platform, "machine", lambda: "x86_64")
    with pytest.raises(UserError, match="is for aarch64: this machine is x86_64"):
        obtain(locate(str(file)), announce=quiet)


@pytest.fixture
def verifying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """verifying(code, message): an apptainer that finds this of any signature. With the key that it is asked
    for."""
    key = tmp_path / "public.pem"
    key.write_text("a key")
    tool = tmp_path / "signed" / "apptainer"
    tool.parent.mkdir()
    for module in (images, obtaining):
        monkeypatch.setattr(module, "IMAGES", tmp_path / "images")

    def make(code: int, message: str = "") -> str:
        tool.write_text(
            f'#!/bin/sh\nif [ "$1" = verify ]; then echo "$@" >> {tool}.log; echo "FATAL:   {message}" >&2; '
            f"exit {code}; fi\n"
            '[ "$1" = pull ] || exit 1\nshift; echo image > "$1"\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
        return str(key)

    return make


def test_a_pulled_image_needs_the_signature_that_is_asked_for(verifying, tmp_path):
    image = locate(f"oras://ghcr.io/us/longca@{DIGEST}")
    key = verifying(255, "Failed to verify container: signature not found")
    with pytest.raises(
        UserError,
        match=r"is not signed with '.*public\.pem': Failed to verify container: signature not found",
    ) as caught:
        obtain(image, key=key, announce=quiet)
    assert str(caught.value).count("\n") == 0 and list((tmp_path / "images").glob("*.sif")) == [], (
        "nothing of it is left"
    )
    key = verifying(0)
    obtain(image, key=key, announce=quiet)
    assert image.stamp.is_file()
    verifying(255, "another key")
    with pytest.raises(UserError, match="another key"):
        obtain(image, key=key, announce=quiet)
    obtain(image, announce=quiet)


def test_what_is_built_here_needs_no_signature(calls):
    obtain(locate("cpu"), key="nowhere.pem", announce=quiet)
    assert "verify" not in calls.read_text()


def test_a_key_that_is_not_there(tmp_path):
    file = tmp_path / "some.sif"
    file.write_text("an image")
    with pytest.raises(UserError, match=r"There is no key 'nowhere\.pem'"):
        obtain(locate(str(file)), key="nowhere.pem", announce=quiet)
