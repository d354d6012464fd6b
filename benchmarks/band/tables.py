"""Makes the tables of `benchmarks.band.compare`: one of all cases, one of the targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from longca.core import format_length
from longca.lab.ranking import Lead, MeasuredPoint, Measurement, compare, mean_lead
from tools.table import Table, read_records

OURS = "band"
ANY_ORDER = "band_atomic"
MOST_ROUNDS = 15
WITH_RESTS = ", a rest before each call"
"""in a record's `where`: the GPU rested for as long as the last call took"""
# (own kernel, rival, heads of block masks, direction, least ratio, of each case or of the mean)
TARGETS = (
    (OURS, "flex", None, "fwd", 1.3, "each mask"),
    (OURS, "flex", None, "bwd", 1.3, "each mask"),
    (ANY_ORDER, "flex", None, "bwd", 1.3, "each mask"),
    (OURS, "flex_flash", None, "fwd", 0.85, "mean"),
    (OURS, "flex_flash", None, "bwd", 0.85, "mean"),
    (ANY_ORDER, "flex_flash", None, "bwd", 0.85, "mean"),
    (OURS, "cudnn_flex", None, "fwd", 0.85, "mean"),
    (OURS, "cudnn_flex", None, "bwd", 0.85, "mean"),
    (ANY_ORDER, "cudnn_flex", None, "bwd", 0.85, "mean"),
    (OURS, "flashinfer", "GQA", "fwd", 1.5, "each density"),
    (OURS, "vsa", "MHA", "fwd", 0.9, "each density"),
    (OURS, "vsa", "MHA", "bwd", 1.0, "each density"),
)

BEST_OF = ("fa3", "fa4", "flex_flash", "cudnn_flex")
# wanted over the quickest of these: in the geometric mean, and under each mask
BEST_MEAN = 1.0
BEST_EACH = 0.97


@dataclass(frozen=True)
class Record:
    """One kernel in one case. Times are medians."""

    seqlen: int
    mask: str
    density: float
    """0 for a static mask"""
    heads: str
    direction: str
    kernel: str
    time_ms: float | None = None
    iqr: float | None = None
    tflops: float | None = None
    reason: str = ""
    """why there is no time"""
    where: str = ""
    """the GPU, what it reaches, versions and the commit"""

    @property
    def case(self) -> tuple[int, str, float, str, str]:
        return self.seqlen, self.mask, self.density, self.heads, self.direction

    @property
    def text(self) -> str:
        return f"{self.kernel} {self.tflops:.0f}" if self.tflops else f"{self.kernel}: {self.reason}"

    @property
    def has_gqa(self) -> bool:
        num_q_heads, num_kv_heads = self.heads.split(":")
        return num_q_heads != num_kv_heads


