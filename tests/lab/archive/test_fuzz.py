"""Bundles that were damaged at random: what is wrong with them is said, and nothing that was changed
passes."""

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longca.lab.archive import verify as checking
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.manifest import differences, manifest, read_manifest
from longca.lab.archive.packing import BundleFile, opened, pack
from longca.lab.archive.provenance import NAME as PROVENANCE
from tests.helpers.archive import rehash
from tests.helpers.hostile.fuzzing import damaged, told, usable
from tests.helpers.support import examples
from tests.lab.archive.test_hostile import zipped

READ = [MANIFEST, PROVENANCE, "config/studies/three.yaml", "config/hardware.yaml", "measured/records.parquet"]


@pytest.fixture(scope="module")
def folder(without_code, tmp_path_factory):
    """An unpacked bundle of which no page is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "page_files", lambda *_: {})
        yield Path(shutil.copytree(without_code, tmp_path_factory.mktemp("fuzz") / "three"))


@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(READ), is_listed=st.booleans())
def test_a_damaged_file_is_refused_or_named(folder: Path, data: st.DataObject, name: str, is_listed: bool):
    """The hash may be in the manifest or not: a person who damages a file may write its manifest, too."""
    sound, listed = ((folder / path).read_bytes() for path in (name, MANIFEST))
    text = data.draw(damaged(sound))
    (folder / name).write_bytes(text)
    if is_listed and name != MANIFEST:
        rehash(folder)
    done = told("verify", folder, codes=(0, 1, 2))
    (folder / name).write_bytes(sound)
    (folder / MANIFEST).write_bytes(listed)
    assert is_listed or text == sound or name == MANIFEST or done.returncode


FILES = {"a.txt": b"one", "folder/" + "long" * 40: b"two" * 300, "é.txt": b""}
TAR = gzip.decompress(
    pack(
        {path: BundleFile(content) for path, content in {**FILES, MANIFEST: manifest(FILES)}.items()},
        "top",
        10**9,
    )
)


@settings(examples(400), suppress_health_check=list(HealthCheck))
@given(tar=damaged(TAR))
def test_a_damaged_archive_is_refused(tmp_path_factory, tar: bytes):
    """Each byte of a bundle is that of a file, whose hash is known, or can be derived from its files."""
    path = tmp_path_factory.getbasetemp() / "damaged.tar.gz"

    def check() -> None:
        with opened(zipped(tar, path)) as (folder, _):
            content = (folder / MANIFEST).read_bytes()
            assert (
                tar == TAR or content != manifest(FILES) or list(differences(folder, read_manifest(content)))
            )

    usable(check)
