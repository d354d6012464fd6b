"""FlashAttention 2: head dims 64 and 128, bf16 and fp16, causal or not, windows, packed documents and GQA,
for sm_80 and sm_90.

Other head dims are left out and raise, as do dropout, ALiBi, soft caps and KV caches. That leaves 16 CUDA
units of 72, each a fraction of its size. Among those that are left out are the kernels that divide the keys
among blocks: FlashAttention takes them by itself where there are too few queries and heads to fill a GPU.
Such calls run undivided here: the same result, more slowly than in the released build.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from .compiler import Compiler, Unit
from .python_files import install, version_of

HEAD_DIMS = (64, 128)
LEFT_OUT = (32, 96, 192, 256)
DTYPES = {"bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t"}
KINDS = ("bwd", "fwd")  # those that compile longest first
CAUSAL = ("", "_causal")
FEATURES = tuple(f"-DFLASHATTENTION_DISABLE_{name}" for name in ("DROPOUT", "ALIBI", "SOFTCAP"))
COMMON = (
    "-O3",
    "-std=c++17",
    "-w",
    "-I.",
    "-Isrc",
    "-I../cutlass/include",
    "-DTORCH_EXTENSION_NAME=flash_attn_2_cuda",
    "-DTORCH_API_INCLUDE_EXTENSION_H",
    *FEATURES,
)
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
    (folder / "left_out.cpp").write_text(left_out())
    code = tuple(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs)
    units = [
        Unit(folder, f"src/flash_{kind}_hdim{head_dim}_{dtype}{causal}_sm80.cu", (*CUDA, *code))
        for kind, head_dim, dtype, causal in itertools.product(KINDS, reversed(HEAD_DIMS), DTYPES, CAUSAL)
    ]
    units += [Unit(folder, name, COMMON) for name in ("flash_api.cpp", "left_out.cpp")]
    library = site / f"flash_attn_2_cuda{compiler.suffix}"
    compiler.link(compiler.objects(units, work), library)
    package = sources / "flash_attn"
    # an old FA4 in the new one's place
    install("flash_attn", version_of(package / "__init__.py"), [package], site, left_out=("cute",))
    return library


def left_out() -> str:
    """The functions that the bindings name and that no unit defines: they raise, or run undivided."""
    lines = [
        "#include <torch/python.h>",
        "#include <cutlass/numeric_types.h>",
        '#include "namespace_config.h"',
        '#include "flash.h"',
        "namespace FLASH_NAMESPACE {",
    ]
    functions = {
        "run_mha_fwd_": "Flash_fwd_params",
        "run_mha_fwd_splitkv_dispatch": "Flash_fwd_params",
        "run_mha_bwd_": "Flash_bwd_params",
    }
    for (function, params), head_dim, element, causal in itertools.product(
        functions.items(), LEFT_OUT, DTYPES.values(), ("false", "true")
    ):
        lines.append(
            f"template<> void {function}<{element}, {head_dim}, {causal}>({params} &, cudaStream_t) {{"
            f' TORCH_CHECK(false, "this build of FlashAttention 2 has head dims 64 and 128, not '
            f'{head_dim}"); }}'
        )
    for head_dim, element, causal in itertools.product(HEAD_DIMS, DTYPES.values(), ("false", "true")):
        which = f"<{element}, {head_dim}, {causal}>"
        lines.append(
            f"template<> void run_mha_fwd_splitkv_dispatch{which}(Flash_fwd_params &params, cudaStream_t "
            f"stream) {{"
            " TORCH_CHECK(!params.knew_ptr && !params.block_table && !params.cache_batch_idx && "
            "!params.leftpad_k,"
            f' "this build of FlashAttention 2 has no KV cache"); run_mha_fwd_{which}(params, stream); }}'
        )
    return "\n".join([*lines, "}", ""])
