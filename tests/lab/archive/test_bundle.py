"""Content of a bundle: its bytes follow from its content, and bad ones are refused."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.archive import bundle as making
from longca.lab.archive.bundle import write_bundle
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.manifest import differences, manifest, read_manifest, sha256
from longca.lab.archive.packing import PART, BundleFile, opened, pack
from longca.lab.store.cells import CellStore
from longca.lab.store.rows.load import load_rows
from longca.lab.studies.config import Config
from tests.helpers.archive import DIGEST
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_the_same_study_gives_the_same_bytes(study, study_file, results, bundle, tmp_path):
    again = write_bundle(study, study_file, Config(), results, load_rows(results), tmp_path / "again.tar.gz")
    assert again.digest == bundle.digest == sha256(again.path.read_bytes())


def test_time_and_owner_of_files_do_not_matter():
    entries = {"b": BundleFile(b"2", executable=True), "a": BundleFile(b"1")}
    assert (
        pack(entries, "top", 7) == pack(dict(reversed(entries.items())), "top", 7) != pack(entries, "top", 8)
    )


def test_files_on_disk_are_packed_as_their_content(tmp_path):
    """Larger than the parts that threads compress, of which the last one is not full."""
    content = bytes(range(256)) * (2 * PART // 256) + b"end"
    (tmp_path / "large").write_bytes(content)
    packed = pack({"large": BundleFile(tmp_path / "large")}, "top", 7)
    assert packed == pack({"large": BundleFile(content)}, "top", 7)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        member = tar.extractfile("top/large")
        assert member is not None and member.read() == content
    on_disk, in_memory = BundleFile(tmp_path / "large"), BundleFile(content)
    assert (on_disk.num_bytes, on_disk.sha256) == (len(content), in_memory.sha256)


def test_it_holds_what_repeats_and_what_explains(bundle):
    with tarfile.open(bundle.path) as tar:
        members = {member.name.removeprefix("longca-three/"): member for member in tar}
    wanted = {
        "Snakefile",
        "requirements.lock",
        "CITATION.cff",
        "longca/lab/studies/record.py",
        "workflow/rules/report.smk",
        "slurm/config.yaml",
        "config/studies/three.yaml",
        "measured/records.parquet",
        "measured/report.html",
        "measured/masks.json",
        "provenance.json",
        "ro-crate-metadata.json",
        "BUNDLE.md",
        MANIFEST,
    }
    assert wanted <= members.keys()
    assert {(member.isfile(), member.uid, member.uname) for member in members.values()} == {(True, 0, "")}
    assert members["tools/install_browser.sh"].mode == 0o755 and members["Snakefile"].mode == 0o644


def test_its_settings_name_the_study(bundle):
    with opened(bundle.path) as (folder, _):
        settings = (folder / "config/config.yaml").read_text()
        assert "study: three\n" in settings and "results: results\n" in settings


@pytest.mark.parametrize(
    ("image", "kept"),
    [("cpu", "cpu"), ("/scratch/mine.sif", "''"), (f"docker://us/longca@{DIGEST}", "docker://us")],
)
def test_an_image_of_this_machine_alone_is_no_setting(study, image, kept):
    settings = making._config(study, Config(image=image), {"containers/cpu/image.yaml": BundleFile(b"")})
    assert f"\nimage: {kept}" in settings.decode()


def test_provenance_names_images_jobs_and_locks(bundle, records):
    facts = bundle.facts
    assert facts.num_records == facts.num_cells == len(records)
    assert [(count.what, count.num_records) for count in facts.images] == [(DIGEST, 1)]
    assert [(count.what, count.num_records) for count in facts.jobs] == [("17_3", 1)]
    assert "requirements.lock" in facts.locks and len(facts.nodes) == 1


def test_crate_describes_files_as_they_are(bundle):
    with opened(bundle.path) as (folder, _):
        graph = {
            entity["@id"]: entity
            for entity in json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
        }
        for part in graph["./"]["hasPart"]:
            place = folder / part["@id"]
            entity = graph[part["@id"]]
            assert place.exists(), part
            if entity["@type"] != "Dataset":
                assert entity["sha256"] == sha256(place.read_bytes()) and entity["contentSize"] == str(
                    place.stat().st_size
                )
    assert graph["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    assert "ComputationalWorkflow" in graph[graph["./"]["mainEntity"]["@id"]]["@type"]
    run = graph[graph["./"]["mentions"]["@id"]]
    assert run["startTime"] <= run["endTime"] and graph[run["containerImage"]["@id"]][
        "sha256"
    ] == DIGEST.removeprefix("sha256:")


def test_every_reference_of_the_crate_leads_somewhere(bundle):
    with opened(bundle.path) as (folder, _):
        graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    known = {entity["@id"] for entity in graph}
    for entity in graph:
        for value in entity.values():
            for target in value if isinstance(value, list) else [value]:
                if isinstance(target, dict) and not target["@id"].startswith("http"):
                    assert target["@id"] in known


def test_a_bundle_can_be_made_from_an_unpacked_bundle(
    study, study_file, results, bundle, tmp_path, monkeypatch
):
    """The same study gives the same bytes."""
    with opened(bundle.path) as (folder, _):
        monkeypatch.setattr(making, "ROOT", folder)
        again = write_bundle(
            study, study_file, Config(), results, load_rows(results), tmp_path / "again.tar.gz"
        )
    assert again.digest == bundle.digest == sha256(again.path.read_bytes())


def test_damaged_records_are_refused(study, study_file, records, tmp_path):
    store = CellStore(tmp_path / "three")
    store.write(records[0]).write_text("{")
    with pytest.raises(UserError, match=r"cannot be archived: 1 file cannot be used.*`longca run` measures"):
        write_bundle(
            study, study_file, Config(), store.folder, load_rows(store.folder), tmp_path / "b.tar.gz"
        )
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_project_of_unknown_files_is_refused(study, study_file, results, tmp_path, monkeypatch):
    monkeypatch.setattr(making, "ROOT", tmp_path)
    with pytest.raises(UserError, match="neither a Git checkout nor an unpacked bundle"):
        write_bundle(study, study_file, Config(), results, load_rows(results), tmp_path / "b.tar.gz")


@pytest.mark.parametrize(
    "line", ["abc  file", f"{'0' * 64} file", f"{'0' * 64}  ../file", f"{'0' * 64}  /file"]
)
def test_a_manifest_that_cannot_be(line):
    with pytest.raises(ValueError, match="line 1"):
        read_manifest(line.encode())


def test_plugins_go_along(study, study_file, results, tmp_path, monkeypatch):
    (tmp_path / "mine" / "figures").mkdir(parents=True)
    (tmp_path / "mine" / "figures" / "_shared.py").write_text("")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path / "mine"))
    (tmp_path / "report.html").write_text("a page without figures")
    monkeypatch.setattr(making, "page_files", lambda *_: {"report.html": tmp_path / "report.html"})
    made = write_bundle(study, study_file, Config(), results, load_rows(results), tmp_path / "b.tar.gz")
    with opened(made.path) as (folder, _):
        assert (folder / "plugins/figures/_shared.py").is_file() and "LONGCA_PLUGINS" in (
            folder / "BUNDLE.md"
        ).read_text()


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("top/link", tarfile.SYMTYPE, "is not a file"),
        ("top/../../file", tarfile.REGTYPE, "lies outside of it"),
        ("/tmp/file", tarfile.REGTYPE, "lies outside of it"),
    ],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path, name, kind, why):
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
        tar.addfile(member)
    with pytest.raises(UserError, match=why), opened(path):
        pass


def test_a_file_of_records_is_no_bundle():
    records = ROOT / "reports/h100/ahead.parquet"
    with pytest.raises(UserError, match="`longca records check` examines a file of records"), opened(records):
        pass


def test_a_bundle_cut_off_is_refused(bundle, tmp_path):
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(bundle.path.read_bytes()[:50_000])
    with pytest.raises(UserError, match="cannot be unpacked"), opened(cut):
        pass


def small_bundle() -> bytes:
    files = {"a.txt": b"some text\n" * 9, f"b/{'long' * 30}.py": bytes(range(256)), "empty": b""}
    entries = {path: BundleFile(content, executable=path == "a.txt") for path, content in files.items()}
    return pack(entries | {MANIFEST: BundleFile(manifest(files))}, "top", 1_700_000_000)


def passes(content: bytes, folder: Path) -> bool:
    """True if that bundle is unpacked, and each file has its hash."""
    path = folder / "bundle.tar.gz"
    path.write_bytes(content)
    try:
        with opened(path) as (place, _):
            return not list(differences(place, read_manifest((place / MANIFEST).read_bytes())))
    except (UserError, ValueError):
        return False


def test_a_byte_that_was_changed_anywhere_is_found(tmp_path):
    whole = small_bundle()
    assert passes(whole, tmp_path)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8  # compressed, the same may be said in other bits
        assert not passes(bytes(changed), tmp_path) or gzip.decompress(changed) == gzip.decompress(whole), (
            place
        )
    assert not passes(whole[:-1], tmp_path) and not passes(whole + b"more", tmp_path)


def test_a_byte_that_was_changed_before_it_was_compressed_is_found(tmp_path):
    def compressed(tar: bytes) -> bytes:
        with gzip.GzipFile(filename="", mode="wb", fileobj=(packed := io.BytesIO()), mtime=0) as file:
            file.write(tar)
        return packed.getvalue()

    tar = gzip.decompress(small_bundle())
    assert passes(compressed(tar), tmp_path)
    for place in range(0, len(tar), 7):
        changed = bytearray(tar)
        changed[place] ^= 1 << place % 8
        assert not passes(compressed(bytes(changed)), tmp_path), place


def test_nothing_of_this_machine_is_in_it(bundle):
    with opened(bundle.path) as (folder, _):
        made = [
            folder / name
            for name in ("BUNDLE.md", "config/config.yaml", "provenance.json", "ro-crate-metadata.json")
        ]
        assert not [
            path.name
            for path in made
            if str(Path.home()) in path.read_text() or str(bundle.path.parent) in path.read_text()
        ]
