"""FlashAttention 1, the extension alone: head dims 32, 64 and 128, bf16 and fp16. Its block-sparse operators,
fp16 only, raise.

Each dtype of a head dim is a unit of its own, under a name of its own: as released, one unit takes ten
minutes.
"""

from __future__ import annotations

from pathlib import Path

from .compiler import Compiler, Unit

NAME = "flash_attn_cuda"
DTYPES = {"bf16": "__nv_bfloat16", "fp16": "__half"}
HEAD_DIMS = (64, 128, 32)  # the greatest that each source takes, the longest to compile first
DIRECTIONS = {  # (parameters, arguments, which of them has the dtype)
    "bwd": (
        "FMHA_dgrad_params &params, cudaStream_t stream, const bool configure",
        "params, stream, configure",
        "params",
    ),
    "fwd": ("Launch_params<FMHA_fprop_params> &launch", "launch", "launch.params"),
}
LEFT_OUT = (
    "run_fmha_block_fp16_sm80(Launch_params<FMHA_fprop_params> &, const bool)",
    "run_fmha_block_dgrad_fp16_sm80(const FMHA_dgrad_params &, cudaStream_t)",
)
COMMON = ("-O3", "-std=c++17", "-w", f"-DTORCH_EXTENSION_NAME={NAME}", "-I.", "-Isrc", "-Icutlass/include")
CUDA = (
    *COMMON,
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
)


def build(sources: Path, work: Path, site: Path, compiler: Compiler, archs: tuple[str, ...]) -> Path:
    """Compile the unpacked package in `sources` and put its extension into `site`. Returns the extension."""
    folder = sources / "csrc/flash_attn"
    (folder / "chosen.cpp").write_text(_chosen_by_dtype())
    code = tuple(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs)
    units = [Unit(folder, name, (*CUDA, *code)) for name in _one_dtype_each(folder)]
    units += [Unit(folder, name, COMMON) for name in ("chosen.cpp", "fmha_api.cpp")]
    library = site / f"{NAME}{compiler.suffix}"
    compiler.link(compiler.objects(units, work), library)
    return library


def _one_dtype_each(folder: Path) -> list[str]:
    """Write sources that hold one dtype of one head dim of one direction. Returns their names."""
    names = []
    for direction in DIRECTIONS:
        for head_dim in HEAD_DIMS:
            for dtype, element in DTYPES.items():
                function = f"run_fmha_{direction}_hdim{head_dim}"
                names.append(f"{direction}_{head_dim}_{dtype}.cu")
                (folder / names[-1]).write_text(
                    f'#include "static_switch.h"\n#undef FP16_SWITCH\n'
                    f"#define FP16_SWITCH(IS_BF16, F) {{ using elem_type = {element}; F(); }}\n"
                    f"#define {function} {function}_{dtype}\n#include "
                    f'"src/fmha_{direction}_hdim{head_dim}.cu"\n'
                )
    return names


def _chosen_by_dtype() -> str:
    """The functions that the bindings call: they pass on by dtype, or raise for what is left out."""
    lines = ["#include <torch/extension.h>", '#include "fmha.h"']
    for direction, (parameters, arguments, params) in DIRECTIONS.items():
        for head_dim in HEAD_DIMS:
            function = f"run_fmha_{direction}_hdim{head_dim}"
            lines += [f"void {function}_{dtype}({parameters});" for dtype in DTYPES]
            lines.append(
                f"void {function}({parameters}) {{"
                f" {params}.is_bf16 ? {function}_bf16({arguments}) : {function}_fp16({arguments}); }}"
            )
    lines += [
        f'void {function} {{ TORCH_CHECK(false, "left out of this build of FlashAttention 1"); }}'
        for function in LEFT_OUT
    ]
    return "\n".join(lines) + "\n"
