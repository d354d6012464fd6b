"""Bundles made to mislead or to exhaust: nothing outside of them is read, and what would take too much is
refused early."""

import gzip
import io
import os
import shutil
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.archive import verify as checking
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.manifest import unreadable
from longca.lab.archive.packing import BundleFile, Limits, opened, pack
from longca.lab.archive.verify import verify
from tests.helpers.archive import rehash

MIB = 1 << 20


@pytest.fixture
def folder(without_code, tmp_path, monkeypatch) -> Path:
    """An unpacked bundle, of which no page need be made."""
    monkeypatch.setattr(checking, "page_files", lambda *_: {})
    return Path(shutil.copytree(without_code, tmp_path / "unpacked"))


def checks(folder: Path) -> dict[str, checking.Check]:
    return {check.name: check for check in verify(folder)}


def zipped(tar: bytes, path: Path) -> Path:
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(tar)
    return path


def test_without_its_study_a_bundle_is_not_ok(folder):
    (folder / "config/studies/three.yaml").unlink()
    rehash(folder)
    checked = checks(folder)
    assert checked["files"].passed and checked["records"].passed and not checked["study"].passed
    assert "config/studies/three.yaml is missing" in checked["study"].detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grids: [", "cannot be read"),
        ("grids: [{kernel: nowhere, mask: full, seqlen: 64, heads: 1}]", "their titles differ"),
        ("title: Three cells\ngrids: [{kernel: nowhere, mask: full, seqlen: 64, heads: 1}]", "unknown here"),
        ("title: Three cells\ngrids: [{kernel: naive, mask: full, seqlen: 64, heads: 1}]", "1 difference"),
    ],
)
def test_another_study_in_its_place_is_not_ok(folder, text, expected):
    (folder / "config/studies/three.yaml").write_text(text)
    rehash(folder)
    check = checks(folder)["study"]
    assert not check.passed and expected in check.detail


@pytest.mark.parametrize("name", ["{outside}/three.yaml", "../../../outside/three", "{outside}/three"])
def test_provenance_cannot_name_a_study_outside(folder, tmp_path, name):
    (tmp_path / "outside").mkdir()
    shutil.move(folder / "config/studies/three.yaml", tmp_path / "outside/three.yaml")
    facts = folder / "provenance.json"
    facts.write_text(
        facts.read_text().replace(
            '"study": "three"', f'"study": "{name.format(outside=tmp_path / "outside")}"', 1
        )
    )
    rehash(folder)
    assert not checks(folder)["study"].passed


@pytest.mark.parametrize(
    "path", ["measured/records.parquet", "config/hardware.yaml", "config/studies/three.yaml"]
)
@pytest.mark.parametrize("kind", ["link", "linked folder", "hard link", "FIFO", "folder"])
def test_what_leads_out_of_an_unpacked_bundle_is_not_read(folder, tmp_path, monkeypatch, path, kind):
    """Its bytes are those that the manifest lists, so that only the way to them tells."""
    place = folder / path
    outside = tmp_path / "outside"
    if kind == "linked folder":
        shutil.move(place.parent, outside)
        place.parent.symlink_to(outside)
    else:
        shutil.move(place, outside)
        {
            "link": lambda: place.symlink_to(outside),
            "hard link": lambda: os.link(outside, place),
            "FIFO": lambda: os.mkfifo(place),
            "folder": place.mkdir,
        }[kind]()
    for reader in ("load_rows", "load_study"):
        real = getattr(checking, reader)
        monkeypatch.setattr(
            checking,
            reader,
            lambda source, real=real: real(source) if str(source) != str(place) else pytest.fail("read"),
        )
    checked = checks(folder)
    assert unreadable(folder, path) and not checked["files"].passed
    check = {"measured": "records", "config/studies": "study", "config": "page"}[Path(path).parent.as_posix()]
    assert not checked[check].passed


@pytest.mark.parametrize("name", [MANIFEST, "provenance.json"])
def test_what_describes_the_bundle_is_in_it(folder, tmp_path, name):
    shutil.move(folder / name, tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=rf"{name}'? is a link"), opened(folder) as (place, _):
        verify(place)


def test_a_folder_that_is_a_link_is_not_in_the_manifest(folder):
    (folder / "more").symlink_to("/etc")
    assert checks(folder)["files"].differences == ("more is not in the manifest",)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"study": ' + "9" * 5000 + "}", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_odd_provenance_is_one_line(folder, text):
    (folder / "provenance.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=r"provenance\.json' is damaged: it is not JSON"):
        verify(folder)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "/etc/passwd"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
        (tarfile.DIRTYPE, ""),
        (tarfile.GNUTYPE_SPARSE, ""),
        (tarfile.CONTTYPE, ""),
    ],
)
def test_a_member_that_is_no_plain_file_is_refused(tmp_path, kind, target):
    member = tarfile.TarInfo("top/file")
    member.type = kind
    member.linkname = target
    with (
        pytest.raises(UserError, match="'top/file' in it is not a file"),
        opened(zipped(member.tobuf(), tmp_path / "b.tar.gz")),
    ):
        pass


