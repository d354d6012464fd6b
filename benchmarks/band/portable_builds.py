"""Compiles band attention's portable kernels for GPUs before and after Hopper, without a GPU: registers,
spills, shared memory.

    python -m benchmarks.band.portable_builds [--capability 8.0 10.0] [--few] [--write docs/design/band.md]

Builds are those that calls ask Triton for: head dims 64 and 128, bf16 and fp16, bands and blocks, 8 query
heads for a KV head and one, results of other keys merged in or not, row tiles split or not.
"""

from __future__ import annotations

import argparse
import io
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from longca.masks import BlockGrid, Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.ops.band import BandPlan, band_backward, band_forward, checks, plan_band_attention
from longca.ops.band import plan as band_plan
from tools.assembler import assembler_command
from tools.table import Table, add_options

SHARED_BYTES = {(8, 0): 163 << 10, (10, 0): 227 << 10}  # that a program may have, by compute capability
COLUMNS = (
    "compute capability",
    "kernel",
    "builds",
    "registers",
    "spilled bytes a thread",
    "shared memory, KiB",
    "of KiB",
)


@dataclass(frozen=True)
class Build:
    """One build of a kernel, compiled when its properties are asked for."""

    kernel: triton.JITFunction
    signature: Mapping[str, str]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        return self.kernel.__name__.lstrip("_")

    @cached_property
    def _compiled(self) -> tuple[Any, str]:
        """(what Triton compiled, what the assembler said of it)."""
        source = ASTSource(self.kernel, dict(self.signature), dict(self.constants), dict(self.attributes))
        target = GPUTarget("cuda", self._number, 32)
        with knobs.nvidia.scope(), redirect_stdout(io.StringIO()) as said:
            knobs.nvidia.dump_ptxas_log = True
            done = triton.compile(source, target=target, options=dict(self.options))
        return done, said.getvalue() or self._assembled(
            done.asm["ptx"]
        )  # what was compiled before is not assembled again

    @property
    def _number(self) -> int:
        return 10 * self.capability[0] + self.capability[1]

    def _assembled(self, ptx: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ptx)
            file.flush()
            return subprocess.run(
                assembler_command(self._number, file.name), capture_output=True, text=True, check=True
            ).stderr

    @property
    def shared_bytes(self) -> int:
        return self._compiled[0].metadata.shared

    @property
    def tensor_memory_columns(self) -> int:
        """Columns of the tensor memory of Blackwell, which has 512."""
        return getattr(self._compiled[0].metadata, "tmem_size", None) or 0

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._number_in(r"Used (\d+) registers")

    @property
    def spilled_bytes(self) -> int:
        """That a thread stores to memory for want of registers."""
        return self._number_in(r"(\d+) bytes spill stores")

    def _number_in(self, pattern: str) -> int:
        matches = re.findall(pattern, self._compiled[1])
        if not matches:
            raise ValueError(f"the assembler does not say {pattern!r}: {self._compiled[1]}")
        return max(map(int, matches))


def cases(few: bool) -> Iterator[tuple[BandPlan, torch.dtype, bool]]:
    """(plan, dtype of the inputs, whether results of other keys are merged in)."""
    bands = build_mask("causal", seqlen=256)
    uneven = Mask(
        256, 8192, (as_bands([(0, 16, 0, 8192, -INF, INF), (16, 256, 0, 64, -INF, INF)]),)
    )  # of which row tiles are split
    blocks = Mask(512, 512, grid=BlockGrid(np.eye(4, dtype=bool)[None], *[np.arange(0, 513, 128)[None]] * 2))
    short = Mask(
        480, 480, grid=BlockGrid(np.eye(10, dtype=bool)[None], *[np.arange(0, 481, 48)[None]] * 2)
    )  # with partial tiles
    every = itertools.product(
        (128, 64),
        (torch.bfloat16, torch.float16),
        (bands, uneven, blocks, short),
        ((8, 1), (2, 2)),
        (False, True),
    )
    for head_dim, dtype, mask, heads, carried in itertools.islice(every, 1) if few else every:
        yield (
            plan_band_attention(
                mask, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, device="cpu"
            ),
            dtype,
            carried,
        )


