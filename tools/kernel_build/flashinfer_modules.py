"""FlashInfer's modules for variable blocks, compiled beforehand: bf16, head dim 128, backends `fa2` and, for
sm_90, `fa3`.

FlashInfer compiles a module at its first call otherwise, which takes nvcc and minutes. It looks for them in
its own folder first.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .compiler import Compiler, run

HEAD_DIM = 128


def build(sources: Path, work: Path, site: Path, compiler: Compiler, archs: tuple[str, ...]) -> Path:
    """Compile the modules of the installed package and put them into it. Returns their folder. `sources` and
    `site` are not used."""
    os.environ |= {
        "CUDA_HOME": str(compiler.cuda),
        "MAX_JOBS": str(compiler.jobs),
        "FLASHINFER_WORKSPACE_BASE": str(work),
        "FLASHINFER_NVCC": str(_nvcc(compiler, work)),
        "FLASHINFER_CUDA_ARCH_LIST": " ".join({"80": "8.0", "90": "9.0a"}[arch] for arch in archs),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{_libraries(compiler, work / 'libraries')} -Wl,--build-id=none",
    }
    import torch
    from flashinfer.jit import build_jit_specs
    from flashinfer.jit.attention import gen_batch_prefill_module
    from flashinfer.jit.env import FLASHINFER_AOT_DIR
    from flashinfer.jit.page import gen_page_module
    from flashinfer.jit.quantization import gen_quantization_module

    backends = ("fa2", "fa3") if "90" in archs else ("fa2",)
    of_values = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, HEAD_DIM, HEAD_DIM)
    specs = [
        gen_page_module(),
        gen_quantization_module(),
        *(
            gen_batch_prefill_module(
                backend,
                *of_values,
                pos_encoding_mode=0,
                use_sliding_window=False,
                use_logits_soft_cap=False,
                use_fp16_qk_reduction=False,
            )
            for backend in backends
        ),
    ]
    build_jit_specs(specs, skip_prebuilt=False)
    for spec in specs:
        spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(spec.jit_library_path, spec.aot_path)
    return Path(FLASHINFER_AOT_DIR)


def _nvcc(compiler: Compiler, folder: Path) -> Path:
    """A program in nvcc's place: through ccache, which keeps nothing that also writes a list of headers, and
    with names of temporary files that are the same in each build."""
    wrapper = folder / "nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f"""#!/bin/sh
for word; do
  shift
  case $before$word in
    *--generate-dependencies-with-compile) ;;
    *--dependency-output*) before=$word; [ "$before" = --dependency-output ] || before= ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {" ".join([*compiler.cache, str(compiler.cuda / "bin/nvcc")])} --objdir-as-tempdir "$@"
""")
    wrapper.chmod(0o755)
    return wrapper


def _libraries(compiler: Compiler, folder: Path) -> Path:
    """A folder with the names that FlashInfer links by, `cudart` and `cuda`: PyPI's toolkit has the first
    under its version alone.

    The second is the driver's library. Only its name is needed here, and a library without functions has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcudart.so").unlink(missing_ok=True)
    (folder / "libcudart.so").symlink_to(compiler.runtime)
    (folder / "none.c").write_text("")
    run(
        ["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so", "none.c"],
        folder,
        "libcuda.so",
    )
    return folder
