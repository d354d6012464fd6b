"""FlashAttention 3: head dims 64 and 128, bf16 and fp16, windows, packed documents and GQA, for sm_90a.

Left out, and refused by its interface: FP8, paged or appended KV, split KV, soft caps, other head dims, and
sm_80.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from .compiler import Compiler, Unit
from .python_files import install, version_of

HEAD_DIMS = (64, 128)
DTYPES = ("bf16", "fp16")
LEFT_OUT = (
    "SOFTCAP",
    "FP8",
    "PAGEDKV",
    "SPLIT",
    "APPENDKV",
    "SM8x",
    "HDIM96",
    "HDIM192",
    "HDIM256",
    "HDIMDIFF64",
    "HDIMDIFF192",
)
COMMON = (
    "-O3",
    "-std=c++17",
    "-w",
    "-I.",
    "-I../csrc/cutlass/include",
    *(f"-DFLASHATTENTION_DISABLE_{name}" for name in LEFT_OUT),
)
CUDA = (
    *COMMON,
    "-gencode=arch=compute_90a,code=sm_90a",
    "--use_fast_math",
    "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED",
    "-DCUTLASS_ENABLE_GDC_FOR_SM90",
    "-DCUTLASS_DEBUG_TRACE_LEVEL=0",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
)
HOST = (*COMMON, "-DPy_LIMITED_API=0x03090000", "-DTORCH_STABLE_ONLY")


def build(sources: Path, work: Path, site: Path, compiler: Compiler, archs: tuple[str, ...]) -> Path | None:
    """Compile the unpacked package in `sources` and put its extension into `site`. Returns the extension, or
    None without sm_90."""
    if "90" not in archs:
        return None
    units = [
        Unit(sources, f"instantiations/flash_bwd_hdim{head_dim}_{dtype}_sm90.cu", CUDA)
        for head_dim, dtype in itertools.product(reversed(HEAD_DIMS), DTYPES)
    ]
    units += [
        Unit(sources, f"instantiations/flash_fwd_hdim{head_dim}_{dtype}{packed}_sm90.cu", CUDA)
        for head_dim, dtype, packed in itertools.product(reversed(HEAD_DIMS), DTYPES, ("", "_packgqa"))
    ]
    units += [Unit(sources, "flash_prepare_scheduler.cu", CUDA), Unit(sources, "flash_api_stable.cpp", HOST)]
    library = site / "flash_attn_3/_C.abi3.so"
    compiler.link(compiler.objects(units, work), library)
    install("flash_attn_3", version_of(sources / "__init__.py"), [sources / "flash_attn_interface.py"], site)
    return library
