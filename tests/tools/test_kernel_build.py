"""The kernels' build: which units it compiles, that it compiles each once, and what it says of what is
missing.

nvcc is stood in for by g++.
"""

import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from longca.lab.images.recipe import load_recipe, names
from tests.helpers.support import ROOT
from tools.kernel_build import __main__ as command
from tools.kernel_build import fa1, fa2, fa3, fastvideo
from tools.kernel_build.compiler import BuildError, Compiler, Unit, available_bytes


class Recorder(Compiler):
    """Compiles nothing, and remembers what it should have."""

    def objects(self, units, into):
        self.units.extend(units)
        return [into / unit.source for unit in units]

    def link(self, objects, library):
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_text(f"{len(list(objects))} objects")


@pytest.fixture
def recorder(tmp_path: Path):
    recording = Recorder(tmp_path, tmp_path, 1)
    object.__setattr__(recording, "units", [])
    return recording


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("csrc/flash_attn", "flash_attn/cute"):
        (tmp_path / "src" / name).mkdir(parents=True)
    for name, text in {
        "flash_attn/__init__.py": '__version__ = "2.8.3"\n',
        "flash_attn/cute/old.py": "",
        "__init__.py": '__version__ = "3.0.0"\n',
        "flash_attn_interface.py": "",
    }.items():
        (tmp_path / "src" / name).write_text(text)
    return tmp_path / "src"


def test_the_second_one_has_what_the_studies_use_and_says_what_it_has_not(recorder, sources, tmp_path):
    fa2.build(sources, tmp_path / "work", tmp_path / "site", recorder, ("80", "90"))
    cuda = [unit for unit in recorder.units if unit.is_cuda]
    assert len(cuda) == 16 == len({unit.source for unit in cuda})
    assert all(
        "-gencode=arch=compute_80,code=sm_80" in unit.flags
        and "-gencode=arch=compute_90,code=sm_90" in unit.flags
        for unit in cuda
    )
    disabled = {name.removeprefix("-DFLASHATTENTION_DISABLE_") for name in cuda[0].flags if "DISABLE" in name}
    assert not disabled & {"LOCAL", "UNEVEN_K", "BACKWARD"}, "windows and odd lengths are used"
    text = (sources / "csrc/flash_attn/left_out.cpp").read_text()
    raised = set(re.findall(r"template<> void (\w+)<(\S+), (\d+), (\w+)>", text))
    undivided = re.findall(
        r"template<> void run_mha_fwd_splitkv_dispatch<(\S+, \d+, \w+)>.*no KV cache\"\); run_mha_fwd_<\1>\(",
        text,
    )
    assert len(undivided) == len(set(undivided)) == 8
    every = set(
        itertools.product(
            ("run_mha_fwd_", "run_mha_fwd_splitkv_dispatch", "run_mha_bwd_"),
            fa2.DTYPES.values(),
            ("32", "64", "96", "128", "192", "256"),
            ("false", "true"),
        )
    )
    assert {entry[2] for entry in every - raised} == {"64", "128"} and len(every - raised) == len(cuda), (
        "each is compiled or raises"
    )
    site = tmp_path / "site"
    assert (site / "flash_attn/__init__.py").exists() and not (site / "flash_attn/cute").exists(), (
        "flash-attn-4 has its own"
    )
    assert "Version: 2.8.3\n" in (site / "flash_attn-2.8.3.dist-info/METADATA").read_text()


def test_the_third_one_is_for_hoppers(recorder, sources, tmp_path):
    assert (
        fa3.build(sources, tmp_path / "work", tmp_path / "site", recorder, ("80",)) is None
        and not recorder.units
    )
    fa3.build(sources, tmp_path / "work", tmp_path / "site", recorder, ("80", "90"))
    cuda = [unit for unit in recorder.units if unit.is_cuda]
    assert {
        re.sub(r".*hdim(\d+)_(\w\w16).*", r"\1 \2", unit.source) for unit in cuda if "hdim" in unit.source
    } == {"64 bf16", "64 fp16", "128 bf16", "128 fp16"}
    assert (
        sum("_packgqa" in unit.source for unit in cuda) == 4
        and sum("bwd" in unit.source for unit in cuda) == 4
    )
    disabled = {
        name.removeprefix("-DFLASHATTENTION_DISABLE_")
        for name in recorder.units[-1].flags
        if "DISABLE" in name
    }
    assert (
        not {"LOCAL", "VARLEN", "PACKGQA", "CLUSTER", "HDIM64", "HDIM128", "FP16", "BACKWARD"} & disabled
    ), "the study needs them"
    assert (tmp_path / "site/flash_attn_interface.py").exists()


def test_the_first_one_has_each_dtype_apart(recorder, sources, tmp_path):
    fa1.build(sources, tmp_path / "work", tmp_path / "site", recorder, ("90",))
    written = [sources / "csrc/flash_attn" / unit.source for unit in recorder.units if unit.is_cuda]
    assert len(written) == 12 and all("FP16_SWITCH" in path.read_text() for path in written)


