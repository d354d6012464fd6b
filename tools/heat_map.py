"""Writes the README's finding: a heat map of kernels and masks on an H100, and the sentence that its numbers prove.

    python -m tools.heat_map

All of it is computed from the committed records of the dense study: for each mask and direction the rate of each kernel as a share of the
fastest one's. A kernel that does not support a mask leaves its square empty. Who leads, and who is not told apart, `longca.ranking` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from longca.core.units import format_length
from longca.ranking import Standing, Tally, tallies
from longca.ranking.sentences import finding_text, share_text
from longca.report.look.colours import text_colour
from longca.store.text import short_device
from tools.pages import ROOT, put

RECORDS = ROOT / "reports/h100/h100-dense.parquet"  # the GPU of the study
PAGE = ROOT / "README.md"
FOLDER = ROOT / "docs/pictures"
SEQLEN, Q_HEADS, KV_HEADS = 32768, 64, 8
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
LOWEST = 40  # percent: this and less has the palest colour
CELL_W, CELL_H, LEFT, TOP, GAP = 30, 21, 92, 128, 16


@dataclass(frozen=True)
class Theme:
    """Colours of one ground; `ramp` goes from the slowest to the fastest."""

    ink: str
    muted: str
    empty: str
    ramp: tuple[tuple[int, int, int], tuple[int, int, int]]
    mark: str


THEMES = {
    "light": Theme("#1f2328", "#59636e", "#eff1f3", ((228, 238, 249), (13, 84, 150)), "#c4560a"),
    "dark": Theme("#e6edf3", "#9198a1", "#1b2027", ((28, 44, 64), (104, 176, 255)), "#ffb057"),
}


@dataclass(frozen=True)
class Finding:
    """What the records say of one length and number of heads."""

    device: str
    head_dim: int
    dtype: str
    masks: list[str]
    kernels: list[str]
    """those that ran most masks first, then by the geometric mean of their shares"""
    standings: dict[tuple[str, str], Standing]
    """(mask, direction) → standing"""
    num_cells: int
    num_samples: int

    def share(self, kernel: str, mask: str, direction: str) -> float | None:
        """The rate as a share of the fastest kernel's, from 0 to 1; None where the kernel has none."""
        case = self.standings.get((mask, direction))
        entry = case.entry(kernel) if case else None
        return entry.share if entry else None

    def leads(self, kernel: str, mask: str, direction: str) -> bool:
        """True for the first of a case, and for those that are not told apart from it."""
        return kernel in self.standings[mask, direction].leaders

    def sentence(self) -> str:
        """Who leads where, and who loses least."""
        of_kernels, total = tallies(self.standings), len(self.standings)
        leaders = [one.method for one in of_kernels if one.num_clear]
        subject = f"`{leaders[0]}`" if any(one.num_clear == total for one in of_kernels) else "No kernel"
        covered = f"{len(self.masks)} static masks, forward and backward"
        finding = finding_text(self.standings, "kernel", covered)
        return f"**{subject} is the fastest under every mask.** On {short_device(self.device)}: {_marked(finding, of_kernels)}"

    def caption(self) -> str:
        return ("Percent of the fastest kernel of each mask and direction; framed: it, and those not told apart from it. "
                f"{self.device}, {format_length(SEQLEN)} tokens, "
                f"{Q_HEADS}:{KV_HEADS} heads, head dim {self.head_dim}, {self.dtype}; n = {self.num_cells} cells, "
                f"{self.num_samples:,} samples. Empty: the kernel does not run that mask.")


def _marked(text: str, of_kernels: list[Tally]) -> str:
    """The text with the kernels' names as code."""
    names = "|".join(sorted((re.escape(one.method) for one in of_kernels), key=len, reverse=True))
    return re.sub(rf"\b(?:{names})\b", lambda match: f"`{match[0]}`", text)


