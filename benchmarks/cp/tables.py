"""Makes tables of context parallelism from records: shares of the single-GPU baseline, targets, other masks,
and peers. No GPU is needed.

python -m benchmarks.cp.tables reports/h200/h200-cp.parquet --write docs/results/h200/context-parallelism.md
docs/results/h200/peers.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.cp.cells import DIRECTIONS, OWN, PLAIN, Cells, Run
from benchmarks.cp.targets import targets
from longca.core import format_length
from longca.lab.store.load import load
from longca.lab.store.table import derived
from tools.table import Table, add_options

FIRST = (*PLAIN, "full_document", "causal_document")
PEERS = {
    "cudnn": ("torch_cp", "torch_cp_alltoall"),
    "torch_flash": ("torch_cp", "torch_cp_alltoall"),
    "flex": ("torch_flex_cp",),
    "fa2": ("ring_flash_attn", "yunchang"),
}
PAPER_STYLE = ("paper_style_ring", "paper_style_allgather")
EMPTY = "–"
TEXTS = ("GPUs × tokens", "mask", "peer")


def shares(cells: Cells) -> Table:
    """Shows percent of the single-GPU baseline of `band` for the first masks; TFLOP/s where there is no
    baseline."""
    rows = []
    for world, tokens in _sizes(cells):
        for mask in FIRST:
            runs = [Run(strategy, "band", mask, world, tokens) for strategy in (*OWN, *PAPER_STYLE)]
            baselines = [_pair(lambda d, run=run: cells.baseline(run, d)) for run in runs]
            baseline = next((text for text in baselines if text != EMPTY), EMPTY)
            values = [
                _pair(lambda d, run=run: cells.rate(run, d), unit=" T")
                if text == EMPTY
                else _pair(lambda d, run=run: cells.share(run, d), 100)
                for run, text in zip(runs, baselines, strict=True)
            ]
            if any(value != EMPTY for value in values):
                rows.append((f"{world} × {format_length(tokens)}", mask, baseline, *values))
    caption = (
        "`band`, forward / backward. `baseline`: TFLOP/s of the kernel on one GPU. The others: the share of "
        "it that each GPU reaches, in percent, or, with a T, TFLOP/s of a GPU where there is no baseline of "
        "the same protocol: calls with a rest of the GPU after each are not compared with calls without."
    )
    return _table("cp_shares", caption, ("GPUs × tokens", "mask", "baseline", *OWN, *PAPER_STYLE), rows)


def other_masks(cells: Cells) -> Table:
    """Shows TFLOP/s of the other masks, beside torch's FlexAttention."""
    peer = "torch_flex_cp"
    rows = []
    for world, tokens in _sizes(cells):
        masks = sorted(
            {run.mask for run, _ in cells.runs(kernel="band", world=world, tokens=tokens)} - set(FIRST)
        )
        for mask in masks:
            values = [_rates(cells, Run(strategy, "band", mask, world, tokens)) for strategy in OWN]
            rows.append(
                (
                    f"{world} × {format_length(tokens)}",
                    mask,
                    *values,
                    _rates(cells, Run(peer, "flex", mask, world, tokens)),
                )
            )
    caption = f"`band` under other masks, and `{peer}` beside it: TFLOP/s of a GPU, forward / backward."
    return _table("cp_masks", caption, ("GPUs × tokens", "mask", *OWN, peer), rows)


def peers(cells: Cells) -> Table:
    """Shows TFLOP/s of every peer, of its single-GPU baseline, and of the own strategies over the same kernel
    and over `band`."""
    rows = []
    for world, tokens in _sizes(cells):
        for mask in FIRST:
            for kernel, names in PEERS.items():
                for name in names:
                    run = Run(name, kernel, mask, world, tokens)
                    rate = _rates(cells, run)
                    if rate != EMPTY:
                        baseline = _pair(lambda d, run=run: cells.baseline(run, d))
                        rows.append(
                            (
                                f"{world} × {format_length(tokens)}",
                                mask,
                                f"`{name}`, `{kernel}`",
                                rate,
                                baseline,
                                _span(cells, run, kernel),
                                _span(cells, run, "band"),
                            )
                        )
    caption = (
        "TFLOP/s of a GPU, forward / backward: a peer, its single-GPU baseline, and the least to the most "
        "of the five strategies over that kernel and over `band`, all by the protocol of the peer's record."
    )
    return _table(
        "cp_peers",
        caption,
        (
            "GPUs × tokens",
            "mask",
            "peer",
            "it",
            "baseline",
            "strategies over that kernel",
            "strategies over `band`",
        ),
        rows,
    )


def _sizes(cells: Cells) -> list[tuple[int, int]]:
    return sorted({(run.world, run.tokens) for run, _ in cells.runs()})


def _rates(cells: Cells, run: Run) -> str:
    return _pair(lambda direction: cells.rate(run, direction))


def _pair(of: Callable[[str], float | None], scale: float = 1, unit: str = "") -> str:
    values = [of(direction) for direction in DIRECTIONS]
    if all(value is None for value in values):
        return EMPTY
    return " / ".join(EMPTY if value is None else f"{scale * value:.0f}" for value in values) + unit


def _span(cells: Cells, peer: Run, kernel: str) -> str:
    """Shows the least to the most of the own strategies where the peer ran, in each direction."""

    def of(direction: str) -> str:
        runs = [Run(strategy, kernel, peer.mask, peer.world, peer.tokens) for strategy in OWN]
        rates = [cells.rate(run, direction) for run in runs if cells.are_alike(run, peer, direction)]
        return _ends([rate for rate in rates if rate is not None])

    texts = [of(direction) for direction in DIRECTIONS]
    return EMPTY if set(texts) == {EMPTY} else " / ".join(texts)


def _ends(values: list[float]) -> str:
    ends = [f"{value:.0f}" for value in (min(values), max(values))] if values else [EMPTY]
    return "–".join(dict.fromkeys(ends))


def _table(name: str, caption: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    rows = tuple(rows)
    return Table(
        name,
        caption,
        columns,
        rows,
        tuple(dict(zip(columns, row, strict=True)) for row in rows),
        tuple(name for name in columns if name in TEXTS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    add_options(parser)
    options = parser.parse_args()
    cells = Cells(derived(load(*options.records).records))
    for table in (shares(cells), targets(cells), other_masks(cells), peers(cells)):
        table.publish(options)


if __name__ == "__main__":
    main()
