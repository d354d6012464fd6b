"""Images are located, stamped once, and refused when they are others than they were."""

import os
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.images import image as images
from longca.lab.images.image import Image, check, locate, stamp

HELLO = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
OTHER = f"sha256:{'ab' * 32}"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    monkeypatch.setattr(images, "IMAGES", tmp_path / "images")
    (tmp_path / "some.sif").write_text("hello")
    return locate(str(tmp_path / "some.sif"))


def test_names_files_and_urls_have_their_places(image, tmp_path):
    assert locate("cpu").file == tmp_path / "images/cpu.sif"
    assert image.stamp == tmp_path / "images/some.sif.sha256"
    url = locate(f"docker://ghcr.io/us/longca@{HELLO}")
    assert url.file.parent == tmp_path / "images" and url.file.name.startswith(
        "ghcr-io-us-longca-sha256-2cf24"
    )


def test_an_image_that_may_change_is_refused(image):
    with pytest.raises(UserError, match=r"not pinned\. Give docker://NAME@sha256"):
        locate("docker://ghcr.io/us/longca:latest")


def test_a_stamp_is_what_sha256sum_reads(image):
    assert stamp(image) == HELLO
    assert image.stamp.read_text() == f"{HELLO.removeprefix('sha256:')}  {image.file}\n"
    assert check(image) == check(image, HELLO, thorough=True) == HELLO


def test_a_replaced_image_is_refused(image):
    stamp(image)
    image.file.unlink()
    image.file.write_text("hallo")
    with pytest.raises(
        UserError, match=r"not the obtained one: its digest is sha256:d3751.*, it was sha256:2cf24"
    ):
        check(image)
    with pytest.raises(UserError, match="not the obtained one"):
        stamp(image)


def test_a_change_behind_an_old_date_is_found(image):
    stamp(image)
    before = image.file.stat().st_mtime_ns
    image.file.write_text("hallo")
    os.utime(image.file, ns=(before, before))
    with pytest.raises(UserError, match="not the obtained one"):
        check(image)


def test_a_touched_image_that_is_the_same_passes(image):
    stamp(image)
    image.file.touch()
    assert check(image) == HELLO


def test_another_than_asked_for_is_refused_and_not_stamped(image):
    with pytest.raises(UserError, match="not the requested one"):
        stamp(image, OTHER)
    assert not image.stamp.exists()
    stamp(image)
    with pytest.raises(UserError, match="not the requested one"):
        check(image, OTHER)


def test_no_image_and_a_damaged_stamp(image):
    image.stamp.parent.mkdir()
    image.stamp.write_text("nonsense")
    with pytest.raises(UserError, match="damaged"):
        check(image)
    image.file.unlink()
    with pytest.raises(UserError, match=r"There is no image .*: it is neither a file nor one of .*cpu"):
        check(image)
