"""Draws each mask as a small SVG in docs/design/masks, and writes the tables of docs/design/masks.md that
show them: the study's, and those of others' benchmarks.

All drawings go to longca/lab/report/static/masks.svg, too, from which the report's pages have them: the
report does not import masks.

A picture is one mask of 64 tokens, built by the pattern itself: a row of squares is a query, a column a key,
a filled square a visible pair. The colours stand out on light and on dark ground.
"""

from pathlib import Path

import numpy as np

from longca.core import Registry, format_length
from longca.lab.report.look import MaskDrawing
from longca.lab.report.look.masks import FILE, symbol
from longca.masks import build_mask
from longca.masks.picture import FRAME, VISIBLE, outline
from tools.pages import ROOT, write_blocks

PAGE = ROOT / "docs/design/masks.md"
FOLDER = ROOT / "docs/design/masks"
SEQLEN = 64
DOCUMENTS = (20, 7, 25, 12)
PARAMS = {  # small enough for 64 tokens; other patterns have no parameters that matter here
    "sliding_window": {"window": 8},
    "causal_sliding_window": {"window": 12},
    "global_sliding_window": {"num_global": 6, "window": 6},
    "prefix_tree": {"trees": 2, "branches": 3},
    "speculative_tree": {"levels": 5},
    "sink_local": {"num_sinks": 4, "window": 9},
    "chunked_local": {"chunk": 20},
    "longformer": {"num_global": 3, "window": 4, "dilation": 3},
    "hstu": {"num_context": 3, "num_candidates": 4},
    "block_causal_document": {"block": 5},
    "block_sparse_uniform": {"block": 8, "density": 0.4},
    "block_sparse_variable": {"mean_block": 8, "density": 0.4},
}
# those of the H200 study
REAL_SEQLEN = 32768
CORPUS = "prolong64k"
SIDE = 96  # pixels in the page


def patterns() -> list:
    """The patterns of the study's list, by their number."""
    return sorted(
        (pattern for pattern in Registry("mask").load_all() if pattern.number is not None),
        key=lambda pattern: pattern.number,
    )


def others() -> list:
    """The patterns that are not the study's, by their name."""
    return [pattern for pattern in Registry("mask").load_all() if pattern.number is None]


def small_mask(pattern):
    """The mask of 64 tokens that is drawn.."""
    documents = np.array(DOCUMENTS) if pattern.uses_documents else None
    return build_mask(pattern.name, seqlen=SEQLEN, documents=documents, **PARAMS.get(pattern.name, {}))


def picture(visible: np.ndarray, title: str) -> str:
    """An SVG of a bool (S, S) raster."""
    side = len(visible)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {side + 2} {side + 2}" width="{SIDE}" '
        f'height="{SIDE}">'
        f"<title>{title}</title>"
        f'<path fill="{VISIBLE}" shape-rendering="crispEdges" d="{outline(visible)}"/>'
        f'<rect width="{side}" height="{side}" fill="none" stroke="{FRAME}"/></svg>\n'
    )


def pictures() -> dict[Path, str]:
    """File → its content, for all masks."""
    return {
        FOLDER / f"{pattern.name}.svg": picture(small_mask(pattern).dense(), _title(pattern))
        for pattern in (*patterns(), *others())
    }


def symbols() -> str:
    """All drawings as symbols of one SVG, for pages; their colours are the page's."""
    lines = ['<svg xmlns="http://www.w3.org/2000/svg">']
    for pattern in (*patterns(), *others()):
        content = (
            f'<path fill="var(--picture)" shape-rendering="crispEdges" '
            f'd="{outline(small_mask(pattern).dense())}"/>'
            f'<rect width="{SEQLEN}" height="{SEQLEN}" fill="none" stroke="var(--muted)" stroke-width="2"/>'
        )
        lines.append(symbol(MaskDrawing(pattern.name, pattern.label, pattern.definition, content)))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _title(pattern) -> str:
    return f"{pattern.label}: {pattern.definition}".replace("<", "&lt;")


def table() -> str:
    """The gallery as Markdown."""
    lines = [
        "Pictures: 64 tokens, queries downwards, keys to the right; documents of "
        f"{', '.join(map(str, DOCUMENTS))} tokens. Density: the share of pairs that is visible at "
        f"{format_length(REAL_SEQLEN)} tokens, with default parameters, documents of `{CORPUS}`, seed 0.",
        "",
        "| # | mask | | query i sees key j iff | density |",
        "|---|---|---|---|---:|",
    ]
    return "\n".join([*lines, *(f"| {pattern.number} {_row(pattern)}" for pattern in patterns())])


def other_table() -> str:
    """The gallery of the other patterns as Markdown."""
    lines = ["| mask | | query i sees key j iff | density |", "|---|---|---|---:|"]
    return "\n".join([*lines, *map(_row, others())])


def _row(pattern) -> str:
    """The row of a gallery: name, picture, definition, density."""
    corpus = CORPUS if pattern.uses_documents else None
    mask = build_mask(pattern.name, seqlen=REAL_SEQLEN, corpus=corpus)
    definition = pattern.definition.replace("|", "\\|")
    image = f'<img src="masks/{pattern.name}.svg" alt="{pattern.label}" width="{SIDE}">'
    return f"| `{pattern.name}` | {image} | {definition} | {mask.density:.3f} |"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in pictures().items():
        path.write_text(content, encoding="utf-8")
    FILE.write_text(symbols(), encoding="utf-8")
    write_blocks(PAGE, masks=table(), other_masks=other_table())


if __name__ == "__main__":
    main()
