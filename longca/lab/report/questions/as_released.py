"""Pairs of cells: a row "as released", with a defect of the study's code, beside the row without it; and the
ranks that both would have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, format_length
from longca.lab.ranking import Lead, MeasuredPoint, Measurement, compare
from longca.lab.ranking.table import has_rests, measurements
from longca.lab.report.series import DIRECTIONS, FAILURES, attention, labelled, mask_order
from longca.lab.store.text import number, percent, plural

if TYPE_CHECKING:
    import pandas as pd

CALL = [
    "device",
    "mask",
    "mask_params",
    "corpus",
    "seed",
    "seqlen",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
]
DEFECT_NOTE = "as released: "  # begins the notes by which such kernels say what they do
NOTABLE = 0.05  # of a time: smaller differences of two runs are not spoken of
LONGER_PLANNING = 2  # times as long, from which it is said: planning is timed once, and so is noisy
TAKEN = {
    "time_ms_median": "time_ms",
    "time_ms_q1": "time_ms_low",
    "time_ms_q3": "time_ms_high",
    "tflops_per_device": "tflops",
    "peak_bytes": "peak_bytes",
    "plan_ms": "plan_ms",
    "status": "status",
    "reason": "reason",
    "notes": "notes",
    "cell_id": "cell_id",
    "num_samples": "num_samples",
    "torch": "torch",
    "study": "study",
    "started_at": "started_at",
}


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each call that was tried both ways: `*_released` has the defect, `*_without` has not.

    A row without the defect is of the same protocol (with rests of the GPU after each call, or without), of
    the same study where that has one, and else of another study on the same device.

    Adds:
        ratio, ratio_low, ratio_high: time as released over time without, and its interval
            (`longca.lab.ranking.Lead`); NA if either failed.
        apart: the two are told apart.
        memory_ratio: the same of the memory of a call.
        rank_released, rank_without, num_ranked: the place of the kernel's throughput among those of all
            kernels with records of that call;
            NA where it failed, or where no other kernel has a record.
        rank_changes: the ranks differ and the two are told apart, or the row as released failed.
    """
    is_released = table.kernel.str.startswith(AS_RELEASED)
    honest = [
        attention(of_study, "kernel").index for _, of_study in table.groupby("study")
    ]  # in their own study all are ranked
    known = table.index.isin([row for rows in honest for row in rows])
    tried = table.loc[known | (is_released & table.status.isin(("ok", *FAILURES)))]
    is_released = is_released[tried.index]
    calls = tried.loc[is_released, ["kernel", *CALL]]
    calls = calls.assign(kernel=calls.kernel.str.removeprefix(AS_RELEASED)).drop_duplicates()
    plain = tried.assign(is_released=is_released, kernel=tried.kernel.str.removeprefix(AS_RELEASED))
    named = labelled(plain.merge(calls, on=["kernel", *CALL]))  # labels tell these rows apart, and no others
    order = mask_order(named) if len(named) else []
    keys = ["kernel", *CALL, "mask_label", "heads", "is_released"]
    taken = (
        named.loc[:, [*keys, *TAKEN]]
        .rename(columns=TAKEN)
        .assign(measured=measurements(named), rests=has_rests(named))
    )
    both = taken[taken.is_released].merge(
        taken[~taken.is_released],
        on=["kernel", *CALL, "mask_label", "heads"],
        suffixes=("_released", "_without"),
    )
    both = both.assign(
        other_study=both.study_released != both.study_without,
        place=both.mask_label.map({m: i for i, m in enumerate(order)}),
        late=both.direction != "fwd",
    )
    both = both.sort_values(["started_at_released", "started_at_without"], ascending=False, kind="stable")
    both = both.sort_values("other_study", kind="stable")
    mixed = (
        (both.rests_released != both.rests_without)
        & (both.status_released == "ok")
        & (both.status_without == "ok")
    )
    both = both[~mixed].drop_duplicates(["kernel", *CALL])
    both = both.sort_values(["kernel", "place", "seqlen", "late", *CALL], kind="stable", ignore_index=True)
    leads = [_lead(*pair) for pair in zip(both.measured_without, both.measured_released, strict=True)]
    both = both.assign(
        ratio=both.time_ms_released / both.time_ms_without,
        ratio_low=[lead.low if lead else None for lead in leads],
        ratio_high=[lead.high if lead else None for lead in leads],
        apart=[lead is not None and not lead.is_tie for lead in leads],
        memory_ratio=both.peak_bytes_released.astype(float)
        / both.peak_bytes_without.astype(float).where(both.peak_bytes_without > 0),
        num_cells=2,
        cell_ids=both.cell_id_released + " " + both.cell_id_without,
        num_samples=both.num_samples_released.fillna(0) + both.num_samples_without.fillna(0),
    )
    return _ranked(both, attention(table, "kernel")).drop(
        columns=[
            "is_released_released",
            "is_released_without",
            "measured_released",
            "measured_without",
            "rests_released",
            "rests_without",
            "other_study",
            "place",
            "late",
            "cell_id_released",
            "cell_id_without",
            "num_samples_released",
            "num_samples_without",
            "started_at_released",
            "started_at_without",
        ]
    )


