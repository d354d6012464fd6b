"""Writes the README's finding: a heat map of kernels and masks on an H100, the sentence that its numbers
prove, and that of an H200.

    python -m tools.heat_map

All of it is computed from the committed records of the dense study: for each mask and direction the rate of
each kernel as a share of the fastest one's. A kernel that does not support a mask leaves its square empty.
Who leads, and who is not told apart, `longca.lab.ranking` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longca.core import format_length
from longca.lab.ranking import Standing, tallies
from longca.lab.ranking.sentences import finding_text, protocols_text, share_text
from longca.lab.ranking.table import COLUMNS as OF_RANKING
from longca.lab.report.look.colours import text_colour
from longca.lab.store.table import RANKED_BY, is_ranked
from longca.lab.store.text import plural, short_device
from tools.pages import ROOT, as_code, write_blocks

COLUMNS = tuple(dict.fromkeys((*OF_RANKING, *RANKED_BY, "num_samples")))
RECORDS = ROOT / "reports/h100/h100-dense.parquet"  # the GPU of the study
RECORDS_H200 = ROOT / "reports/h200/h200-dense.parquet"
PAGE = ROOT / "README.md"
PAGE_H200 = ROOT / "docs/results/h200/kernels.md"
FOLDER = ROOT / "docs/pictures"
SEQLEN = 32768
Q_HEADS = 64
KV_HEADS = 8
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
LOWEST = 40  # percent: this and less has the palest colour
CELL_W = 30
CELL_H = 21
LEFT = 92
TOP = 128
GAP = 16


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
    """The result of the records for one length and number of heads."""

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
    num_rested: int = 0
    """of the cells: those that were measured with rests of the GPU"""

    def share(self, kernel: str, mask: str, direction: str) -> float | None:
        """The rate as a share of the fastest kernel's, from 0 to 1; None where the kernel has none."""
        case = self.standings.get((mask, direction))
        entry = case.entry(kernel) if case else None
        return entry.share if entry else None

    def leads(self, kernel: str, mask: str, direction: str) -> bool:
        """True for the first of a case, and for those that are not told apart from it."""
        return kernel in self.standings[mask, direction].leaders

    def sentence(self) -> str:
        """The statement, after a sentence on kernels that are first everywhere."""
        of_kernels = tallies(self.standings)
        total = len(self.standings)
        leaders = [tally.method for tally in of_kernels if tally.num_clear]
        subject = f"`{leaders[0]}`" if any(tally.num_clear == total for tally in of_kernels) else "No kernel"
        return f"**{subject} is the fastest under every mask.** {self.statement()}"

    def statement(self) -> str:
        """The leaders on this GPU by name, and the method with the best worst share."""
        covered = f"{len(self.masks)} static masks, forward and backward"
        finding = finding_text(self.standings, "kernel", covered)
        names = (tally.method for tally in tallies(self.standings))
        return f"On {short_device(self.device)}: {as_code(finding, names)}"

    def caption(self) -> str:
        return (
            "Percent of the fastest kernel of each mask and direction; framed: it, and those not told apart "
            f"from it. {self.device}, {format_length(SEQLEN)} tokens, {Q_HEADS}:{KV_HEADS} heads, head dim "
            f"{self.head_dim}, {self.dtype}; n = {self.num_cells} cells, {self.num_samples:,} samples. "
            f"{self._empty}"
        )

    @property
    def _empty(self) -> str:
        """The meaning of empty squares, and the protocols where the cells have both."""
        apart = sum(len(case.other_protocol) for case in self.standings.values())
        protocols = protocols_text(self.num_rested, self.num_cells, "cell")
        empty = "the kernel does not run that mask" + (
            f", or was measured by another protocol than the others ({plural(apart, 'square')})"
            if apart
            else ""
        )
        return f"Empty: {empty}.{f' {protocols}.' if protocols else ''}"