def read(folder: Path) -> list[Record]:
    """Reads the records of an earlier run."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    return [
        Record(
            int(line["seqlen"]),
            line["mask"],
            float(line["density"]),
            line["heads"],
            line["direction"],
            line["kernel"],
            number(line["time_ms"]),
            number(line["iqr"]),
            number(line["tflops"]),
            line["reason"],
            line["where"],
        )
        for line in read_records(folder, "band")
    ]


def wide(records: Sequence[Record]) -> Table:
    """Makes a row for each case: TFLOP/s of each kernel, and how many times as fast `band` is."""
    rivals = sorted({record.kernel for record in records} - {OURS})
    by_case: dict[tuple, dict[str, Record]] = {}
    for record in records:
        by_case.setdefault(record.case, {})[record.kernel] = record
    rows = []
    for (seqlen, mask, density, heads, direction), by_kernel in by_case.items():
        ours = by_kernel[OURS].tflops if OURS in by_kernel else None
        name = f"{mask} {density}" if density else mask
        speed = f"{ours:.0f}" if ours else "–"
        rows.append(
            (
                format_length(seqlen),
                name,
                heads,
                direction,
                speed,
                *(_cell(by_kernel.get(rival), ours) for rival in rivals),
            )
        )
    columns = ("tokens", "mask", "heads", "", f"{OURS}, TFLOP/s", *rivals)
    machines = "; ".join(dict.fromkeys(record.where for record in records))
    caption = (
        f"{machines}. bf16, head dim 128, one seed of each mask; medians of up to {MOST_ROUNDS} rounds, in "
        "which calls of all kernels alternate."
    )
    return Table(
        "band",
        caption,
        columns,
        tuple(rows),
        tuple(asdict(record) for record in records),
        ("mask", "heads", ""),
    )


def _cell(rival: Record | None, ours: float | None) -> str:
    if rival is None or rival.tflops is None:
        return "–"
    return f"{rival.tflops:.0f} ({ours / rival.tflops:.2f} ×)" if ours else f"{rival.tflops:.0f}"


def beside_best(records: Sequence[Record]) -> Table:
    """Makes a row for each length and direction: the speed of `band` over the quickest of `BEST_OF` under
    each static mask."""
    by_length: dict[tuple[int, str], dict[str, Lead]] = {}
    for (seqlen, mask, _, _, direction), lead in leads_over_best(records).items():
        by_length.setdefault((seqlen, direction), {})[mask] = lead
    entries = []
    for seqlen, direction in sorted(by_length, key=lambda entry: (entry[0], entry[1] == "bwd")):
        leads = by_length[seqlen, direction]
        where = min(leads, key=lambda mask: leads[mask].ratio)
        orders = [lead.order for lead in leads.values()]
        entries.append(
            {
                "tokens": seqlen,
                "direction": direction,
                "masks": len(leads),
                "ahead": orders.count("more"),
                "tied": orders.count("same"),
                "enough": sum(lead.ratio >= BEST_EACH for lead in leads.values()),
                "mean": mean_lead(list(leads.values())).ratio,
                "least": leads[where].ratio,
                "where": where,
            }
        )
    rows = [
        (
            format_length(entry["tokens"]),
            entry["direction"],
            f"{entry['mean']:.3f} ×",
            f"{entry['ahead']} of {entry['masks']}",
            f"{entry['tied']} of {entry['masks']}",
            f"{entry['enough']} of {entry['masks']}",
            f"{entry['least']:.3f} ×",
            entry["where"],
            "yes" if entry["mean"] >= BEST_MEAN and entry["enough"] == entry["masks"] else "no",
        )
        for entry in entries
    ]
    columns = (
        "tokens",
        "",
        "geometric mean",
        "ahead under",
        "tied under",
        f"≥ {BEST_EACH} × under",
        "least",
        "where",
        "met",
    )
    caption = (
        f"Band attention's speed over that of the quickest of {', '.join(BEST_OF)} under each static mask. "
        f"Tied: repeats of identical cells do not tell the two apart. Wanted: a mean of {BEST_MEAN:.2f} ×, "
        f"and {BEST_EACH} × under each mask."
    )
    return Table("band_best", caption, columns, tuple(rows), tuple(entries), ("", "where", "met"))


def by_mask(records: Sequence[Record]) -> Table:
    """Makes a row for each direction and static mask: the ratios of `beside_best` at each length, low ones in
    bold type."""
    ratios: dict[tuple[str, str], dict[int, float]] = {}
    for (seqlen, mask, _, _, direction), lead in leads_over_best(records).items():
        ratios.setdefault((mask, direction), {})[seqlen] = lead.ratio
    lengths = sorted({seqlen for by_length in ratios.values() for seqlen in by_length})
    entries = []
    rows = []
    for mask, direction in sorted(ratios, key=lambda entry: (entry[1] == "bwd", entry[0])):
        each = [ratios[mask, direction].get(seqlen) for seqlen in lengths]
        entries.append(
            {"mask": mask, "direction": direction} | dict(zip(map(str, lengths), each, strict=True))
        )
        rows.append((mask, direction, *map(_ratio_text, each)))
    caption = (
        f"Band attention's speed over that of the quickest of {', '.join(BEST_OF)} at each length. "
        f"Bold: below {BEST_EACH}. –: not measured."
    )
    columns = ("mask", "", *map(format_length, lengths))
    return Table("band_by_mask", caption, columns, tuple(rows), tuple(entries), ("mask", ""))


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"**{ratio:.2f}**" if ratio < BEST_EACH else f"{ratio:.2f}"


def leads_over_best(records: Sequence[Record]) -> dict[tuple[int, str, float, str, str], Lead]:
    """The lead of `band` over the quickest of `BEST_OF` in each case of a static mask that both have."""
    timed = [record for record in records if record.tflops and not record.density]
    best: dict[tuple, Record] = {}
    for record in timed:
        if record.kernel in BEST_OF:
            best[record.case] = max(
                record, best.get(record.case, record), key=lambda entry: entry.tflops or 0.0
            )
    return {
        record.case: _lead(record, best[record.case])
        for record in timed
        if record.kernel == OURS and record.case in best
    }


def _lead(ours: Record, rival: Record) -> Lead:
    """The lead of a kernel over another whose calls alternated with its own in one process."""
    first, second = (MeasuredPoint(entry.kernel, (_measured(entry),)) for entry in (ours, rival))
    return compare(first, second, relation="play-off")


def _measured(record: Record) -> Measurement:
    """The rate by its median; tables do not have its samples."""
    assert record.tflops
    rate, device = record.tflops, record.where.split(",")[0]
    return Measurement(rate, rate, rate, device, rests=record.where.endswith(WITH_RESTS))


def targets(records: Sequence[Record]) -> Table:
    """Makes a row for each target at each length: the least ratio and where, the mean, the verdict."""
    columns = ("row", "against", "tokens", "", "target", "least", "where", "mean", "met")
    entries = []
    for name, rival, heads, direction, goal, of in TARGETS:
        ours = {record.case: record.tflops for record in records if record.kernel == name and record.tflops}
        chosen = [
            record
            for record in records
            if record.kernel == rival
            and record.tflops
            and record.direction == direction
            and record.case in ours
            and (bool(record.density) == bool(heads))
            and (not heads or record.has_gqa == (heads == "GQA"))
        ]
        for seqlen in sorted({record.seqlen for record in chosen}):
            ratios = {
                f"{record.mask} {record.density}" if record.density else record.mask: ours[record.case]
                / record.tflops
                for record in chosen
                if record.seqlen == seqlen
            }
            where = min(ratios, key=ratios.__getitem__)
            mean = statistics.geometric_mean(ratios.values())
            decides = mean if of == "mean" else ratios[where]
            against = f"{rival}, blocks of 64, {heads}" if heads else rival
            entries.append(
                {
                    "row": name,
                    "against": against,
                    "tokens": seqlen,
                    "direction": direction,
                    "target": goal,
                    "of": of,
                    "least": ratios[where],
                    "where": where,
                    "mean": mean,
                    "met": decides >= goal,
                }
            )
    rows = [
        (
            line["row"],
            line["against"],
            format_length(line["tokens"]),
            line["direction"],
            f"≥ {line['target']} × ({line['of']})",
            f"{line['least']:.2f} ×",
            line["where"],
            f"{line['mean']:.2f} ×",
            "yes" if line["met"] else "no",
        )
        for line in entries
    ]
    caption = "Band attention's speed over that of its rivals; means are geometric."
    return Table(
        "band_targets",
        caption,
        columns,
        tuple(rows),
        tuple(entries),
        ("row", "against", "", "target", "where", "met"),
    )
