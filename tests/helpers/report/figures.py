"""A table that has the data of every figure, and the drawings of it."""

import functools

import pandas as pd

from longca.core.plugin import Registry
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import inline

METHODS = (
    "flex",
    "naive",
    "sdpa",
    "ulysses+sdpa",
    "ring_p2p+sdpa",
    "ring_allgather+sdpa",
    "control",
    "fa2",
    "fa3",
    "cudnn",
    "flashmask",
)
SOME = ("full", "causal_document", "block_sparse_uniform")


def drawings_of(quick):
    """A figure's name → its drawing on the page, with a title that must be escaped; each is made once."""
    rows = {cell: row for row, cell in enumerate(quick.cell_id)}
    style = Style(METHODS, on_page=True, pictures=frozenset(["full"]))

    @functools.cache
    def drawn(name):
        figure = Registry("figure").load(name)
        return inline(figure, figure.data(quick), style, "fig", 'says "so" & <more>', rows)

    return drawn


def completed(table):
    """Facts that records of a CPU cannot have: energies, predictions, strategies beside each other, and many
    draws of documents."""
    of_cp = table[(table.kind == "cp") & (table.status == "ok")]
    others = [
        of_cp.assign(
            strategy=name,
            method=f"{name}+sdpa",
            cell_id=of_cp.cell_id + name,
            time_ms_median=of_cp.time_ms_median * factor,
        )
        for name, factor in (("ring_p2p", 1.3), ("ring_allgather", 0.9))
    ]
    drawn = of_cp[of_cp["mask"] == "causal_document"]
    others += [
        drawn.assign(
            seed=seed,
            cell_id=drawn.cell_id + f"s{seed}",
            tflops_per_device=drawn.tflops_per_device * (1 + seed / 10),
        )
        for seed in range(1, 5)
    ]
    whole = pd.concat([table, *others], ignore_index=True)
    time_ms = whole.time_ms_median.where(~whole.is_control.astype(bool))
    predicted = (time_ms * 1.1).where(whole.kind == "cp")
    return whole.assign(
        joules_per_token=time_ms / 1e3,
        predicted_ms=predicted,
        predicted_low_ms=predicted * 0.9,
        predicted_high_ms=predicted * 1.15,
    )
