"""Locks name each package with its hashes, and agree with each other."""

import re

import pytest

from tests.helpers.support import ROOT
from tools import setup, torch_locks

LOCKS = ("requirements.lock", "torch.lock", "torch-cpu.lock", "tools/audit.lock", "tools/site.lock")
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*?)((?:\\\n\s+--hash=sha256:[0-9a-f]{64} ?)+)$", re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_a_hash(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = ENTRY.findall(text)
    assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE)) > 5
    assert (
        "".join(setup.without_torch(text).split()) == "".join("".join(ENTRY.sub("", text)).split())
        or len(entries) > 5
    )


def test_locks_agree():
    versions = [
        {
            (name, marker.strip(" ;\\")): version
            for name, version, marker, _ in ENTRY.findall((ROOT / lock).read_text())
        }
        for lock in LOCKS[:3]
    ]
    common, full, cpu = versions
    for name, version in (*full.items(), *cpu.items()):
        assert common.get(name, version) == version
    assert cpu["torch", ""] == full["torch", ""] + "+cpu" == f"{torch_locks.TORCH}+cpu"
    assert any(name.startswith("nvidia-cudnn") for name, _ in full) and not any(
        name.startswith("nvidia") for name, _ in cpu
    )
    assert {name for name, _ in full} >= {"triton"} <= {name for name, _ in cpu}


def test_hashes_of_the_cpu_build_are_read_from_its_index(monkeypatch):
    import io

    wheels = {
        "cp311-cp311-manylinux_2_28_x86_64": "1",
        "cp310-cp310-manylinux_2_28_x86_64": "2",
        "cp313-cp313t-manylinux_2_28_x86_64": "3",
        "cp312-cp312-manylinux_2_28_aarch64": "4",
        "cp312-cp312-win_amd64": "5",
    }
    name = f"torch-{torch_locks.TORCH}%2Bcpu"
    page = "".join(
        f'<a href="/whl/cpu/{name}-{tags}.whl#sha256={digit * 64}">x</a>\n' for tags, digit in wheels.items()
    )
    monkeypatch.setattr(torch_locks.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(page.encode()))
    assert torch_locks._cpu_hashes() == ["1" * 64, "4" * 64]
