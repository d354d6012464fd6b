"""Published rates beside measured ones, both as shares of their GPU's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import format_length
from longca.lab.published import load_published
from longca.lab.store.text import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

    from longca.core import Hardware

KEY = ["kind", "kernel", "strategy", "mask", "num_q_heads", "num_kv_heads", "head_dim", "dtype", "direction"]
TOLD = ["seqlen", "world"]  # a source may leave these out
CELL = ["cell_id", "method", "mask_params", "mask_family", "peak_tflops"]
SOURCE = ["source", "title", "hardware", "how"]
UNIT = "TFLOP/s"


def published_rates(table: pd.DataFrame, hardware: Hardware) -> pd.DataFrame:
    """One row for each cell of the table and each published rate for its request
    (`longca.lab.published.load.PublishedRate`).

    Returns:
        The request, `CELL`, `SOURCE` (with the GPU's short name), published_tflops, published_percent (of its
        GPU's peak) and is_told:
        True if the source tells the length and the number of ranks. A rate of a GPU whose peak is not known
        is left out.
    """
    import pandas as pd

    rates = pd.DataFrame(
        [
            (
                rate.kind,
                rate.kernel,
                rate.strategy or "",
                rate.mask,
                rate.num_q_heads,
                rate.num_kv_heads,
                rate.head_dim,
                rate.dtype,
                rate.direction,
                rate.seqlen,
                rate.world,
                {f"{name}={value}" for name, value in rate.mask_params.items()},
                rate.source,
                rate.title,
                gpu.name,
                rate.how,
                rate.tflops_per_device,
                100 * rate.tflops_per_device / peak,
            )
            for rate in load_published()
            if (gpu := hardware.find(rate.hardware))
            and (peak := hardware.peak_tflops(rate.hardware, rate.dtype))
        ],
        columns=[
            *KEY,
            "told_seqlen",
            "told_world",
            "told_params",
            *SOURCE,
            "published_tflops",
            "published_percent",
        ],
    )
    usual = (table.input_values == "normal") & ~table.sustained.astype(bool)  # as others time their calls
    cells = table.loc[usual, [*KEY, *TOLD, *CELL]].drop_duplicates("cell_id")
    joined = cells.astype(dict.fromkeys(("num_q_heads", "num_kv_heads", "head_dim", *TOLD), "int64")).merge(
        rates, on=KEY
    )
    is_asked = np.array(
        [
            asked <= set(text.split(", "))
            for asked, text in zip(joined.told_params, joined.mask_params, strict=True)
        ],
        bool,
    )
    for name in TOLD:
        is_asked &= (joined[f"told_{name}"].isna() | (joined[f"told_{name}"] == joined[name])).to_numpy(bool)
    joined["is_told"] = joined.told_seqlen.notna() & joined.told_world.notna()
    return (
        joined.loc[is_asked].drop(columns=["told_seqlen", "told_world", "told_params"]).reset_index(drop=True)
    )


def published_pairs(data: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Rates of an exhibit, each with the published ones for its cells.

    Args:
        data: points in TFLOP/s (`longca.lab.report.series.points`); anything else has no pairs.
        published: as `published_rates` makes it.

    Returns:
        The columns of `published` that name the request and the source, row (of the data), value, here (the
        device, where the data tell it), published_tflops, peak_percent, published_percent, and ratio: the
        share of peak here over the published share.
    """
    if not {"unit", "value", "cell_ids"} <= set(data) or not (data.unit == UNIT).all():
        return published.head(0).assign(row=0, value=0.0, here="", peak_percent=0.0, ratio=0.0)
    timed = data.assign(here=data.device if "device" in data else "").loc[
        data.value.notna(), ["value", "cell_ids", "here"]
    ]
    timed = timed.reset_index(names="row")
    cells = timed.assign(cell_id=timed.cell_ids.str.split()).explode("cell_id").drop(columns="cell_ids")
    pairs = cells.merge(published, on="cell_id").dropna(subset=["peak_tflops"])
    pairs = pairs.drop_duplicates(["row", "source", "is_told"])  # seeds of one point share a request
    peak_percent = 100 * pairs.value / pairs.peak_tflops
    return pairs.assign(peak_percent=peak_percent, ratio=peak_percent / pairs.published_percent).reset_index(
        drop=True
    )


def with_published(data: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """The data with `peak_percent`, where something was published, and a column SOURCE_peak_percent for each
    source."""
    shown = pairs.loc[pairs.is_told]
    if not len(shown):
        return data
    shares = shown.pivot(index="row", columns="source", values="published_percent")
    shares = shares.rename(columns="{}_peak_percent".format)
    shares.insert(0, "peak_percent", shown.groupby("row").peak_percent.first())
    return data.join(shares)


def published_findings(pairs: pd.DataFrame) -> tuple[str, ...]:
    """Compares the rates with each source that published them: a sentence for each, and for each device."""
    sentences = []
    for _, of_source in pairs.groupby([*SOURCE, "here"], sort=True):
        shown = of_source.loc[of_source.is_told]
        if len(shown):
            sentences.append(_compared(shown))
        rest = of_source.loc[~of_source.is_told]
        sentences += [
            _in_range(of_method)
            for _, of_method in rest.groupby(["method", "mask", "direction", "published_percent"], sort=True)
        ]
    return tuple(sentences)


def published_notes(published: pd.DataFrame) -> dict[str, str]:
    """Cell → what was published for it, in a line: "published: 68 % of peak (MagiAttention, H100 SXM)"."""
    shown = published.loc[published.is_told]
    notes: dict[str, list[str]] = {}
    for cell_id, title, gpu, share in zip(
        shown.cell_id, shown.title, shown.hardware, shown.published_percent, strict=True
    ):
        notes.setdefault(cell_id, []).append(f"{percent(share / 100)} of peak ({title}, {gpu})")
    return {cell_id: f"published: {', '.join(texts)}" for cell_id, texts in notes.items()}


def _compared(pairs: pd.DataFrame) -> str:
    documents = pairs.mask_family == "documents"
    alike = pairs.loc[~documents]
    drawn = pairs.loc[documents]
    parts = []
    if len(alike):
        apart = alike.loc[np.log(alike.ratio.astype(float)).abs().idxmax()]
        parts.append(
            f"{number(alike.ratio.median(), 3)}× in the median of {plural(len(alike), 'point')}"
            + (f", furthest apart for {_place(apart)} ({number(apart.ratio, 3)}×)" if len(alike) > 1 else "")
        )
    if len(drawn):
        parts.append(
            f"{number(drawn.ratio.median(), 3)}× of {plural(len(drawn), 'point')} with documents of another "
            f"sampler"
        )
    return f"Share of peak {_here(pairs)} over that of {_source(pairs)}: {'; '.join(parts)}"


def _in_range(pairs: pd.DataFrame) -> str:
    first = pairs.iloc[0]
    here = pairs.peak_percent
    low = percent(here.min() / 100)
    high = percent(here.max() / 100)
    return (
        f"{_source(pairs)} has {first.method} under {first['mask']}, {first.direction}, at "
        f"{percent(first.published_percent / 100)} of peak and does not tell "
        f"{'the length' if first.kind == 'kernel' else 'the number of GPUs'}: {_here(pairs)} it has "
        f"{low}{f' to {high}' if high != low else ''} at {plural(len(pairs), 'point')}"
    )


def _here(pairs: pd.DataFrame) -> str:
    return f"on {device} here" if (device := pairs.here.iloc[0]) else "here"


def _source(pairs: pd.DataFrame) -> str:
    first = pairs.iloc[0]
    return f"{first.title} on {first.hardware} ({first.how})"


def _place(pair: pd.Series) -> str:
    ranks = f" on {plural(int(pair.world), 'GPU')}" if pair.kind == "cp" else ""
    return f"{pair.method} under {pair['mask']} at {format_length(int(pair.seqlen))}{ranks}, {pair.direction}"