def test_the_driver_library_of_a_wheel_is_taken_out(recorder, tmp_path, monkeypatch):
    extension = tmp_path / "site/fastvideo_kernel/_C/ops.so"
    own = tmp_path / "site/fastvideo_kernel.libs/libcuda-9e10c86a.so.570.211.01"
    for path in (extension, own):
        path.parent.mkdir(parents=True)
        path.write_text("")
    tool = tmp_path / "bin/patchelf"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    fastvideo.build(tmp_path, tmp_path, tmp_path / "site", recorder, ("90",))
    assert (
        not own.exists()
        and (tmp_path / "asked").read_text() == f"--replace-needed {own.name} libcuda.so.1 {extension}\n"
    )


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A folder of CUDA whose nvcc is g++ and writes down that it was called."""
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(
        f'#!/bin/bash\necho "$PWD" >> {tmp_path}/calls\nwords=()\nfor word; do case $word in '
        f"--objdir*|-Xcompiler=*) ;; "
        '*) words+=("$word");; esac; done\nexec g++ -fPIC -x c++ "${words[@]}"\n'
    )
    nvcc.chmod(0o755)
    (tmp_path / "cuda/lib").mkdir()
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(tmp_path / "cuda/lib/libcudart.so.13")],
        check=True,
    )
    return tmp_path / "cuda"


def test_units_are_compiled_and_linked(toolkit, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv(
        "CCACHE_DISABLE", "1"
    )  # where there is one, it would call nvcc once more, and keep what a test compiles
    (tmp_path / "one.cu").write_text("int one() { return 1; }\n")
    (tmp_path / "two.cpp").write_text('int one(); extern "C" int two() { return one() + ONE; }\n')
    compiler = Compiler(toolkit, Path(torch.__file__).parent, 2)
    objects = compiler.objects(
        [Unit(tmp_path, "one.cu", ()), Unit(tmp_path, "two.cpp", ("-DONE=1",))], tmp_path / "objects"
    )
    compiler.link(objects, tmp_path / "found.so")
    code = (
        f"import torch, ctypes; ctypes.CDLL('{tmp_path}/cuda/lib/libcudart.so.13'); "
        f"print(ctypes.CDLL('{tmp_path}/found.so').two())"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "2\n"
    )
    assert (tmp_path / "calls").read_text() == f"{tmp_path}\n", (
        "it works in the unit's folder: no path of this machine gets into an object"
    )
    with pytest.raises(BuildError, match=r"bad.cpp did not compile: .*\n.*error"):
        (tmp_path / "bad.cpp").write_text("no\n")
        compiler.objects([Unit(tmp_path, "bad.cpp", ())], tmp_path / "objects")


@pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed here; images have it")
def test_what_was_compiled_is_not_compiled_again(toolkit, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    (tmp_path / "one.cpp").write_text("int one() { return 1; }\n")
    compiler = Compiler(toolkit, Path(torch.__file__).parent, 1)
    first, second = (
        compiler.objects([Unit(tmp_path, "one.cpp", ())], tmp_path / name)[0].read_bytes()
        for name in ("a", "b")
    )
    shown = subprocess.run(["ccache", "--print-stats"], capture_output=True, text=True, check=True).stdout
    assert first == second and re.search(r"^direct_cache_hit\s+1$", shown, re.M)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "fa9"], "'fa9' is not one of fa3, fa2, fa1"),
        (["--archs", "75"], "'75' is not one of 80, 90"),
        ([], "is not what the lock says"),
        (["--only", "fa1"], "flash_attn-1.0.9.tar.gz' is missing"),
    ],
)
def test_what_cannot_be_built_is_one_line(options, said, tmp_path, toolkit):
    (tmp_path / "x").write_text("")
    with tarfile.open(tmp_path / "xformers-0.0.34.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "x", "xformers-0.0.34/x")
    lock = tmp_path / "sources.lock"
    lock.write_text(
        "".join(
            f"{hashlib.sha256(name.encode()).hexdigest()}  https://example.org/{name}.tar.gz\n"
            for name in ("xformers-0.0.34", "flash_attn-1.0.9")
        )
    )
    words = [str(tmp_path), "--lock", str(lock), "--work", str(tmp_path / "work"), *options]
    done = subprocess.run(
        [sys.executable, "-m", "tools.kernel_build", *words],
        cwd=ROOT,
        env=os.environ | {"CUDA_HOME": str(toolkit)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in names() if load_recipe(name).kernels])
def test_recipes_ask_for_what_can_be_built(name):
    recipe = load_recipe(name)
    assert set(recipe.kernels) <= set(command.PACKAGES) and set(recipe.archs) <= set(command.ARCHS)
    lock = recipe.sources_lock.read_text()
    needed = [package for kernel in recipe.kernels if (package := command.PACKAGES[kernel][1])]
    assert all(f"/{package}" in lock for package in needed) and len(needed) == len(lock.splitlines())


def test_files_that_the_system_keeps_in_memory_leave_room_for_compilers(tmp_path):
    facts = tmp_path / "meminfo"
    facts.write_text(
        "MemTotal:       24676752 kB\nMemFree:         1048576 kB\nMemAvailable:   16777216 kB\n"
    )
    assert available_bytes(facts) == 16 << 30
    assert (
        0 < available_bytes(Path("/proc/meminfo")) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