def _ranked(both: pd.DataFrame, rivals: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the places of both rows among the kernels that ran the same call."""
    import pandas as pd

    call_and_protocol = [*CALL, "rests"]
    rates = (
        rivals[rivals.status == "ok"].assign(rests=has_rests(rivals)).groupby([*call_and_protocol, "kernel"])
    )
    of_calls = {
        call: of_call.droplevel(call_and_protocol)
        for call, of_call in rates.tflops_per_device.median().groupby(call_and_protocol)
    }
    rows: list[dict[str, Any]] = []
    for row in both.to_dict("records"):
        key = (*(row[name] for name in CALL), row["rests_without"] or row["rests_released"])
        others = of_calls[key].drop(row["kernel"], errors="ignore") if key in of_calls else []
        places = [
            1 + int((others > row[f"tflops_{word}"]).sum())
            if len(others) and row[f"status_{word}"] == "ok"
            else None
            for word in ("released", "without")
        ]
        apart = row["status_released"] != "ok" or row["apart"]
        rows.append(
            {
                "rank_released": places[0],
                "rank_without": places[1],
                "num_ranked": len(others) + 1 if len(others) else None,
                "rank_changes": places[1] is not None and places[0] != places[1] and bool(apart),
            }
        )
    ranks = pd.DataFrame(
        rows, columns=["rank_released", "rank_without", "num_ranked", "rank_changes"], index=both.index
    )
    return both.join(
        ranks.astype(
            dict.fromkeys(("rank_released", "rank_without", "num_ranked"), "Int64") | {"rank_changes": bool}
        )
    )


def _lead(without: Measurement | None, released: Measurement | None) -> Lead | None:
    """The lead of the row without the defect; None if either has no number."""
    if without is None or released is None:
        return None
    return compare(MeasuredPoint("without", (without,)), MeasuredPoint("released", (released,)))


def slower(both: pd.DataFrame) -> pd.Series:
    """True for the pairs that are slower as released: told apart, and by more than NOTABLE."""
    return (both.ratio > 1 + NOTABLE) & both.apart


def quicker(both: pd.DataFrame) -> pd.Series:
    """The other way round."""
    return (both.ratio < 1 - NOTABLE) & both.apart


def slowdown(both: pd.DataFrame) -> list[str]:
    """The effect of the defects on times, in one or two sentences without their ends."""
    compared = both.loc[both.ratio.notna()]
    more = int(slower(compared).sum())
    run = "runs" if len(compared) == 1 else "run"
    parts = [
        f"Of {plural(len(compared), 'call')} that {run} both as released and without the defect, the defects "
        f"make {more} slower by more than {percent(NOTABLE)} and {int(quicker(compared).sum())} faster"
    ]
    if more:
        worst: Any = compared.loc[compared.ratio.astype(float).idxmax()]
        parts.append(
            f"at worst a call takes {number(float(worst.ratio))}× as long ({worst.kernel}, "
            f"{worst.mask_label}, {format_length(int(worst.seqlen))}, {DIRECTIONS[worst.direction]})"
        )
    return parts


def effect(of_kernel: pd.DataFrame) -> str:
    """The effect of the defect on one kernel, a sentence without its end.

    "Of 9 calls that run both ways (torch 2.11.0), 3 take longer as released: 1.4× in the mean (1.2–1.6×), all
    forward; memory of a call is 3.2× as much in the median, 8× at most; 2 cells that have a number without
    the defect end out of memory; no rank changes".
    """
    import numpy as np

    timed = of_kernel.loc[of_kernel.ratio.notna()]
    versions = ", ".join(sorted(set(timed.torch_released) - {""}))
    run = "runs" if len(timed) == 1 else "run"
    parts = [
        f"Of {plural(len(timed), 'call')} that {run} both ways" + (f" (torch {versions})" if versions else "")
    ]
    for words, chosen in (("longer", timed.loc[slower(timed)]), ("less long", timed.loc[quicker(timed)])):
        if len(chosen):
            ratios = chosen.ratio.astype(float)
            mean, low, high = (
                number(float(value)) for value in (np.exp(np.log(ratios).mean()), ratios.min(), ratios.max())
            )
            passes = set(chosen.direction.map(DIRECTIONS))
            takes, spread = (
                ("takes", f"{mean}×")
                if len(chosen) == 1
                else ("take", f"{mean}× in the mean ({low}–{high}×)")
            )
            which = (
                "forward and backward"
                if len(passes) > 1
                else f"all {passes.pop()}"
                if len(chosen) > 1
                else passes.pop()
            )
            parts.append(f"{len(chosen)} {takes} {words} as released: {spread}, {which}")
    if len(parts) == 1:
        parts.append(f"none differs by more than {percent(NOTABLE)}")
    parts = [", ".join(parts)]
    memory = of_kernel.memory_ratio.dropna()
    if len(memory):
        parts.append(
            f"memory of a call is {number(float(memory.median()))}× as much in the median, "
            f"{number(float(memory.max()))}× at most"
        )
    planning = (
        of_kernel.plan_ms_released / of_kernel.plan_ms_without.where(of_kernel.plan_ms_without > 0)
    ).dropna()
    if len(planning) and planning.median() >= LONGER_PLANNING:
        parts.append(
            f"planning before the first call takes {number(float(planning.median()))}× as long in the "
            f"median, {number(float(planning.max()))}× at most"
        )
    for status, words in (
        ("oom", "out of memory"),
        ("incorrect", "wrong"),
        ("implausible", "too fast"),
        ("error", "in error"),
        ("timeout", "over time"),
    ):
        lost = of_kernel[(of_kernel.status_released == status) & (of_kernel.status_without == "ok")]
        if len(lost):
            verbs = (
                "has a number without the defect ends"
                if len(lost) == 1
                else "have a number without the defect end"
            )
            parts.append(f"{plural(len(lost), 'cell')} that {verbs} {words}")
    neither = int(((of_kernel.status_released != "ok") & (of_kernel.status_without != "ok")).sum())
    if neither:
        parts.append(f"{plural(neither, 'cell')} fail{'s' if neither == 1 else ''} both ways")
    num_ranked = int(of_kernel.num_ranked.notna().sum())
    changed = int(of_kernel.rank_changes.sum())
    if num_ranked:
        parts.append(
            f"another rank in {changed} of {plural(num_ranked, 'cell')}" if changed else "no rank changes"
        )
    parts += [
        f"noted in {plural(count, 'cell')}: {note}"
        for note, count in _telling_notes(of_kernel.notes_released)
    ]
    return "; ".join(parts)


def _telling_notes(notes: pd.Series) -> list[tuple[str, int]]:
    """(note, how many rows have it), the most frequent first; without the note of all rows that names the
    defect itself."""
    counts = Counter(note for text in notes if text for note in text.split("; "))
    num_rows = int((notes != "").sum())
    return [
        (note.removeprefix(DEFECT_NOTE), count)
        for note, count in counts.most_common()
        if not (note.startswith(DEFECT_NOTE) and count == num_rows)
    ]


def rank_change(row: Any) -> str:
    """ "released flex would be 5th of 8 (causal, 8K, forward), ours is 3rd"."""
    would = (
        f"would be {ordinal(int(row.rank_released))} of {int(row.num_ranked)}"
        if row.status_released == "ok"
        else f"would have no rank ({row.status_released})"
    )
    of_all = "" if row.status_released == "ok" else f" of {int(row.num_ranked)}"
    case = f"{row.mask_label}, {format_length(int(row.seqlen))}, {DIRECTIONS[row.direction]}"
    return f"released {row.kernel} {would} ({case}), ours is {ordinal(int(row.rank_without))}{of_all}"


def ordinal(number: int) -> str:
    """1 → "1st", 12 → "12th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
