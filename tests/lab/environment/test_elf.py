"""Build ids are read from any ELF file, and damage is no error."""

import subprocess
import sys
from pathlib import Path

import pytest

from longca.lab.environment.elf import build_id, is_elf, sample_of
from tests.helpers.environment.distributions import BUILD_ID, elf


@pytest.mark.parametrize(("bits", "order"), [(64, "<"), (64, ">"), (32, "<"), (32, ">")])
def test_the_build_id_is_read(tmp_path: Path, bits: int, order: str):
    path = tmp_path / "a.so"
    path.write_bytes(elf(bits=bits, order=order))
    assert build_id(path) == BUILD_ID.hex() and is_elf(path)
    path.write_bytes(elf(None, bits=bits, order=order))
    assert build_id(path) is None and is_elf(path)


def test_a_file_that_is_cut_off_anywhere_is_no_error(tmp_path: Path):
    path = tmp_path / "a.so"
    for length in range(len(elf())):
        path.write_bytes(elf()[:length])
        assert build_id(path) in (None, BUILD_ID.hex())
    path.write_bytes(elf().replace(b"\x14\0\0\0\3\0\0\0", b"\xff\xff\xff\xff\3\0\0\0"))  # a note of 4 GB
    assert build_id(path) is None


def test_the_interpreters_own_id_is_that_of_binutils():
    try:
        printed = subprocess.run(
            ["readelf", "-n", sys.executable], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no readelf here")
    texts = [line.split()[-1] for line in printed.splitlines() if "Build ID" in line]
    assert build_id(Path(sys.executable)) == (texts[0] if texts else None)


def test_a_sample_covers_size_begin_and_end(tmp_path: Path):
    path = tmp_path / "a.so"
    samples = set()
    content = bytearray(40 << 20)
    for change in (None, 0, len(content) - 1):
        if change is not None:
            content[change] ^= 1
        path.write_bytes(content)
        samples.add(sample_of(path))
    path.write_bytes(content + b"\0")
    assert len(samples | {sample_of(path)}) == 4