def builds(capability: tuple[int, int], few: bool = False) -> list[Build]:
    """Every build that the calls ask for, once. Nothing is compiled yet."""
    by_name: dict[str, Build] = {}

    def note(key: str, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        options = {name: compile[name] for name in ("num_warps", "num_stages", "num_ctas")}
        build = Build(
            fn.jit_function,
            compile["signature"],
            compile["constants"],
            compile["configs"][0],
            options,
            capability,
        )
        by_name.setdefault(f"{fn.name} {key}", build)
        return True  # neither compiled nor started

    with _plans_for(capability), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = note
        for plan, dtype, carried in cases(few):
            _call(plan, dtype, carried)
    return list(by_name.values())


def _call(plan: BandPlan, dtype: torch.dtype, carried: bool) -> None:
    """Both directions, by inputs of the CPU that nobody reads."""
    shapes = [
        (plan.seqlen_q, plan.num_q_heads),
        *[(plan.seqlen_k, plan.num_kv_heads)] * 2,
        (plan.seqlen_q, plan.num_q_heads),
    ]
    q, k, v, dout = (torch.zeros(*shape, plan.head_dim, dtype=dtype) for shape in shapes)
    out, lse = band_forward(q, k, v, plan)
    if carried:
        out, lse = band_forward(q, k, v, plan, initial=(out.float(), lse))
    band_backward(q, k, v, out, lse, dout, plan, dlse=lse if carried else None)


@contextmanager
def _plans_for(capability: tuple[int, int]) -> Iterator[None]:
    """Plans are for such a GPU, calls take tensors of the CPU, and Triton's kernels know of no build yet."""
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    choose = band_plan.choose_tiles
    active = SimpleNamespace(
        get_current_device=lambda: capability,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: target,
    )
    with (
        mock.patch.object(driver, "_active", active),
        mock.patch.object(checks, "INTERPRETED", True),
        mock.patch.object(
            band_plan, "choose_tiles", lambda head_dim, _, **how: choose(head_dim, capability, **how)
        ),
    ):
        yield


def table(builds: Sequence[Build]) -> Table:
    """A row for each kernel: its builds, and the most that any of them takes."""
    rows = []
    records = []
    for (capability, name), group in itertools.groupby(sorted(builds, key=_place), _place):
        same = list(group)
        record = {
            "capability": ".".join(map(str, capability)),
            "kernel": name,
            "builds": len(same),
            "registers": max(build.registers for build in same),
            "spilled_bytes": max(build.spilled_bytes for build in same),
            "shared_bytes": max(build.shared_bytes for build in same),
            "limit": SHARED_BYTES[capability],
        }
        records.append(record)
        rows.append(
            (
                record["capability"],
                f"`{name}`",
                str(record["builds"]),
                str(record["registers"]),
                str(record["spilled_bytes"]),
                f"{record['shared_bytes'] / 1024:.1f}",
                str(record["limit"] >> 10),
            )
        )
    caption = f"Triton {triton.__version__}. The most of all builds of a kernel; compiled, never timed."
    return Table(
        "band_portable_builds",
        caption,
        COLUMNS,
        tuple(rows),
        tuple(records),
        ("compute capability", "kernel"),
    )


def _place(build: Build) -> tuple[tuple[int, int], str]:
    return build.capability, build.name


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.portable_builds", description=str(__doc__).partition("\n")[0]
    )
    known = {".".join(map(str, capability)): capability for capability in SHARED_BYTES}
    parser.add_argument("--capability", nargs="+", choices=known, default=list(known))
    parser.add_argument("--few", action="store_true", help="one case only")
    add_options(parser)
    options = parser.parse_args(arguments)
    all_builds = [build for name in options.capability for build in builds(known[name], options.few)]
    for number, build in enumerate(all_builds, 1):
        print(
            f"{number} of {len(all_builds)}: {build.capability} {build.name}: {build.registers} registers, "
            f"{build.spilled_bytes} bytes "
            f"spilled, {build.shared_bytes} bytes shared",
            flush=True,
        )
    table(all_builds).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
