"""Compiles the kernels of band attention for sm_90, without a GPU: some builds, or all of them.

    python -m tests.ops.band_compiled few|whole forward|backward|portable...

Each build of a Hopper kernel is printed with what its threads take, and compared with `band_builds.json`, or
for head dim 64 with `band_builds_64.json`, where the versions of Triton stand for which builds were compiled.
"""

import io
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from longca.ops.band.config import SM90_TILES
from longca.ops.band.replay.launches import OPTIONS
from longca.ops.band.sm90.bwd_dkdv import dkdv_kernel
from longca.ops.band.sm90.bwd_dq import dq_kernel
from longca.ops.band.sm90.bwd_fused import fused_kernel
from longca.ops.band.sm90.forward import forward_kernel
from longca.ops.band.sm90.tile_scheduler import key_tile_of
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.triton.backward import _dkdv, _dq
from tools.assembler import assembler_command

SHARED_BYTES = 232448  # of a multiprocessor of sm_90, for one program
NAME = r"%[\w#-]+"
# Triton's version → build → [registers, bytes spilled in stores, in loads], each of a thread
TAKEN = [
    json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    for name in ("band_builds.json", "band_builds_64.json")
]


def boxes(*box: int, dtype: gl.dtype = gl.bfloat16) -> str:
    return (
        f"tensordesc<{dtype.mangle()}{list(box)},{gl.NVMMASharedLayout.get_default_for(list(box), dtype)!r}>"
    )


Build = tuple[triton.JITFunction, list[str], dict[str, int], int]  # kernel, types, constants, most registers
RESULTS = ((0, "*bf16"), (1, "*fp32"), (1, "*bf16"), (0, "*fp32"))  # (whether merged with initial ones, type)

# of head dim 64, tiles that may be chosen: 2 stages, and 192 rows
OTHER_FORWARD = (
    (128, 8, 2, 1, 32, 2, RESULTS[:1]),
    (128, 8, 3, 1, 32, 2, RESULTS),
    (128, 8, 3, 1, 32, 3, RESULTS[:1]),
)


def builds(direction: str, head_dim: int) -> Iterator[Build]:
    return forward_builds(head_dim) if direction == "forward" else backward_builds(head_dim)


