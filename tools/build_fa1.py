"""Builds `flash_attn_cuda`, the extension of flash-attn 1.0.9 (the first FlashAttention), for sm_90 from its source package.

    python tools/build_fa1.py flash_attn-1.0.9.tar.gz FOLDER

The package is on https://pypi.org/project/flash-attn/1.0.9/#files. The build needs nvcc, a C++ compiler and this Python's torch,
and no network. FOLDER then holds the extension alone, to be put on PYTHONPATH. Each dtype of a head dim is compiled by a process of
its own, as many at a time as there are processors: about five minutes of one processor in all, the longest one minute. Kernels are
compiled as they are; its block-sparse operators, fp16 only, are left out and raise.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

NAME = "flash_attn_cuda"
SHA256 = "7c7e29ce25c6135f7291d39d8ce96481b6de0dc14e85eae73d1e5b6258d43ed9"
DTYPES = {"bf16": "__nv_bfloat16", "fp16": "__half"}
HEAD_DIMS = (64, 128, 32)  # the greatest that each source takes, the longest to compile first
DIRECTIONS = {  # (parameters, arguments, which of them has the dtype)
    "fwd": ("Launch_params<FMHA_fprop_params> &launch", "launch", "launch.params"),
    "bwd": ("FMHA_dgrad_params &params, cudaStream_t stream, const bool configure", "params, stream, configure", "params"),
}
LEFT_OUT = (
    "run_fmha_block_fp16_sm80(Launch_params<FMHA_fprop_params> &, const bool)",
    "run_fmha_block_dgrad_fp16_sm80(const FMHA_dgrad_params &, cudaStream_t)",
)
FLAGS = (
    "-O3", "-std=c++17", "-w", "-Xcompiler=-fPIC", f"-DTORCH_EXTENSION_NAME={NAME}", "-gencode=arch=compute_90,code=sm_90",
    "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math",
    *(f"-U__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path, help="flash_attn-1.0.9.tar.gz")
    parser.add_argument("folder", type=Path, help="where the extension goes")
    arguments = parser.parse_args()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        sys.exit("No nvcc found: put the CUDA toolkit's bin folder on PATH")
    if hashlib.sha256(arguments.sdist.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{arguments.sdist} is not PyPI's flash_attn-1.0.9.tar.gz: its SHA-256 is another")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with tarfile.open(arguments.sdist) as archive:
            archive.extractall(work, filter="data")
        source = next(work.glob("*/csrc/flash_attn"))
        library = arguments.folder.resolve() / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
        library.parent.mkdir(parents=True, exist_ok=True)
        build(work, source, nvcc, library)
    code = f"import torch, {NAME}; print({NAME}.__file__)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(library.parent)})
    print(f"built in {time.perf_counter() - start:.0f} s")


def build(work: Path, source: Path, nvcc: str, library: Path) -> None:
    torch_root = Path(torch.__file__).parent
    folders = (source, source / "src", source / "cutlass/include", torch_root / "include", torch_root / "include/torch/csrc/api/include",
               sysconfig.get_paths()["include"])
    last = torch_root.parent.glob("nvidia/cu*/include")  # of pip's packages: a small toolkit lacks the headers of cuBLAS
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *(f"-I{folder}" for folder in folders),
             *(f"-isystem={folder}" for folder in last)]
    (work / "chosen.cpp").write_text(chosen_by_dtype())
    files = [*one_dtype_each(work), work / "chosen.cpp", source / "fmha_api.cpp"]
    objects = [str(work / f"{file.stem}.o") for file in files]
    commands = [[nvcc, *flags, "-c", str(file), "-o", target] for file, target in zip(files, objects, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    run([nvcc, "-shared", "-cudart=shared", *objects, f"-L{torch_root / 'lib'}",
         *(f"-l{name}" for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")), "-o", str(library)])


def one_dtype_each(work: Path) -> list[Path]:
    """Sources that hold one dtype of one head dim of one direction, under a name of its own."""
    files = []
    for direction in ("bwd", "fwd"):
        for head_dim in HEAD_DIMS:
            for dtype, element in DTYPES.items():
                function = f"run_fmha_{direction}_hdim{head_dim}"
                files.append(work / f"{direction}_{head_dim}_{dtype}.cu")
                files[-1].write_text(
                    f'#include "static_switch.h"\n#undef FP16_SWITCH\n'
                    f"#define FP16_SWITCH(IS_BF16, F) {{ using elem_type = {element}; F(); }}\n"
                    f'#define {function} {function}_{dtype}\n#include "fmha_{direction}_hdim{head_dim}.cu"\n')
    return files


def chosen_by_dtype() -> str:
    """The functions that the bindings call: they pass on by dtype, or raise for what is left out."""
    lines = ["#include <torch/extension.h>", '#include "fmha.h"']
    for direction, (parameters, arguments, params) in DIRECTIONS.items():
        for head_dim in HEAD_DIMS:
            function = f"run_fmha_{direction}_hdim{head_dim}"
            lines += [f"void {function}_{dtype}({parameters});" for dtype in DTYPES]
            lines.append(f"void {function}({parameters}) {{"
                         f" {params}.is_bf16 ? {function}_bf16({arguments}) : {function}_fp16({arguments}); }}")
    lines += [f'void {function} {{ TORCH_CHECK(false, "left out of this build of flash-attn 1.0.9"); }}' for function in LEFT_OUT]
    return "\n".join(lines) + "\n"


def run(command: list[str]) -> None:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    print(f"{Path(command[command.index('-o') + 1]).name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
