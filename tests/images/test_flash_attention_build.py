"""The script that builds FlashAttention inside the image, run with sources of nothing and with stand-ins for pip and patchelf."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from longca.images.recipe import load_recipe

STUB = """#!/bin/bash
case "$*" in *get_path*) echo {site};; *) echo "$*" ; env | grep -E '^(FLASH|MAX_JOBS|NVCC)' ;; esac >> {log}
[[ "$*" == *get_path* ]] && echo {site}
exit 0
"""
LAST = {"flash_attn-2.8.3.post2": "flash_attn/cute/old.py", "xformers-0.0.34": "third_party/flash-attention/hopper/setup.py",
        "flash_attn-1.0.9": "setup.py"}


@pytest.fixture
def build(tmp_path: Path):
    """build() → the finished script; what its stand-ins saw is in tmp_path/log."""
    sources, site, tools = tmp_path / "sources", tmp_path / "site", tmp_path / "bin"
    for folder in (sources, site / "fastvideo_kernel", site / "fastvideo_kernel.libs", tools):
        folder.mkdir(parents=True)
    (site / "fastvideo_kernel" / "_C.so").write_text("")
    (site / "fastvideo_kernel.libs" / "libcuda-266916da.so.580.173.02").write_text("")
    shutil.copy(load_recipe("hopper-cu130").folder / "build_flash_attention.sh", tmp_path)
    lines = []
    for name, file in LAST.items():
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text("")
        with tarfile.open(sources / f"{name}.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / name, name)
        lines.append(f"{hashlib.sha256((sources / f'{name}.tar.gz').read_bytes()).hexdigest()}  https://example.org/{name}.tar.gz\n")
    (tmp_path / "sources.lock").write_text("".join(lines))
    for tool in ("python", "patchelf"):
        (tools / tool).write_text(STUB.format(site=site, log=tmp_path / "log"))
        (tools / tool).chmod(0o755)

    def run() -> subprocess.CompletedProcess[str]:
        command = ["bash", str(tmp_path / "build_flash_attention.sh"), str(sources)]
        environ = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin", "MAX_JOBS": "3"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)

    return run


def test_it_builds_all_three(build, tmp_path):
    done = build()
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text()
    fa2, fa3 = log.index("/flash_attn-2.8.3.post2"), log.index("/xformers-0.0.34/third_party/flash-attention/hopper")
    assert fa2 < fa3 < log.index("build_fa1.py")
    assert "FLASH_ATTN_CUDA_ARCHS=80;90" in log[fa2:fa3] and "FLASH_ATTENTION_DISABLE_FP8" not in log[:fa3]
    assert "FLASH_ATTENTION_DISABLE_FP8=TRUE" in log[fa3:] and "FLASH_ATTENTION_FORCE_BUILD=TRUE" in log[:fa3] and "MAX_JOBS=3" in log
    assert "--replace-needed libcuda-266916da.so.580.173.02 libcuda.so.1" in log
    assert not list((tmp_path / "site" / "fastvideo_kernel.libs").iterdir()), "the driver library of the wheel is gone"


def test_a_changed_source_is_not_built(build, tmp_path):
    with (tmp_path / "sources" / "xformers-0.0.34.tar.gz").open("ab") as file:
        file.write(b"x")
    done = build()
    assert done.returncode != 0 and "xformers-0.0.34.tar.gz: FAILED" in done.stdout + done.stderr
    assert not (tmp_path / "log").exists()
