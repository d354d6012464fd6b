"""`longca records get`: from a folder and over HTTP, cut off, damaged, not there, and never over other
files."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.core.version import VERSION
from longca.lab.archive import manifest
from longca.lab.archive.download import ReleaseSource
from longca.lab.archive.packing import BundleFile, pack
from longca.lab.archive.release_records import CACHE, get_records
from longca.lab.archive.releases import SUMS, archive_name

NAME = archive_name(VERSION, "records")
FILES = {
    "reports/h100/h100-dense.parquet": bytes(range(256)) * 4000,
    "reports/l40s/quick.csv": b"a,b\n1,2\n",
    "LICENSE": b"-\n",
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The files of a release."""
    folder = tmp_path / "release"
    folder.mkdir()
    entries = {path: BundleFile(content) for path, content in FILES.items()}
    entries[manifest.NAME] = BundleFile(manifest.manifest(FILES))
    (folder / NAME).write_bytes(pack(entries, NAME.removesuffix(".tar.gz"), 0))
    _sum(folder)
    return folder


def _sum(folder: Path) -> None:
    (folder / SUMS).write_text(f"{manifest.file_sha256(folder / NAME)}  {NAME}\n")


class Server(ThreadingHTTPServer):
    """A folder over HTTP. It closes the connection after `most` bytes of an answer, and knows ranges if it
    `resumes`."""

    folder: Path
    most: int | None = None
    resumes = True
    offsets: list[int]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        file = self.server.folder / self.path.rpartition("/")[2]
        if not file.is_file():
            self.send_error(404)
            return
        asked = self.headers.get("Range") if self.server.resumes else None
        offset = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.server.offsets.append(offset)
        content = file.read_bytes()[offset:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if file.name == SUMS else content[: self.server.most])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(release: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.folder = release
        server.offsets = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v{VERSION}"


def _is_whole(folder: Path) -> bool:
    expected = {path: content for path, content in FILES.items() if path.startswith("reports/")}
    there = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    return there == expected


def test_a_folder_or_its_address(release: Path, tmp_path: Path, longca):
    fetched = get_records(tmp_path / "mine", str(release))
    assert len(fetched.files) == 2 and _is_whole(tmp_path / "mine")
    assert get_records(tmp_path / "mine", str(release)) == fetched, "again: nothing to do"
    done = longca("records", "get", "--from", release.as_uri(), "--out", tmp_path / "other")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == str(tmp_path / "other/reports")
    assert _is_whole(tmp_path / "other")


@pytest.mark.parametrize("resumes", [True, False])
def test_a_transfer_that_was_cut_off_is_resumed(server: Server, tmp_path: Path, resumes: bool):
    server.most = 700
    server.resumes = resumes
    lines = []
    with pytest.raises(UserError, match=r"closed after 700 of .* what has come is kept"):
        get_records(tmp_path / "mine", _address(server))
    server.most = None
    get_records(tmp_path / "mine", _address(server), report=lines.append)
    assert _is_whole(tmp_path / "mine") and server.offsets[-1] == (700 if resumes else 0)
    assert lines == [f"{NAME}: resumed after 700 B"]


def test_a_damaged_archive_is_refused_and_forgotten(release: Path, tmp_path: Path):
    content = bytearray((release / NAME).read_bytes())
    content[len(content) // 2] ^= 1
    (release / NAME).write_bytes(content)
    with pytest.raises(UserError, match="is not the file of the release: its SHA-256"):
        get_records(tmp_path / "mine", str(release))
    assert not [path for path in (tmp_path / "mine").rglob("*") if path.is_file() and path.name != SUMS]
    _sum(release)  # the sum fits, and the archive is damaged nevertheless
    with pytest.raises(UserError, match=r"cannot be unpacked|is damaged"):
        get_records(tmp_path / "mine", str(release))
    assert not (tmp_path / "mine/reports").exists()


def test_no_other_file_is_replaced(release: Path, tmp_path: Path):
    own = tmp_path / "mine/reports/l40s/quick.csv"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(UserError, match=r"quick\.csv' is another file .* 1 of 2 files .* `--out`"):
        get_records(tmp_path / "mine", str(release))
    assert own.read_text() == "mine" and not (tmp_path / "mine/reports/h100").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "not installed from a release"),
        ("nowhere", r"cannot be fetched: No such file .* `--from`"),
        ("ftp://example.org/x", "begins with ftp://"),
        ("http://127.0.0.1:9/x", "Connection refused. Run the command again"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, message: str
):
    monkeypatch.delenv("LONGCA_RELEASES", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        get_records(tmp_path / "mine", address)
    assert "\n" not in str(error.value) and not (tmp_path / "mine" / CACHE).exists()


def test_a_release_that_is_not_there(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"has no longca-9\.9\.9-records"):
        get_records(tmp_path, _address(server), "9.9.9")
    (server.folder / SUMS).unlink()
    monkeypatch.setenv("LONGCA_RELEASES", _address(server).rpartition("/")[0] + "/")
    with pytest.raises(
        UserError, match=rf"/v{VERSION}/{SUMS}' cannot be fetched: there is no such file or release \(404\)"
    ):
        get_records(tmp_path)


def test_a_list_that_names_a_file_outside_is_refused(release: Path, tmp_path: Path):
    (release / SUMS).write_text(f"{'0' * 64}  ../../x\n")
    with pytest.raises(UserError, match="no list of checksums: line 1"):
        ReleaseSource(str(release), tmp_path / "cache").sums()