def finding(records: Path = RECORDS) -> Finding:
    """The standings of all kernels that ran with these heads at this length."""
    from longca.core import Registry
    from longca.lab.ranking.table import counted, has_rests, standings
    from tools.committed import with_playoffs

    rows = with_playoffs([records], COLUMNS)
    asked = rows[
        (rows.seqlen == SEQLEN)
        & (rows.num_q_heads == Q_HEADS)
        & (rows.num_kv_heads == KV_HEADS)
        & is_ranked(rows)
        & ~rows.mask_params.str.contains("paper_compat=True")
    ]
    assert all(asked[column].nunique() == 1 for column in ("head_dim", "dtype", "seed"))
    device = asked.device[asked.status == "ok"].iloc[0]
    assert set(asked.device) - {""} == {device}
    own = counted(asked)
    standing = standings(asked, ("mask", "direction"))
    table = asked[own & (asked.status == "ok")]
    number = {pattern.name: pattern.number for pattern in Registry("mask").load_all()}
    masks = sorted(set(table["mask"]), key=lambda name: number[name])
    kernels = [tally.method for tally in tallies(standing)]
    return Finding(
        device,
        int(table.head_dim.iloc[0]),
        str(table["dtype"].iloc[0]),
        masks,
        kernels,
        standing,
        len(table),
        int(table.num_samples.sum()),
        int(has_rests(table).sum()),
    )


def picture(result: Finding, theme: Theme) -> str:
    """The heat map as an SVG: kernels are rows, masks columns, forward to the left."""
    width = LEFT + 2 * len(result.masks) * CELL_W + GAP + 84
    height = TOP + len(result.kernels) * CELL_H + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="11">',
        f"<title>{result.caption()}</title>",
    ]
    for side, (direction, title) in enumerate(DIRECTIONS.items()):
        left = LEFT + side * (len(result.masks) * CELL_W + GAP)
        lines.append(_text(left, 13, title, theme.ink, "start", 'font-weight="600" font-size="13"'))
        for column, mask in enumerate(result.masks):
            x = left + column * CELL_W + CELL_W / 2 + 3
            lines.append(
                _text(
                    x,
                    TOP - 6,
                    mask.replace("_", " "),
                    theme.muted,
                    "start",
                    f'transform="rotate(-50 {x:g} {TOP - 6})"',
                )
            )
        for row, kernel in enumerate(result.kernels):
            for column, mask in enumerate(result.masks):
                share = result.share(kernel, mask, direction)
                is_best = share is not None and result.leads(kernel, mask, direction)
                lines += _square(
                    left + column * CELL_W, TOP + row * CELL_H, share and 100 * share, is_best, theme
                )
    for row, kernel in enumerate(result.kernels):
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
    # the differences between the best ones show most
    strength = max((share - LOWEST) / (100 - LOWEST), 0) ** 1.5
    colour = "#" + "".join(
        f"{round(low + strength * (high - low)):02x}" for low, high in zip(*theme.ramp, strict=True)
    )
    mark = f' stroke="{theme.mark}" stroke-width="2"' if is_best else ""
    bold = 'font-weight="700"' if is_best else ""
    return [
        f'<rect {box} fill="{colour}"{mark}/>',
        _text(
            x + CELL_W / 2,
            y + 14.5,
            share_text(share / 100).removesuffix(" %"),
            text_colour(colour),
            "middle",
            bold,
        ),
    ]


def _text(x: float, y: float, text: str, colour: str, anchor: str, more: str = "") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" '
        f'text-anchor="{anchor}"{" " + more if more else ""}>{text}</text>'
    )


def pictures(result: Finding) -> dict[Path, str]:
    """File → its content, for both grounds."""
    return {FOLDER / f"heat-map-{name}.svg": picture(result, theme) for name, theme in THEMES.items()}


def block(result: Finding, on_h200: Finding) -> str:
    """The part of the README: the sentence, the picture and its caption, and the statement of another GPU."""
    light, dark = (path.relative_to(ROOT).as_posix() for path in pictures(result))
    return "\n".join(
        [
            result.sentence(),
            "",
            "<picture>",
            f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">',
            f'  <img alt="Heat map: 12 masks and {len(result.kernels)} kernels, forward and backward" '
            f'src="{light}">',
            "</picture>",
            "",
            f"*{result.caption()}*",
            "",
            on_h200.statement(),
        ]
    )


def main() -> None:
    result = finding()
    on_h200 = finding(RECORDS_H200)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in pictures(result).items():
        path.write_text(content, encoding="utf-8")
    write_blocks(PAGE, finding=block(result, on_h200))
    write_blocks(PAGE_H200, finding=on_h200.sentence())


if __name__ == "__main__":
    main()