def finding(records: Path = RECORDS) -> Finding:
    """The standings of all kernels that ran with these heads at this length."""
    from longca.core.plugin import Registry
    from longca.ranking.table import standings
    from longca.store.load import load
    from longca.store.table import derived, in_order

    chosen = [record for record in load(records).records if (record.cell.seqlen, record.cell.num_q_heads, record.cell.num_kv_heads)
              == (SEQLEN, Q_HEADS, KV_HEADS) and record.work is None and not record.cell.mask_params.get("paper_compat")]
    asked = derived(in_order(chosen))
    assert all(asked[column].nunique() == 1 for column in ("device", "head_dim", "dtype", "seed"))
    found, table = standings(asked, ("mask", "direction")), asked[asked.status == "ok"]
    number = {pattern.name: pattern.number for pattern in Registry("mask").load_all()}
    masks = sorted(set(table["mask"]), key=lambda name: number[name])
    kernels = [one.method for one in tallies(found)]
    return Finding(asked.device[0], int(asked.head_dim[0]), str(asked["dtype"].iloc[0]), masks, kernels, found, len(table),
                   int(table.num_samples.sum()))


def picture(found: Finding, theme: Theme) -> str:
    """The heat map as an SVG: kernels are rows, masks columns, forward to the left."""
    width = LEFT + 2 * len(found.masks) * CELL_W + GAP + 84
    height = TOP + len(found.kernels) * CELL_H + 8
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             'font-family="-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="11">',
             f"<title>{found.caption()}</title>"]
    for side, (direction, title) in enumerate(DIRECTIONS.items()):
        left = LEFT + side * (len(found.masks) * CELL_W + GAP)
        lines.append(_text(left, 13, title, theme.ink, "start", "font-weight=\"600\" font-size=\"13\""))
        for column, mask in enumerate(found.masks):
            x = left + column * CELL_W + CELL_W / 2 + 3
            lines.append(_text(x, TOP - 6, mask.replace("_", " "), theme.muted, "start", f'transform="rotate(-50 {x:g} {TOP - 6})"'))
        for row, kernel in enumerate(found.kernels):
            for column, mask in enumerate(found.masks):
                share = found.share(kernel, mask, direction)
                is_best = share is not None and found.leads(kernel, mask, direction)
                lines += _square(left + column * CELL_W, TOP + row * CELL_H, share and 100 * share, is_best, theme)
    for row, kernel in enumerate(found.kernels):
        lines.append(_text(LEFT - 7, TOP + row * CELL_H + 14.5, kernel, theme.ink, "end"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _square(x: int, y: int, share: float | None, is_best: bool, theme: Theme) -> list[str]:
    """
    Args:
        share: percent of the fastest.
    """
    box = f'x="{x + 1}" y="{y + 1}" width="{CELL_W - 2}" height="{CELL_H - 2}" rx="2"'
    if share is None:
        return [f'<rect {box} fill="{theme.empty}"/>']
    strength = max((share - LOWEST) / (100 - LOWEST), 0) ** 1.5  # the differences between the best ones show most
    colour = "#" + "".join(f"{round(low + strength * (high - low)):02x}" for low, high in zip(*theme.ramp, strict=True))
    mark = f' stroke="{theme.mark}" stroke-width="2"' if is_best else ""
    bold = 'font-weight="700"' if is_best else ""
    return [f'<rect {box} fill="{colour}"{mark}/>',
            _text(x + CELL_W / 2, y + 14.5, share_text(share / 100).removesuffix(" %"), text_colour(colour), "middle", bold)]


def _text(x: float, y: float, text: str, colour: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{" " + more if more else ""}>{text}</text>'


def pictures(found: Finding) -> dict[Path, str]:
    """File → its content, for both grounds."""
    return {FOLDER / f"heat-map-{name}.svg": picture(found, theme) for name, theme in THEMES.items()}


def block(found: Finding) -> str:
    """The part of the README: the sentence, the picture and its caption."""
    light, dark = (path.relative_to(ROOT).as_posix() for path in pictures(found))
    return "\n".join([
        found.sentence(), "",
        "<picture>", f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">',
        f'  <img alt="Heat map: 12 masks and {len(found.kernels)} kernels, forward and backward" src="{light}">', "</picture>", "",
        f"*{found.caption()}*"])


def main() -> None:
    found = finding()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in pictures(found).items():
        path.write_text(content, encoding="utf-8")
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "finding", block(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
