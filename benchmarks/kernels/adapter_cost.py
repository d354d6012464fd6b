"""Measures what longca's adapter adds to a call of the same kernel by hand: same tensors, same timer,
alternating calls.

    python -m benchmarks.kernels.adapter_cost [--kernels fa3,flex] [--lengths 8K,32K] [--keep] [--write
    docs/results/h200/timer.md]

Causal attention with 64:8 heads for the dense kernels, uniform blocks with 64:64 for the block-sparse ones;
head dim 128, bf16, forward and backward. A row that cannot run says why. No row starts after --max-seconds: a
second call with --kernels and --keep measures the rows left out and keeps the other rows of the CSV.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from benchmarks.common.rounds import difference, in_rounds, sampler
from benchmarks.common.text import machine, milliseconds, names, percent
from benchmarks.kernels.by_hand import BLOCKS, CAUSAL, Given
from longca.core import Registry, format_length, parse_heads, parse_length
from longca.kernels import Problem
from longca.lab.bench.check.inputs import make_inputs
from longca.lab.studies import Cell, cell_mask
from tools.table import Table, add_options, read_records

NAME = "adapter_cost"
LIMIT = 0.01
MOST_ROUNDS = 30
SECONDS_PER_ROW = 0.7
AGREEMENT = 0.02  # of the two results: twice what kernels of bf16 are off by
BLOCK = 64
DENSITY = 0.2
HANDS = {**BLOCKS, **CAUSAL}
COLUMNS = ("kernel", "cell", "adapter, ms", "by hand, ms", "difference", "IQR", "≤ 1 %", "by hand")


@dataclass(frozen=True)
class Row:
    """Times are medians; the difference is the adapter's from the hand's, relative, in the same round."""

    kernel: str
    cell: str
    adapter_ms: float | None = None
    by_hand_ms: float | None = None
    difference: float | None = None
    iqr: float | None = None
    reason: str = ""
    """why there are no times"""

    @classmethod
    def read(cls, record: Mapping[str, str]) -> Row:
        numbers = {
            name: float(record[name]) if record[name] else None
            for name in ("adapter_ms", "by_hand_ms", "difference", "iqr")
        }
        return cls(record["kernel"], record["cell"], **numbers, reason=record["reason"])

    def verdict(self) -> str:
        if self.difference is None or self.iqr is None:
            return "–"
        if self.difference <= LIMIT:
            return "yes"
        return "within the noise" if self.difference - self.iqr <= LIMIT else "no"

    def texts(self) -> tuple[str, ...]:
        if self.adapter_ms is None or self.by_hand_ms is None or self.difference is None or self.iqr is None:
            return (self.kernel, self.cell, *["–"] * 5, self.reason)
        return (
            self.kernel,
            self.cell,
            milliseconds(self.adapter_ms),
            milliseconds(self.by_hand_ms),
            percent(self.difference),
            percent(self.iqr, signed=False),
            self.verdict(),
            HANDS[self.kernel][1],
        )


def table(rows: Sequence[Row], caption: str) -> Table:
    return Table(
        NAME,
        caption,
        COLUMNS,
        tuple(row.texts() for row in rows),
        tuple(asdict(row) for row in rows),
        ("kernel", "cell", "≤ 1 %", "by hand"),
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yields all cells, the shortest first, so that a run that is cut off has something of each kernel."""
    num_q_heads, num_kv_heads = parse_heads(options.heads)
    common = {"kind": "kernel", "num_q_heads": num_q_heads, "head_dim": 128, "dtype": "bf16"}
    blocks = Registry("mask").load("block_sparse_uniform").resolve({"block": BLOCK, "density": DENSITY})
    for kernel in (name for name in BLOCKS if name in options.kernels):
        for direction in ("fwd", "bwd"):
            yield Cell(
                kernel=kernel,
                mask="block_sparse_uniform",
                mask_params=blocks,
                num_kv_heads=num_q_heads,
                seqlen=options.blocks_length,
                direction=direction,
                **common,
            )
    for seqlen in options.lengths:
        for kernel in (name for name in CAUSAL if name in options.kernels):
            for direction in ("fwd", "bwd"):
                yield Cell(
                    kernel=kernel,
                    mask="causal",
                    num_kv_heads=num_kv_heads,
                    seqlen=seqlen,
                    direction=direction,
                    **common,
                )


def without_hand() -> list[Row]:
    """Returns a row for each kernel that is not called by hand here."""
    kernels = Registry("kernel")
    attention = [name for name in kernels.names() if kernels.load(name).family != "control"]
    return [Row(name, "–", reason="not called by hand here") for name in attention if name not in HANDS]