def forward_builds(head_dim: int) -> Iterator[Build]:
    """All builds of the tiles that are chosen, and of head dim 64 one of each that could be."""
    chosen = SM90_TILES[head_dim].forward.num_stages
    for step, pack, teams, parts, narrow, stages, results in (
        (128, 8, 2, 1, 32, chosen, RESULTS),
        (128, 4, 2, 1, 32, chosen, RESULTS),
        (64, 8, 2, 2, 0, chosen, RESULTS),
        (64, 1, 1, 1, 0, 3, RESULTS),
        (128, 1, 2, 1, 32, chosen, RESULTS),
        *(OTHER_FORWARD if head_dim == 64 else []),
    ):
        tiles = [
            boxes(64 // pack, pack, head_dim),
            *[boxes(step, 1, 64)] * 2,
            *[boxes(narrow or step, 1, 64)] * 2,
        ]
        for carried, result in results:
            constants = {"D": head_dim, "PACK": pack, "CONSUMERS": teams, "PARTS": parts, "NARROW_N": narrow}
            constants |= {"HAS_INITIAL": carried, "STAGES": stages}
            types = [*tiles, *["*i32"] * 4, result, "*fp32", "*fp32" if carried else result]
            types += [*["*fp32"] * 3, *["i32"] * 10, "fp32"]
            yield forward_kernel, types, constants, 168 if teams == 2 else 128


def backward_builds(head_dim: int) -> Iterator[Build]:
    """The same."""
    tiles = SM90_TILES[head_dim]
    tables = ["*i32"] * 4
    numbers = ["i32"] * 6
    keys = boxes(64, 1, head_dim)
    rows = boxes(tiles.dkdv.block_n // 8, 8, head_dim)
    stats = stats_box(tiles.dkdv.block_n)
    types = ["*bf16", "*bf16", "*fp32", "*fp32"] + ["i32"] * 5 + numbers + ["fp32"] * 2
    constants = {"PACK": 8, "STAGES": tiles.dkdv.num_stages}
    yield dkdv_kernel, [rows, rows, stats, stats, keys, keys, *tables, *types], constants, 168
    of_dq = itertools.product((1, 4, 8), (RESULTS[0], RESULTS[2], RESULTS[1]), (tiles.dq.block_n,))
    for pack, (carried, result), block in (*of_dq, *([(8, RESULTS[0], 64)] if head_dim == 64 else [])):
        rows = boxes(64 // pack, pack, head_dim)
        columns = boxes(block, 1, head_dim)
        types = [rows, rows, columns, columns, *tables, *["*fp32"] * 2, result, "*fp32", "*fp32"]
        types += [*["i32"] * 9, "fp32", "fp32"]
        constants = {"PACK": pack, "HAS_INITIAL": carried, "STAGES": tiles.dq.num_stages}
        yield dq_kernel, types, constants, 168
    rows = boxes(tiles.fused.block_n, 1, head_dim)
    stats = stats_box(tiles.fused.block_n)
    sums = [boxes(64, 1, 64, dtype=gl.float32)] * 3
    types = [rows, rows, stats, stats, keys, keys, *sums, *tables, *tables[1:], *numbers]
    types += ["i32", "i32", "fp32"]
    for in_order, stores in (
        (order, stores) for order in AddOrder for stores in range(1 + (order is not AddOrder.ANY))
    ):
        constants = {"IN_ORDER": int(in_order), "STORES": stores, "STAGES": tiles.fused.num_stages}
        yield fused_kernel, types, constants, 168


def stats_box(rows: int) -> str:
    return f"tensordesc<fp32[{rows}],{gl.NVMMASharedLayout(0, 32, 1)!r}>"


def carried_bounds(source: str) -> list[str]:
    """Loops whose end is a value that a loop around them carries. Triton 3.6 takes such a value for unused,
    and keeps its first one."""
    bad = []
    for function in source.split("tt.func ")[1:]:
        same = dict(re.findall(rf"({NAME}) = arith\.bitcast ({NAME})", function))
        carried = {
            name
            for loop in re.findall(r"scf\.for .*iter_args\(([^)]*)\)", function)
            for name in re.findall(rf"({NAME}) =", loop)
        }
        for line in re.findall(r".*= scf\.for .*|\s*scf\.for .*", function):
            end = re.search(rf" to ({NAME})", line)
            assert end is not None, line
            bad += [line.strip()] if same.get(end[1], end[1]) in carried else []
    return bad


def assembled(ptx: str) -> str:
    """The assembler's output for a kernel. It names matmuls that are serialized, since they cannot run beside
    others."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        return subprocess.run(
            assembler_command(90, file.name), capture_output=True, text=True, check=True
        ).stderr


def lost_minus(cubin: bytes) -> list[str]:
    """Sums with a uniform register that are compared at once. CUDA 12.8's assembler adds in some of them what
    it should subtract."""
    with tempfile.NamedTemporaryFile("wb", suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        code = subprocess.run(
            [triton.knobs.nvidia.nvdisasm.path, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    return re.findall(r"VIADDMNMX[^;]*\bUR\d+[^;]*", code)


def early_arrivals(ptx: str) -> list[str]:
    """Arrivals at a memory barrier right after shared memory or a matmul was used. One thread arrives for all
    of its group, which so has to meet before: Triton's compiler sees to that, by rules that differ from
    version to version.
    """
    used = False
    early = []
    for line in ptx.splitlines():
        if re.search(r"\b(?:ld|st)\.shared|\bwgmma\.wait_group", line):
            used = True
        elif re.search(
            r"\b(?:bar|barrier)(?:\.warp)?\.sync|\bmbarrier\.try_wait|\bcp\.(?:async\.bulk|reduce)", line
        ):
            used = False
        elif used and "mbarrier.arrive" in line:
            early.append(line.strip())
    return early


def check_items() -> None:
    """Every tile of every KV head in each of its rounds, and no round before the one that it may wait for."""
    for num_tiles, num_kv_heads, at_once, num_rounds, rounds_at_once in itertools.product(
        (1, 5), (1, 8), (1, 4), (1, 6), (1, 2)
    ):
        grid = SimpleNamespace(
            num_tiles=num_tiles,
            num_items=num_tiles * num_kv_heads * num_rounds,
            head_rounds=num_rounds,
            kv_heads_per_section=math.gcd(num_kv_heads, at_once),
            kv_heads_per_group=num_kv_heads,
            rounds_per_section=math.gcd(num_rounds, rounds_at_once),
        )
        items = [key_tile_of.fn(item, 0, grid)[1:] for item in range(grid.num_items)]
        assert sorted(items) == sorted(
            itertools.product(range(num_tiles), range(num_kv_heads), range(num_rounds))
        )
        places = {item: index for index, item in enumerate(items)}
        assert all(
            places[tile, kv_head, round_ - 1] < position
            for (tile, kv_head, round_), position in places.items()
            if round_
        )
        assert all(
            places[tile - 1, kv_head, round_] < position
            for (tile, kv_head, round_), position in places.items()
            if tile
        )
        of_section = grid.num_tiles * grid.kv_heads_per_section * grid.rounds_per_section
        assert all(
            len({(kv_head, round_) for _, kv_head, round_ in items[start : start + of_section]})
            * grid.num_tiles
            == of_section
            for start in range(0, len(items), of_section)
        )


def check_portable(whole: bool) -> None:
    """Triton's own kernels backward, with split lines and without: ptxas takes some ways to store a sum as
    reasons to serialize matmuls."""
    results = ["*bf16", "*bf16", "*fp32", "*fp32"]
    tables = ["*i32"] * 3
    every = itertools.product((1, 8), (False, True), (False, True), (64, 128))
    for pack, split, masked, head_dim in every if whole else [(8, True, True, 128)]:
        keys = f"tensordesc<bf16[64,{head_dim}]>"
        queries = f"tensordesc<bf16[{64 // pack},{pack},{head_dim}]>"
        shape = {"SPLIT": split, "MASKED": masked, "D": head_dim, "PACK": pack, "STAGES": 2}
        for kernel, types, constants in (
            (
                _dkdv,
                [queries] * 2 + ["*bf16"] * 2 + ["*fp32"] * 2 + results + tables + ["i32"] * 14,
                {"TILE_M": 64, "TILE_N": 64 // pack},
            ),
            (
                _dq,
                ["*bf16", keys, keys, "*bf16", "*fp32", "*fp32", "*bf16", "*fp32", "*fp32", *tables]
                + ["i32"] * 12,
                {"TILE_M": 64 // pack, "TILE_N": 64, "HAS_INITIAL": masked},
            ),
        ):
            constants |= shape
            names = [name for name in kernel.arg_names if name not in constants]
            signature = dict(zip(names, [*types, "fp32"], strict=True)) | dict.fromkeys(
                constants, "constexpr"
            )
            places = {kernel.arg_names.index(name): name for name in signature}
            aligned = {
                (position,): [["tt.divisibility", 16]]
                for position, name in places.items()
                if name.endswith(("_ptr", "_token", "_head"))
            }
            source = ASTSource(
                kernel,
                {name: signature[name] for name in kernel.arg_names},
                {(position,): constants[name] for position, name in places.items() if name in constants},
                aligned,
            )
            done = triton.compile(
                source, target=GPUTarget("cuda", 90, 32), options={**OPTIONS, "num_warps": 4, "num_stages": 2}
            )
            assert "serialized" not in (log := assembled(done.asm["ptx"])), (kernel.__name__, constants, log)


def main(direction: str, whole: bool) -> None:
    if direction == "portable":
        check_portable(whole)
        return
    check_items()
    for head_dim in SM90_TILES:
        done = set()
        for kernel, types, constants, maxnreg in builds(direction, head_dim):
            if whole or kernel not in done:
                check_build(kernel, types, constants, maxnreg)
            done.add(kernel)


def name_of(kernel: triton.JITFunction, types: list[str], constants: dict[str, int]) -> str:
    """A build's name: its kernel, its constants, the type of its result where that differs from the inputs',
    and its sizes."""
    results = [
        kind
        for name, kind in zip(kernel.arg_names, types, strict=False)
        if name in ("out_ptr", "dk_ptr", "dq_ptr")
    ]
    sizes = [] if "D" in constants else backward_sizes(types)
    return " ".join(
        [kernel.__name__, *(f"{name}={value}" for name, value in constants.items()), *results[:1], *sizes]
    )


def backward_sizes(types: list[str]) -> list[str]:
    """The head dim of a backward kernel's build and the length of its blocks, if they are not 128 and 64."""
    sizes = [[int(size) for size in kind.split("[")[1].split("]")[0].split(",")] for kind in types[:4]]
    head_dim = sizes[0][-1]
    block = sizes[2][0]
    return [] if head_dim == 128 else [f"D={head_dim}", f"block={block}"]


def check_build(
    kernel: triton.JITFunction, types: list[str], constants: dict[str, int], maxnreg: int
) -> None:
    names = kernel.arg_names
    build = name_of(kernel, types, constants)
    signature = dict(zip(names, types + ["constexpr"] * len(constants), strict=True))
    source = GluonASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()}
    )
    with knobs.nvidia.scope(), redirect_stdout(io.StringIO()) as said:
        knobs.nvidia.dump_ptxas_log = True
        done = triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={**OPTIONS, "num_warps": 4, "maxnreg": maxnreg}
        )
    assert not (bad := carried_bounds(str(done.asm["source"]))), bad
    log = said.getvalue() or assembled(done.asm["ptx"])  # what was compiled before is not assembled again
    assert "registers" in log and "serialized" not in log, log
    assert not (bad := lost_minus(done.asm["cubin"])), bad
    assert not (bad := early_arrivals(done.asm["ptx"])), bad
    assert done.metadata.shared * (2 if constants.get("CONSUMERS") == 1 else 1) <= SHARED_BYTES, (
        done.metadata.shared
    )
    taken = [
        max(map(int, re.findall(pattern, log)))
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes spill loads")
    ]
    print(f"{build}: {taken}, {done.metadata.shared} bytes shared", flush=True)
    expected = next(
        (known[build] for of in TAKEN if build in (known := of.get(triton.__version__, {}))), taken
    )
    more = any(new > old for new, old in zip(taken, expected, strict=True))
    assert not more, (
        f"{build} takes {taken} [registers, bytes spilled in stores, in loads], and took {expected}"
    )


if __name__ == "__main__":
    for direction in sys.argv[2:]:
        main(direction, sys.argv[1] == "whole")
