"""The numbers of the rows "as released" beside those of the rows without the defect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.paper.analysis.select import devices_apart
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.report.questions.as_released import ordinal, pairs
from longca.lab.store.text import distinct_names, format_bytes, number, plural

if TYPE_CHECKING:
    import pandas as pd

BOTH = ("released", "without")
KEYS = ("kernel", "mask", "heads", "length", "pass")
HEADER = (
    "ms as released",
    "ms without",
    "ratio (range)",
    "TFLOP/s as released",
    "without",
    "memory as released",
    "without",
    "planning ms as released",
    "without",
    "rank as released",
    "without",
    "of",
)


class AsReleasedTable(PaperTable):
    label = "As released, in numbers"
    section = "released"
    number = "as released, in numbers"
    order = 20
    caption = (
        "Median times, and the time as released over the time without the defect, with its interval. Memory "
        "is what a call needs above what was resident before it; planning comes before the first call and "
        "is not in its time. In place of a time stands what happened. A rank is the place of the throughput "
        "among all kernels with a record of the same mask, length, heads and pass."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return pairs(table)

    def title(self, data: pd.DataFrame) -> str:
        apart = int(data.apart.sum())
        memory = data.memory_ratio.dropna()
        pairs = plural(int(data.ratio.notna().sum()), "pair of times")
        sentence = f"As released and without the defect, {apart} of {pairs} are told apart"
        if len(memory):
            worst: Any = data.loc[memory.idxmax()]
            sentence += (
                f"; memory of a call grows most for {worst.kernel}: {number(float(worst.memory_ratio))}× "
                f"({worst.mask_label}, {format_length(int(worst.seqlen))})"
            )
        return sentence

    def cells(self, data: pd.DataFrame) -> Cells:
        apart = devices_apart(data)
        gpus = distinct_names(data.device)
        return Cells(
            (*KEYS, *("GPU" for _ in apart), *HEADER),
            tuple(_cells(row, [gpus[row.device] for _ in apart]) for row in data.itertuples()),
            num_keys=len(KEYS) + len(apart),
        )


def _cells(row: Any, gpu: list[str]) -> tuple[str, ...]:
    import pandas as pd

    is_ok = {word: getattr(row, f"status_{word}") == "ok" for word in BOTH}
    times = (
        number(float(getattr(row, f"time_ms_{word}"))) if is_ok[word] else str(getattr(row, f"status_{word}"))
        for word in BOTH
    )
    rates = (number(float(getattr(row, f"tflops_{word}"))) if is_ok[word] else "" for word in BOTH)
    memory = (format_bytes(float(getattr(row, f"peak_bytes_{word}"))) if is_ok[word] else "" for word in BOTH)
    planning = (number(float(getattr(row, f"plan_ms_{word}"))) if is_ok[word] else "" for word in BOTH)
    ranks = (
        ordinal(int(rank)) if (rank := getattr(row, f"rank_{word}")) is not pd.NA else "" for word in BOTH
    )
    ratio = (
        f"{number(float(row.ratio))}× ({number(float(row.ratio_low))}–{number(float(row.ratio_high))})"
        if all(is_ok.values())
        else ""
    )
    return (
        row.kernel,
        row.mask_label,
        row.heads,
        format_length(int(row.seqlen)),
        row.direction,
        *gpu,
        *times,
        ratio,
        *rates,
        *memory,
        *planning,
        *ranks,
        "" if row.num_ranked is pd.NA else str(row.num_ranked),
    )