def title(cell: Cell) -> str:
    mask = "causal" if cell.mask == "causal" else f"blocks of {BLOCK}, density {DENSITY}"
    return f"{format_length(cell.seqlen)} {mask}, {cell.num_q_heads}:{cell.num_kv_heads}, {cell.direction}"


def measured(cell: Cell, device: torch.device) -> Row:
    """Measures one cell. An exception of either side becomes the row's reason."""
    row = Row(cell.kernel, title(cell))
    try:
        return _measured(row, cell, device)
    except Exception as error:  # any kernel may raise anything
        said = str(error).strip().splitlines()
        return replace(row, reason=f"{type(error).__name__}: {said[0] if said else ''}"[:160])


def _measured(row: Row, cell: Cell, device: torch.device) -> Row:
    kernel = Registry("kernel").load(cell.kernel)
    mask = cell_mask(cell)
    reason = kernel.available(device.type) or kernel.supports(cell.call_spec, mask.traits, device.type)
    if reason is not None:
        return replace(row, reason=reason)
    needs_backward = cell.direction == "bwd"
    problem = Problem(
        mask, cell.num_q_heads, cell.num_kv_heads, cell.head_dim, torch.bfloat16, device, needs_backward
    )
    prepared = kernel.prepare(problem)
    inputs = make_inputs(cell, device)
    q, k, v, dout = (
        prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD)
    )
    forward = prepared.forward(q, k, v)
    result = prepared.from_layout(prepared.backward(forward, dout)[0] if needs_backward else forward.out)
    visible = None if mask.grid is None else torch.from_numpy(mask.grid.visible).to(device)
    make, _ = HANDS[cell.kernel]
    hand = make(
        Given(inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, needs_backward, visible, BLOCK)
    )
    _check(result, hand.result_THD())
    calls: dict[str, Callable[[], object]] = {
        "adapter": (lambda: prepared.backward(forward, dout))
        if needs_backward
        else (lambda: prepared.forward(q, k, v)),
        "by hand": hand.call,
    }
    times = in_rounds(
        {name: sampler(call, device) for name, call in calls.items()}, MOST_ROUNDS, SECONDS_PER_ROW
    )
    change = difference(times["adapter"], times["by hand"])
    return replace(
        row,
        adapter_ms=statistics.median(times["adapter"]),
        by_hand_ms=statistics.median(times["by hand"]),
        difference=change.relative,
        iqr=change.iqr,
    )


def _check(adapter_THD: torch.Tensor, hand_THD: torch.Tensor) -> None:
    """Compares the results of the two calls.

    Raises:
        ValueError: they differ by more than rounding.
    """
    distance = torch.linalg.vector_norm(adapter_THD.float() - hand_THD.float()) / torch.linalg.vector_norm(
        hand_THD.float()
    )
    if not distance <= AGREEMENT:
        raise ValueError(f"the results of the two calls are {float(distance):.1e} apart")


def kept(options: argparse.Namespace, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows after those of the CSV that they do not replace, and before the kernels that have
    none."""
    rows = [*rows, *without_hand()]
    new = {(row.kernel, row.cell) for row in rows}
    old = [Row.read(record) for record in read_records(options.out, NAME)] if options.keep else []
    return [*(row for row in old if (row.kernel, row.cell) not in new), *rows]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.adapter_cost", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--kernels", type=lambda text: names(text, list(HANDS)), default=list(HANDS), help=",".join(HANDS)
    )
    parser.add_argument(
        "--lengths",
        type=lambda text: [parse_length(part) for part in text.split(",")],
        default=[8192, 32768],
        help="of the causal cells (8K,32K)",
    )
    parser.add_argument(
        "--blocks-length", type=parse_length, default=16384, help="of the block-sparse cells (16K)"
    )
    parser.add_argument("--heads", default="64:8", help="of the causal cells (64:8)")
    parser.add_argument("--max-seconds", type=float, default=165.0, help="begin no row after this long (165)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the rows of the CSV in --out that are not measured now"
    )
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows = []
    start = time.monotonic()
    for cell in cells(options):
        if time.monotonic() - start > options.max_seconds:
            row = Row(cell.kernel, title(cell), reason=f"not begun: {options.max_seconds:.0f} s were over")
        else:
            row = measured(cell, device)
        rows.append(row)
        print(
            f"{time.monotonic() - start:5.0f} s",
            *(text for text in row.texts()[:7] if text),
            row.reason,
            flush=True,
        )
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    caption = (
        f"{machine(device)}. Head dim 128, bf16. Both calls in one process, alternating, up to "
        f"{MOST_ROUNDS} rounds; the difference is the median over rounds, with the distance between its "
        "quartiles."
    )
    table(kept(options, rows), caption).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