@pytest.mark.parametrize(
    "name", ["../file", "top/../../file", "/tmp/file", "top/\nfile", "top//file", "top/./file"]
)
def test_a_member_with_an_odd_name_is_refused(tmp_path, name):
    with (
        pytest.raises(UserError, match=r"lies outside of it|of the name"),
        opened(zipped(tarfile.TarInfo(name).tobuf(), tmp_path / "b.tar.gz")),
    ):
        pass


@pytest.mark.parametrize("again", ["top/a", "top/b"])
def test_a_member_that_stands_twice_or_out_of_order_is_refused(tmp_path, again):
    tar = b"".join(tarfile.TarInfo(name).tobuf(tarfile.PAX_FORMAT) for name in ("top/b", again))
    with (
        pytest.raises(UserError, match="cannot be unpacked"),
        opened(zipped(tar + bytes(10240), tmp_path / "b.tar.gz")),
    ):
        pass


def test_a_file_of_many_gigabytes_is_refused_before_it_is_read(tmp_path):
    member = tarfile.TarInfo("top/zeros")
    member.size = 5 << 30
    with (
        pytest.raises(UserError, match=r"too large: it holds more than 2\.00 GiB.*--max-gib"),
        opened(zipped(member.tobuf(), tmp_path / "b.tar.gz")),
    ):
        pass


def test_what_is_unpacked_is_bounded_in_all(tmp_path):
    path = tmp_path / "b.tar.gz"
    path.write_bytes(pack({f"{number}": BundleFile(bytes(MIB)) for number in range(8)}, "top", 0))
    with pytest.raises(UserError, match=r"more than 4\.00 MiB"), opened(path, Limits(num_bytes=4 * MIB)):
        pass
    with pytest.raises(UserError, match="more than 7 files"), opened(path, Limits(num_files=7)):
        pass
    with pytest.raises(UserError, match=f"no {MANIFEST}|is missing"), opened(path, Limits(9 * MIB, 8)):
        pass


def test_unpacking_takes_little_memory(tmp_path):
    path = tmp_path / "b.tar.gz"
    path.write_bytes(pack({"zeros": BundleFile(bytes(48 * MIB)), MANIFEST: BundleFile(b"")}, "top", 0))
    tracemalloc.start()
    try:
        with opened(path) as (folder, digest):
            assert (folder / "zeros").stat().st_size == 48 * MIB and digest
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_cannot_take_memory_or_stack(tmp_path, kind):
    """`tarfile` would read a header of any size whole, and follow a chain of them by recursion."""
    member = tarfile.TarInfo("top/file")
    member.type, member.size = kind, 64 * MIB
    large = zipped(member.tobuf() + bytes(64 * MIB), tmp_path / "large.tar.gz")
    member.size = 0
    chain = zipped(member.tobuf() * 5000, tmp_path / "chain.tar.gz")
    for path in (large, chain):
        tracemalloc.start()
        try:
            with pytest.raises(UserError), opened(path):
                pass
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()


def test_zeros_after_the_end_are_not_read_on_and_on(tmp_path):
    whole = gzip.decompress(pack({MANIFEST: BundleFile(b"")}, "top", 0))
    with (
        pytest.raises(UserError, match="it is not as `longca archive` packs it"),
        opened(zipped(whole + bytes(10240), tmp_path / "b.tar.gz")),
    ):
        pass


def test_what_was_packed_before_is_unpacked(tmp_path):
    """Names that need an extended header, empty files, and files that end with a block or a byte before or
    after."""
    files = {
        "é.txt": b"1",
        f"{'long/' * 40}name": b"2",
        "empty": b"",
        "block": bytes(512),
        "less": bytes(511),
        "more": bytes(513),
        "large": os.urandom(MIB),
    }
    for count in range(18, 24):  # archives of one and of two records of tar
        entries = {name: BundleFile(content) for name, content in files.items()} | {
            MANIFEST: BundleFile(bytes(512 * count))
        }
        path = tmp_path / f"{count}.tar.gz"
        path.write_bytes(pack(entries, "top", 1_700_000_000))
        with opened(path) as (folder, _), tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
            assert {member.name.removeprefix("top/") for member in tar} == entries.keys()
            assert all((folder / name).read_bytes() == entry.content for name, entry in entries.items())


def test_a_device_is_no_bundle():
    with pytest.raises(UserError, match="neither a file nor a folder"), opened(Path("/dev/zero")):
        pass
