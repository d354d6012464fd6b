"""Pictures of masks: rows are queries, columns are keys, and visible pairs are filled. SVG, HTML for
notebooks, and plots."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import Registry, format_length
from longca.masks import band
from longca.masks.band import K0, K1, Q0, Q1
from longca.masks.grid import BlockGrid
from longca.masks.traits import Bands

if TYPE_CHECKING:
    from longca.masks.traits import Traits

SIDE = 64  # cells of a picture along one side, at most
LEVELS = 8  # shades of partly visible cells
# readable on light and on dark backgrounds
VISIBLE = "#3b8eea"
FRAME = "#8b949e"
TITLE_WIDTH = 42  # characters of a plot's title
MOST_BANDS = 8  # that a notebook shows as numbers


def shares(mask: Bands, side: int = SIDE, group: int = 0) -> np.ndarray:
    """The visible share of each cell of a picture: float64 (rows, columns), each at most `side`, exact."""
    rows, cols = (
        np.linspace(0, length, min(length, side) + 1).astype(np.int64)
        for length in (mask.seqlen_q, mask.seqlen_k)
    )
    sizes = np.multiply.outer(np.diff(rows), np.diff(cols))
    if mask.grid is not None:
        return _areas_of_grid(mask.grid, group, rows, cols) / sizes
    return np.stack([_areas_of_bands(mask.groups[group], row, cols) for row in pairwise(rows)]) / sizes


def outline(visible: np.ndarray) -> str:
    """The SVG path of a bool raster: one rectangle for each interval of keys, over all rows in which it is
    unchanged."""
    pieces = []
    growing = {}
    for row in range(len(visible) + 1):
        edges = (
            np.flatnonzero(np.diff(np.pad(visible[row], 1).astype(np.int8)))
            if row < len(visible)
            else np.array([], int)
        )
        now = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for interval in sorted(set(growing) - now):
            start, end = interval
            pieces.append(f"M{start} {growing[interval]}H{end}V{row}H{start}Z")
            del growing[interval]
        for interval in now - set(growing):
            growing[interval] = row
    return "".join(pieces)


def svg(mask: Bands, width: int = 192, group: int = 0) -> str:
    """The picture of one head group; partly visible cells are paler."""
    cells = shares(mask, group=group)
    levels = np.where(cells > 0, np.clip(np.ceil(cells * LEVELS), 1, LEVELS), 0)
    paths = "".join(
        f'<path fill="{VISIBLE}" fill-opacity="{level / LEVELS:g}" shape-rendering="crispEdges" d="{path}"/>'
        for level in range(1, LEVELS + 1)
        if (path := outline(levels == level))
    )
    rows, cols = cells.shape
    height = round(width * (rows + 2) / (cols + 2))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {cols + 2} {rows + 2}" width="{width}" '
        f'height="{height}">{paths}<rect width="{cols}" height="{rows}" fill="none" stroke="{FRAME}"/></svg>'
    )


def definition(name: str, traits: Traits) -> str:
    """The rule of visible pairs: that of the pattern of this name, otherwise a description from its
    traits."""
    registry = Registry("mask")
    if name in registry.paths():
        return registry.load(name).definition
    if traits.window is not None:
        left, right = traits.window
        rules = [f"same of {traits.num_segments} segments"] if traits.num_segments > 1 else []
        if left >= 0 and right >= 0:
            rules.append(f"{-left} ≤ j − i ≤ {right}")
        elif max(left, right) >= 0:
            rules.append(f"j − i ≤ {right}" if left < 0 else f"{-left} ≤ j − i")
        return " and ".join(rules) or "always"
    of_group = f" in {traits.num_groups} head groups" if traits.per_head else ""
    return f"{traits.num_bands} {'runs of blocks' if traits.is_block_grid else 'bands'}{of_group}"


def facts(mask: Any) -> dict[str, str]:
    """Facts for display, by name: rule, size, density, documents, parameters."""
    texts = {
        "visible iff": definition(mask.name, mask.traits),
        "queries × keys": f"{mask.seqlen_q:,} × {mask.seqlen_k:,}",
        "density": f"{mask.density:.4f} ({mask.area:,} pairs)",
    }
    if mask.num_groups > 1:
        texts["head groups"] = str(mask.num_groups)
    if mask.documents is not None:
        texts["documents"] = f"{len(mask.documents)}, longest {int(mask.documents.max()):,} tokens"
    given = {
        key: value
        for key, value in mask.params.items()
        if isinstance(value, (bool, int, float, str)) and value is not False
    }
    if given:
        texts["parameters"] = ", ".join(f"{key} = {value}" for key, value in given.items())
    return texts


def html(mask: Any) -> str:
    """The picture next to the facts, and the bands if there are few."""
    left = 'style="text-align:left"'
    rows = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>"
        for name, value in facts(mask).items()
    )
    title = escape(mask.name or "mask of bands")
    bands = ""
    if mask.grid is None and mask.num_groups == 1 and len(mask.bands) <= MOST_BANDS:
        head = "".join(f"<th>{name}</th>" for name in ("q0", "q1", "k0", "k1", "lo", "hi"))
        body = "".join(
            "<tr>" + "".join(f"<td>{band.offset_text(number)}</td>" for number in row) + "</tr>"
            for row in mask.bands.tolist()
        )
        bands = f"<table><tr>{head}</tr>{body}</table>"
    text = f"<div><b>{title}</b><table>{rows}</table>{bands}</div>"
    return f'<div style="display:flex;gap:1em;align-items:flex-start">{svg(mask)}{text}</div>'


def plot(mask: Any, ax: Any = None, *, group: int = 0, side: int = 512) -> Any:
    """The picture as a matplotlib image in tokens, with rule and density above it.

    Args:
        ax: the axes to draw on; new ones if None.
        group: the head group to show.
        side: cells along one side, at most.

    Returns:
        the axes.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=(4, 4))[1]
    colours = LinearSegmentedColormap.from_list("mask", ["white", VISIBLE])
    ax.imshow(
        shares(mask, side, group),
        cmap=colours,
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0, mask.seqlen_k, mask.seqlen_q, 0),
    )
    for axis, name, length in ((ax.xaxis, "key j", mask.seqlen_k), (ax.yaxis, "query i", mask.seqlen_q)):
        axis.set_major_locator(
            MultipleLocator(max(1 << (length - 1).bit_length() - 2, 1) if length > 1 else 1)
        )
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_length(int(value))))
        axis.set_label_text(name)
    of_group = f", head group {group}" if mask.num_groups > 1 else ""
    title = [
        f"{mask.name or 'mask of bands'}, density {mask.density:.3f}{of_group}",
        definition(mask.name, mask.traits),
    ]
    ax.set_title("\n".join(fill(line, TITLE_WIDTH) for line in title), fontsize=9)
    return ax


