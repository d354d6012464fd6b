"""The lengths of documents: those that were counted, and those that the sampler draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from longca.core import Registry, format_length
from longca.data import sample_documents
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.look import HEAT, MUTED
from longca.lab.store.text import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

SEQLEN = {"pile": 8192, "prolong64k": 32768, "prolong512k": 524288}  # where the study uses each
SEEDS = range(40)
EDGES = 2 ** np.arange(4, 21)


class Corpora(PaperFigure):
    label = "Lengths of documents"
    section = "data"
    number = "Figure 7"
    order = 10
    needs_records = False
    caption = (
        'Share of documents and share of tokens by length. "Counted" is the published count of documents; '
        '"drawn" is what this '
        "project's sampler makes of it for a sequence of that length, where documents longer than a quarter "
        "of the sequence are "
        "split, so that one of them does not make a document mask a full one."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        rows = []
        for name, seqlen in SEQLEN.items():
            corpus = Registry("corpus").load(name)
            lengths = np.concatenate([sample_documents(name, seqlen, seed=seed) for seed in SEEDS])
            low, high, count = (column.astype(float) for column in corpus.bins.T)
            drawn = np.histogram(lengths, EDGES)[0], np.histogram(lengths, EDGES, weights=lengths)[0]
            starts = EDGES[:-1]
            for start, end, number, tokens in zip(starts, EDGES[1:], *drawn, strict=True):
                # lengths lie alike within a bin: its part inside start..end has that share of its documents
                inside = np.clip(np.minimum(high + 1, end) - np.maximum(low, start), 0, None) / (
                    high + 1 - low
                )
                middle = (np.minimum(high, end) + np.maximum(low, start)) / 2
                rows.append(
                    (
                        corpus.label or name,
                        seqlen,
                        int(start),
                        "counted",
                        float((inside * count).sum() / count.sum()),
                        float((inside * count * middle).sum() / (count * (low + high) / 2).sum()),
                    )
                )
                rows.append(
                    (
                        corpus.label or name,
                        seqlen,
                        int(start),
                        "drawn",
                        number / len(lengths),
                        float(tokens / lengths.sum()),
                    )
                )
        return pd.DataFrame(
            rows, columns=["corpus", "seqlen", "from_tokens", "source", "documents", "tokens"]
        )

    def title(self, data: pd.DataFrame) -> str:
        parts = []
        for corpus, rows in data[data.source == "counted"].groupby("corpus", sort=False):
            short = rows.documents[rows.from_tokens < 1024].sum()
            long = rows.tokens[rows.from_tokens >= 8192].sum()
            parts.append(
                f"{corpus} has {percent(short)} of its documents below 1K tokens and {percent(long)} of its "
                "tokens in documents from 8K"
            )
        return "; ".join(parts)

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        panels = [(corpus, what) for corpus in dict.fromkeys(data.corpus) for what in ("documents", "tokens")]
        legend = [("counted", {"color": MUTED[0]}), ("drawn", {"color": HEAT[0]})]
        canvas, axes = style.panels(
            [f"{corpus}, share of {what}" for corpus, what in panels], per_row=2, title_lines=2, legend=legend
        )
        for ax, (corpus, what) in zip(axes, panels, strict=True):
            rows = data.loc[data.corpus == corpus]
            style.title(
                ax, str(corpus), f"share of {what}, drawn for {format_length(int(rows.seqlen.iloc[0]))}", 2
            )
            for source, look in legend:
                part = rows.loc[rows.source == source]
                ax.step(part.from_tokens, part[what], where="post", color=look["color"], linewidth=1.4)
            ax.set_xscale("log", base=2)
            ticks = [2**power for power in range(4, 21, 4)]
            ax.set_xticks(ticks, [format_length(tick) if tick >= 1024 else str(tick) for tick in ticks])
            ax.minorticks_off()
            ax.set_ylim(0, float(data[["documents", "tokens"]].to_numpy().max()) * 1.05)
        return canvas
