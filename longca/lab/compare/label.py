"""Short texts for cells, ratios and speeds in tables and pages of a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from longca.core import format_length
from longca.lab.compare.pairs import RecordPair
from longca.lab.compare.side import Side
from longca.lab.compare.verdict import Basis
from longca.lab.store.text import NONE, number, percent
from longca.lab.studies import Cell


class Labels:
    """Short names of cells: method, mask, length and direction, and the other fields in which these cells
    differ."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        content = list(cells)
        values: dict[Hashable, set[str]] = defaultdict(set)
        for cell in content:
            for name, text in _rest(cell).items():
                values[_scope(name, cell)].add(text)
        self._varying = {scope for scope, different in values.items() if len(different) > 1}
        variants: dict[str, set[tuple[object, ...]]] = defaultdict(set)
        for cell in content:
            variants[cell.mask].add(tuple(sorted(cell.mask_params.items())))
        self._has_variants = {mask for mask, different in variants.items() if len(different) > 1}

    def of(self, cell: Cell, method: str = "") -> str:
        """ "fa3 causal 32K fwd", plus fields in which other cells of the comparison differ.

        Args:
            method: the method's name, if it is not the cell's own.
        """
        params = ",".join(f"{key}={value}" for key, value in cell.mask_params.items() if value is not False)
        mask = f"{cell.mask}({params})" if cell.mask in self._has_variants and params else cell.mask
        world = [f"×{cell.world}"] if cell.kind == "cp" else []
        new = [] if cell.new_tokens is None else [f"new={format_length(cell.new_tokens)}"]
        rest = [text for name, text in _rest(cell).items() if text and _scope(name, cell) in self._varying]
        return " ".join(
            [method or cell.method, *world, mask, format_length(cell.seqlen), *new, cell.direction, *rest]
        )


def _rest(cell: Cell) -> dict[str, str]:
    return {
        "heads": f"{cell.num_q_heads}:{cell.num_kv_heads}",
        "head dim": f"D={cell.head_dim}",
        "dtype": cell.dtype,
        "corpus": cell.corpus or "",
        "seed": f"seed={cell.seed}",
    }


def _scope(name: str, cell: Cell) -> Hashable:
    """The cells among which a name must be unique: for seeds, those of one mask at one length; for other
    fields, the whole study."""
    return (name, cell.mask, cell.seqlen) if name in ("corpus", "seed") else name


def ratio_text(ratio: float | None) -> str:
    """1.4 → "1.40×"."""
    return NONE if ratio is None else f"{number(ratio)}×"


def speed_texts(pair: RecordPair, basis: Basis | None) -> tuple[str, str]:
    """The values of A and B in the same unit: TFLOP/s per device, shares of peak, or milliseconds without a
    rate."""
    if basis == "share of peak":
        return _share(pair.a), _share(pair.b)
    if all(side is None or side.tflops or not side.time_ms for side in (pair.a, pair.b)):
        return _rate(pair.a), _rate(pair.b)
    return _time(pair.a), _time(pair.b)


def _share(side: Side | None) -> str:
    return percent(side.share.middle, 3) if side and side.share else NONE


def _rate(side: Side | None) -> str:
    return number(side.tflops.middle) if side and side.tflops else NONE


def _time(side: Side | None) -> str:
    return f"{number(side.time_ms.middle)} ms" if side and side.time_ms else NONE