def _areas_of_bands(bands: np.ndarray, rows: tuple[int, int], cols: np.ndarray) -> np.ndarray:
    """Visible pairs of these rows in each of the column ranges cols[n]..cols[n + 1]."""
    b = bands[(bands[:, Q0] < rows[1]) & (bands[:, Q1] > rows[0])]
    parts = np.repeat(b[:, None], len(cols) - 1, axis=1)
    parts[..., Q0], parts[..., Q1] = np.maximum(parts[..., Q0], rows[0]), np.minimum(parts[..., Q1], rows[1])
    parts[..., K0], parts[..., K1] = (
        np.maximum(parts[..., K0], cols[:-1]),
        np.minimum(parts[..., K1], cols[1:]),
    )
    parts[parts[..., K0] >= parts[..., K1]] = 0
    return band.areas(parts.reshape(-1, 6)).reshape(parts.shape[:2]).sum(axis=0)


def _areas_of_grid(grid: BlockGrid, group: int, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Visible pairs in each cell of the picture."""
    in_rows, in_cols = (
        _overlaps(edges, bounds[group]) for edges, bounds in ((rows, grid.q_bounds), (cols, grid.k_bounds))
    )
    return in_rows @ grid.visible[group].astype(np.float64) @ in_cols.T


def _overlaps(edges: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Tokens that each range of `edges` shares with each block, float64 (ranges, blocks)."""
    start = np.maximum.outer(edges[:-1], bounds[:-1])
    end = np.minimum.outer(edges[1:], bounds[1:])
    return np.maximum(end - start, 0).astype(np.float64)
